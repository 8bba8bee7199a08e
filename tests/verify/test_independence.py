"""A reference that used tilegrad's own autodiff or operators would repeat their mistakes; one that needed PyTorch
would be no reference on a machine without it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tilegrad.losses
import tilegrad.optimizers
import tilegrad.verify

FOLDER = Path(tilegrad.verify.__file__).parent
# `judge` takes its runs from the pipeline, `dropout` asks the program which mask each node drew, and
# `goldens/__main__` asks the frontend what trains by default.
JOINS = {"judge.py", "fused_forms.py", "judge_given.py", "dropout.py", "__main__.py"}
# Losses and optimizers bring their references with them, and are held to the same.
PLAIN = {"tilegrad.errors", "tilegrad.expectations", "tilegrad.found"}
DECLARED = ("losses", "optimizers", "recipe.rates", "recipe.stored_types", "verify")
SHARED = {*PLAIN, *(f"tilegrad.{name}" for name in DECLARED)}
BROUGHT = [Path(package.__file__).parent for package in (tilegrad.losses, tilegrad.optimizers)]


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize(
    "path",
    sorted(path for folder in (FOLDER, *BROUGHT) for path in folder.rglob("*.py")),
    ids=lambda path: str(path.relative_to(FOLDER.parent)),
)
def test_no_reference_imports_what_it_judges(path: Path) -> None:
    own = {name for name in _imports(path) if name.split(".")[0] == "tilegrad"}
    foreign = {name for name in own if not any(name == shared or name.startswith(f"{shared}.") for shared in SHARED)}
    assert not foreign or path.name in JOINS
    assert not any(name.startswith(("tilegrad.ops", "tilegrad.passes.autodiff", "tilegrad.codegen")) for name in own)


def test_works_without_pytorch() -> None:
    program = """
import sys
sys.modules["torch"] = None
import numpy as np
from tests.verify.conftest import convolution_model, make_batches
from tilegrad.verify import compare, goldens, torch_reference
from tilegrad.verify.finite_differences import directional_check
from tilegrad.verify.float64_model import Float64Model
from tilegrad.verify.reference import ReferenceRecipe
from tilegrad.errors import UserError
assert not torch_reference.available()
model, batches = convolution_model(), make_batches(1)
evaluated = Float64Model(model, "cross_entropy")
assert evaluated.evaluator.startswith("ONNX reference evaluator"), evaluated.evaluator
rows = directional_check(evaluated, batches[0], {"fc.bias": np.ones(5)})
assert [row.passed for row in rows] == [False]
try:
    torch_reference.run(model, ReferenceRecipe(), batches, ["fc.bias"])
except UserError as error:
    assert "PyTorch is not installed" in str(error)
else:
    raise SystemExit("PyTorch was used")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=FOLDER.parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
