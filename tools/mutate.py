"""How many small wrong changes of the listing's makers and judges do the tests notice?

    python tools/mutate.py [--sample N] [--seed N] [--only TEXT] [--list]

Changes (a comparison turned round, a sum made a difference, a number one larger, a statement left out) are drawn from
the files below, always the same ones for a seed. Each is made in a copy of the project, whose tests of that file are
run until one fails. What no test notices is printed; the last line is the survival rate that CONTRIBUTING.md has.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_CPU_SECONDS = 240  # of one change; one that never ends is noticed

CLOCK = ("tests/sequence/test_clock.py", "tests/sequence/test_clock_launches.py")
PIPES = (
    "tests/sequence/test_pipes.py::test_a_pipe_has_a_ring_in_every_block",
    "tests/sequence/test_pipes.py::test_a_fault_is_caught_with_its_operator",
    "tests/sequence/test_pipes.py::test_a_ring_one_slot_short_is_caught",
    "tests/sequence/test_near_pipes.py::test_what_passes_through_l1_is_not_moved",
    "tests/sequence/test_near_pipes.py::test_a_fault_in_l1_is_caught_with_its_operator",
    "tests/sequence/test_near_pipes.py::test_a_load_into_a_ring_is_caught",
    "tests/sequence/test_near_pipes.py::test_three_operators_run_at_once",
    "tests/sequence/test_near_pipes.py::test_lanes_have_rings_of_their_own",
    "tests/sequence/test_near_pipes.py::test_rings_end_behind_their_last_slots",
    "tests/sequence/test_near_pipes.py::test_a_sum_goes_on_in_its_slot",
)
LAUNCHES = (
    "tests/blocks/test_blocks.py::test_faults_of_launches_in_a_listing_are_refused",
    "tests/blocks/test_blocks.py::test_operands_that_other_blocks_write_are_seen",
    "tests/sequence/test_workspaces.py::test_the_replay_names_the_operator",
    "tests/sequence/test_workspaces.py::test_what_a_group_needs_rises_to_the_entry_that_runs_it",
)
PARTS = ("tests/place/test_sums.py", "tests/place/test_panels.py")
REPLAY = ("tests/sequence/test_replay.py", "tests/sequence/test_fuzz.py::test_random_chains")
MADE = (*REPLAY, "tests/sequence/test_trace.py", "tests/sequence/test_decode.py")
TESTS = {
    "tilegrad/costs/clock.py": CLOCK,
    "tilegrad/sequence/timing.py": CLOCK,
    "tilegrad/sequence/acts.py": CLOCK,
    "tilegrad/sequence/replay.py": (*REPLAY, *PIPES, *LAUNCHES),
    "tilegrad/sequence/values.py": (*REPLAY, *PIPES, *LAUNCHES, *PARTS),
    "tilegrad/sequence/launches.py": (*LAUNCHES, *PIPES),
    "tilegrad/sequence/pipe_replay.py": PIPES,
    "tilegrad/sequence/parts.py": PARTS,
    "tilegrad/sequence/needs.py": REPLAY,
    "tilegrad/sequence/contents.py": REPLAY,
    "tilegrad/sequence/sequence.py": (*PIPES, *LAUNCHES, *MADE),
    "tilegrad/sequence/nest_events.py": (*PIPES, *LAUNCHES, *MADE),
    "tilegrad/sequence/piped_events.py": PIPES,
    "tilegrad/sequence/handover.py": (*LAUNCHES, *MADE, "tests/sequence/test_tables.py"),
    "tilegrad/sequence/kept.py": ("tests/sequence/test_kept.py", *MADE),
    "tilegrad/sequence/calls.py": MADE,
    "tilegrad/sequence/trace.py": MADE[2:],
    "tilegrad/sequence/regroup.py": ("tests/sequence/test_regroup.py",),
    "tilegrad/sequence/epilogues.py": ("tests/sequence/test_epilogues.py",),
    "tilegrad/sequence/fastest.py": ("tests/sequence/test_fastest.py",),
}
TOO_LONG = ("tests/sequence/test_replay.py::test_faults_are_found_everywhere",)

TURNED: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
}  # fmt: skip
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
PASSED_OVER = (ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Raise)
"""Words and what is only for the type checker. Of a `raise`, only whether it is there counts."""


@dataclass(frozen=True)
class Change:
    path: str
    start: int  # bytes of the file
    stop: int
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {' '.join(self.before.split())[:60]}  ->  {self.after[:60]}"


def annotations(tree: ast.AST) -> set[ast.AST]:
    """And decorators."""
    roots: list[ast.AST | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            roots += node.decorator_list
        if isinstance(node, ast.FunctionDef):
            roots.append(node.returns)
        elif isinstance(node, ast.AnnAssign | ast.arg):
            roots.append(node.annotation)
    return {inner for root in roots if root is not None for inner in ast.walk(root)}


def visible(node: ast.AST, hidden: set[ast.AST]) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if child in hidden or (isinstance(child, ast.keyword) and child.arg == "strict"):
            continue
        yield child
        if not isinstance(child, PASSED_OVER):
            yield from visible(child, hidden)


def replacement(node: ast.AST) -> str | None:
    """What could stand here by mistake."""
    if isinstance(node, ast.Raise) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Yield | ast.YieldFrom)
    ):
        return "pass"
    if isinstance(node, ast.AugAssign):
        return "pass"
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return f"({ast.unparse(ast.Compare(node.left, [TURNED[type(node.ops[0])]()], node.comparators))})"
    if isinstance(node, ast.BoolOp):
        return f"({ast.unparse(ast.BoolOp(TURNED[type(node.op)](), node.values))})"
    if isinstance(node, ast.BinOp) and type(node.op) in TURNED:
        return f"({ast.unparse(ast.BinOp(node.left, TURNED[type(node.op)](), node.right))})"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return f"({ast.unparse(node.operand)})"
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        return str(not node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return str(node.value + 1)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in SWAPPED:
        return SWAPPED[node.id]
    return None


def changes(path: str) -> Iterator[Change]:
    source = (ROOT / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    tree = ast.parse(source)
    for node in visible(tree, annotations(tree)):
        after = replacement(node)
        if after is None:
            continue
        assert isinstance(node, ast.expr | ast.stmt) and node.end_lineno is not None
        assert node.end_col_offset is not None
        start, stop = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        yield Change(path, start, stop, node.lineno, source[start:stop].decode(), after)


def passes(tests: Sequence[str], folder: Path) -> bool:
    """In a process of its own, which has what takes long to import already."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_SECONDS, MOST_CPU_SECONDS))
        os.chdir(folder)
        os.environ["PYTHONPATH"] = str(folder)
        sys.path.insert(0, str(folder))
        sys.dont_write_bytecode = True
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        left_out = [f"--deselect={test}" for test in TOO_LONG]
        arguments = ["-x", "-n0", "-m", "not matrix", "-p", "no:cacheprovider", *left_out, *tests]
        os._exit(int(importlib.import_module("pytest").main(arguments)))
    _, status = os.waitpid(child, 0)
    return status == 0


def is_noticed(change: Change, folder: Path) -> bool:
    path = folder / change.path
    source, times = path.read_bytes(), path.stat()
    path.write_bytes(source[: change.start] + change.after.encode() + source[change.stop :])
    noticed = not passes(TESTS[change.path], folder)
    path.write_bytes(source)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return noticed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, default=100, metavar="N", help="how many changes to try (100)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which of them (0)")
    parser.add_argument("--only", default="", metavar="TEXT", help="of files whose path has this in it")
    parser.add_argument("--list", action="store_true", help="print the changes and try none")
    options = parser.parse_args()
    known = [change for path in TESTS if options.only in path for change in changes(path)]
    chosen = random.Random(options.seed).sample(known, min(options.sample, len(known)))
    if options.list:
        print(*chosen, sep="\n")
        return 0
    for heavy in ("numpy", "onnx", "pytest", "hypothesis", "xdist"):
        importlib.import_module(heavy)
    survivors = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "project"
        left_out = shutil.ignore_patterns(".git", ".venv", "*_cache")
        shutil.copytree(ROOT, folder, ignore=left_out)
        for tests in dict.fromkeys(TESTS[change.path] for change in chosen):
            if not passes(tests, folder):  # then every change would seem to be noticed
                print("these fail where nothing is changed:", *tests, sep="\n    ")
                return 1
        for number, change in enumerate(chosen, 1):
            if not is_noticed(change, folder):
                survivors.append(change)
                print(f"[{number}/{len(chosen)}] not noticed: {change}", flush=True)
    share = 100 * len(survivors) / max(len(chosen), 1)
    print(f"{len(survivors)} of {len(chosen)} changes (of {len(known)}) survive: {share:.0f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
