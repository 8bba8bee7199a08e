"""Workspaces of blocks: slices are apart and inside for every width, in Python and in C, and faults are caught."""

from __future__ import annotations

import ctypes
import re
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilegrad as tg
from tests.schedule.programs import patched
from tests.sequence.test_pipes import PAIR, compiled, product_then_sum, small_npu
from tilegrad.compiled import Compiled
from tilegrad.devices import registry
from tilegrad.errors import DeviceError
from tilegrad.ir.pipes import Pipe, slot_offset
from tilegrad.ir.workspaces import Workspace, fault
from tilegrad.ops.kernels import RUNTIME_FOLDER
from tilegrad.sequence.replay import ListingError, replay

ROWS, INNER, WIDTH = 181, 24, 16


@given(
    slice_bytes=st.integers(1, 1 << 28),
    blocks=st.integers(1, 128),
    alignment=st.sampled_from([1, 4, 64, 128]),
    has_guards=st.booleans(),
    lanes=st.integers(1, 3),
)
def test_slices_are_apart_and_inside(
    slice_bytes: int, blocks: int, alignment: int, has_guards: bool, lanes: int
) -> None:
    """Of every lane of every block, for every number of blocks up to the most."""
    found = Workspace("v", slice_bytes, blocks, alignment, alignment if has_guards else 0, lanes)
    assert fault(found, 7 * alignment, found.size_bytes) is None
    taken = [(start, start + slice_bytes) for _, _, start in found.slices()]
    assert len(taken) == blocks * lanes and taken == sorted(taken)
    assert all(stop + found.guard_bytes <= start for (_, stop), (start, _) in pairwise(taken))
    assert taken[-1][1] <= found.size_bytes == blocks * lanes * found.stride_bytes
    assert fault(found, 0, taken[-1][1] - 1) is not None


class Same(Workspace):
    def offset(self, block: int, lane: int = 0) -> int:
        del block, lane
        return 0


class Narrow(Workspace):
    def offset(self, block: int, lane: int = 0) -> int:
        return super().offset(block, lane) & 0xFFFFFFFF


class Lanes(Workspace):
    def offset(self, block: int, lane: int = 0) -> int:
        return super().offset(block, 0)


@pytest.mark.parametrize(
    ("kind", "slice_bytes", "text"),
    [
        (Same, 64, "the slices of block 0.* and of block 0, lane 1 share bytes"),
        (Narrow, 1 << 26, "share bytes"),
        (Lanes, 64, "lane 0 and of block 0, lane 1 share bytes"),
    ],
)
def test_formulas_that_are_wrong_are_seen(kind: type[Workspace], slice_bytes: int, text: str) -> None:
    """Every block the same slice, 32 bits for more than four gigabytes, every lane that of its block."""
    made = kind("v", slice_bytes, 128, 64, 0, 2)
    assert re.search(text, fault(made, 0, made.size_bytes) or "")
    assert fault(Workspace("v", slice_bytes, 128, 64, 0, 2), 0, made.size_bytes) is None


@pytest.fixture(scope="module")
def piped() -> Compiled:
    return compiled(product_then_sum(ROWS, INNER, WIDTH), ROWS, depth=2)


@pytest.mark.parametrize("wrong", [Same, Narrow])
def test_the_replay_names_the_operator(
    wrong: type[Workspace], piped: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wrong is Narrow:  # a number of fewer bits, since no workspace here needs more than 32
        monkeypatch.setattr(Workspace, "offset", lambda own, block, lane=0: (block * own.stride_bytes + lane) & 0xFF)
    else:
        monkeypatch.setattr(Workspace, "offset", wrong.offset)
    with pytest.raises(ListingError, match=r"the workspace of pipe 0 .* share bytes") as caught:
        replay(piped.listing)
    assert caught.value.node == "first"


def test_what_a_group_needs_rises_to_the_entry_that_runs_it() -> None:
    """For the most blocks there can be, before the entry's arena is laid out and the model's size is told."""
    found = []
    for blocks, most in (("1", None), ("n/2", 16)):
        recipe, model = tg.Recipe(loss="mse", batch=ROWS), product_then_sum(ROWS, INNER, WIDTH)
        made = tg.compile(model, recipe, target=small_npu(), pipes=[(*PAIR, 2)], blocks=blocks, most_blocks=most)
        plan, sizes = made.plan, []
        for name, entry in plan.schedule.entries.items():
            rings = sum(pipe.workspace.size_bytes for pipe in entry.pipes)
            assert {pipe.blocks for pipe in entry.pipes} <= {1 if most is None else most // 2}
            sizes.append(plan.entries[name].arena_bytes - rings)
        header = made.project.files["model.h"].decode()
        assert plan.arena_bytes == max(entry.arena_bytes for entry in plan.entries.values())
        assert re.search(rf"#define TG_ARENA_BYTES {plan.arena_bytes}\b", header)
        found.append((sizes, plan.arena_bytes))
    (few, narrow), (many, wide) = found
    assert few == many and narrow < wide


# ---- The formula of the emitted code.

SLOT = re.search(
    r"static unsigned char \*slot_at.*?\n}\n", (RUNTIME_FOLDER / "pipes/tg_pipe.h").read_text(encoding="utf-8"), re.S
)
STRUCT = re.search(
    r"typedef struct \{[^}]*\} tg_pipe;", (RUNTIME_FOLDER / "cluster/tg_cluster.h").read_text(encoding="utf-8")
)


def c_offset(folder: Path, change: tuple[str, str] = ("", "")) -> ctypes.CDLL:
    assert SLOT is not None and STRUCT is not None and change[0] in SLOT[0]
    text = (
        "#include <stdint.h>\n#include <stddef.h>\ntypedef struct "
        "{ int block, member; unsigned char *arena, *scratch; } tg_tiles;\n#define TG_L1_BYTES 4096\n"
        f"{STRUCT[0]}\n{SLOT[0].replace(*change) if change[0] else SLOT[0]}"
        "uint64_t offset(int block, uint32_t slot, uint32_t depth, uint32_t stride, uint32_t lanes, uint32_t ring, "
        "uint32_t count)\n"
        '{ tg_pipe p = {"", 0, 0, slot, depth, 0, stride, lanes, 0, 0};\n'
        "  tg_tiles t = {block, 0, (unsigned char *)64, 0};\n"
        "  return (uint64_t)((uintptr_t)slot_at(&t, &p, ring, count) - 64); }\n"
    )
    library = folder / "slots.so"
    command = ["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = ctypes.CDLL(str(library))
    found.offset.restype = ctypes.c_uint64
    found.offset.argtypes = [ctypes.c_int, *[ctypes.c_uint32] * 6]
    return found


def test_emitted_code_has_the_formula_of_the_plan(tmp_path: Path) -> None:
    library = c_offset(tmp_path)

    @settings(deadline=None, max_examples=200)
    @given(
        block=st.integers(0, 127),
        units=st.integers(1, (1 << 32) // 64 // 8 - 2),
        depth=st.sampled_from([1, 2, 4, 8]),
        lanes=st.integers(1, 4),
        count=st.integers(0, 1 << 31),
    )
    def agree(block: int, units: int, depth: int, lanes: int, count: int) -> None:
        pipe, ring = Pipe(0, "p", 0, 1, depth, 64 * units, 128, lanes=lanes), count % lanes
        stride = pipe.workspace.stride_bytes
        wanted = slot_offset(pipe, block, ring, count)
        assert library.offset(block, 64 * units, depth, stride, lanes, ring, count) == wanted

    agree()


def test_a_formula_in_32_bits_is_another(tmp_path: Path) -> None:
    pipe = Pipe(0, "p", 0, 1, 4, 1 << 24, 128)
    wanted, stride = slot_offset(pipe, 127, 0, 3), pipe.workspace.stride_bytes
    assert wanted > 1 << 32 and c_offset(tmp_path).offset(127, 1 << 24, 4, stride, 1, 0, 3) == wanted
    (tmp_path / "narrow").mkdir()
    change = "uint64_t slice = ((uint64_t)t->block", "uint32_t slice = ((uint32_t)t->block"
    narrow = c_offset(tmp_path / "narrow", change)
    assert narrow.offset(127, 1 << 24, 4, stride, 1, 0, 3) != wanted


# ---- The simulator.

FAULTS = {
    "every block the same slice": (
        "tg_pipe.h", "((uint64_t)t->block * pipe->lanes", "(0 * (uint64_t)t->block * pipe->lanes",
        r"pipe 0, first -> second: block \d is in the slice of block 0",
    ),
    "slices without guards": (
        "tg_pipe.h", "+ ring) * pipe->slice_bytes", "+ ring) * (pipe->depth * pipe->slot_bytes)",
        r"pipe 0, first -> second: block \d is in the (slice of block \d|guard)",
    ),
    "a ring one slot longer than it is": (
        "tg_pipe.h", "count % pipe->depth) * pipe->slot_bytes", "count % pipe->depth) * (pipe->slot_bytes + 64)",
        r"pipe 0, first -> second: (block \d is in the guard behind its slice|byte \d+ of the guard)",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("fault_name", FAULTS)
def test_faults_in_the_emitted_code_stop_the_run(fault_name: str, piped: Compiled) -> None:
    file, old, new, text = FAULTS[fault_name]
    values = [np.ones((ROWS, INNER), np.float32), np.ones((ROWS, WIDTH), np.float32)]
    with registry.open_device("sim:npu") as opened:
        session = opened.load(patched(piped, file, old, new))
        with pytest.raises(DeviceError) as caught:
            session.infer(*values)
    assert re.search(text, caught.value.got or ""), caught.value.got
