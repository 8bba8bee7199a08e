"""tools/mutate.py draws from everything that makes, judges and times listings, and the tests that it runs exist."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def mutate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tools_mutate", ROOT / "tools/mutate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_no_file_is_left_out() -> None:
    tests, files = mutate().TESTS, (ROOT / "tilegrad/sequence").glob("*.py")
    sequence = {f"tilegrad/sequence/{path.name}" for path in files if path.stem != "__init__"}
    assert set(tests) == {"tilegrad/costs/clock.py", *sequence}


def test_what_it_runs_is_there() -> None:
    module = mutate()
    for name in {*module.TOO_LONG, *(name for names in module.TESTS.values() for name in names)}:
        path, _, function = name.partition("::")
        tree = ast.parse((ROOT / path).read_text())
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert not function or function in names, name
