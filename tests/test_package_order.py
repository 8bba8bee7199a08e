"""Stage order is package order: nothing imports a later stage, and no two packages import each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import tilegrad

PACKAGE = Path(tilegrad.__file__).parent

ORDER = (
    # What everything may use.
    "visible", "errors", "pictured", "sizes", "files", "random", "bounds",
    "expectations", "found", "losses", "optimizers", "recipe",
    # Data and declarations.
    "targets", "ir", "ops", "costs", "build", "analysis",
    # The stages.
    "passes", "zoo", "frontend", "schedule", "place", "sequence", "fit", "codegen", "compiled", "pipeline",
    # What is done with a compiled program.
    "data", "learned", "devices", "stack", "verify", "parallel", "training", "inspection", "onnx_backend",
    "exploration",
    # What people see.
    "report", "calibration", "api", "commands", "interrupts", "cli", "launch", "__main__",
)  # fmt: skip


def imports(path: Path) -> Iterator[str]:
    """Modules of ours that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        assert not getattr(node, "level", 0), f"{path} imports without saying from where"
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("tilegrad."))
        elif isinstance(node, ast.ImportFrom) and node.module == "tilegrad":
            yield from (f"tilegrad.{alias.name}" for alias in node.names if not alias.name.startswith("__"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tilegrad."):
            yield str(node.module)


def own_name(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def files() -> list[Path]:
    """But for what is copied into folders as it is (`runtime`)."""
    found = sorted(PACKAGE.rglob("*.py"))
    return [path for path in found if path != PACKAGE / "__init__.py" and own_name(path) != "runtime"]


def test_what_a_check_leaves_out_is_there() -> None:
    """tests/slow.txt names tests: one that is called otherwise now would be in every check."""
    folder = Path(__file__).parent
    listed = [line.split("::") for line in (folder / "slow.txt").read_text().splitlines() if not line.startswith("#")]
    assert listed
    for file, name in listed:
        assert re.search(rf"^def {name}\(", (folder / file).read_text(), re.MULTILINE), f"{file}::{name}"


def test_every_part_has_a_place_in_the_order() -> None:
    assert {own_name(path) for path in files()} == set(ORDER)


def test_nothing_imports_a_later_stage() -> None:
    rank = {name: i for i, name in enumerate(ORDER)}
    against = [
        f"{path.relative_to(PACKAGE)} imports {module}"
        for path in files()
        for module in imports(path)
        if rank[module.split(".")[1]] > rank[own_name(path)]
    ]
    assert not against


def test_a_target_is_data() -> None:
    """A chip's folder has its description and its C: what builds images for it is a device's."""
    for folder in (path.parent for path in (PACKAGE / "targets").glob("*/target.py")):
        assert {str(path.relative_to(folder)) for path in folder.rglob("*.py")} == {"__init__.py", "target.py"}


REPLAY = ("replay", "launches", "pipe_replay", "values", "contents", "needs", "parts")
MAY_KNOW = ("errors", "ir", "ops", "targets", "analysis", "passes.views", *(f"sequence.{name}" for name in REPLAY))


def test_the_replay_knows_nothing_of_what_makes_listings() -> None:
    """Two that share a formula agree on what is wrong with it."""
    for name in REPLAY:
        for module in imports(PACKAGE / "sequence" / f"{name}.py"):
            part = module.removeprefix("tilegrad.")
            assert any(part == known or part.startswith(f"{known}.") for known in MAY_KNOW), f"{name} imports {module}"


STAGES = ("ir", "costs", "analysis", "schedule", "place", "sequence", "codegen", "calibration", "compiled")
MOST_LINES_OF_A_FUNCTION, MOST_LINES_OF_A_MODULE = 60, 600


def test_nothing_is_known_by_its_identity() -> None:
    """What is equal is the same: kinds of nests and events are keys themselves."""
    for path in (path for path in files() if own_name(path) in STAGES):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
        assert not any(isinstance(called, ast.Name) and called.id == "id" for called in calls), path


def test_what_makes_listings_and_c_is_in_small_pieces() -> None:
    long = []
    for path in (path for path in files() if own_name(path) in STAGES):
        source = path.read_text(encoding="utf-8")
        if source.count("\n") > MOST_LINES_OF_A_MODULE:
            long.append(str(path.relative_to(PACKAGE)))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= MOST_LINES_OF_A_FUNCTION:
                long.append(f"{path.relative_to(PACKAGE)}: {node.name}")
    assert not long
