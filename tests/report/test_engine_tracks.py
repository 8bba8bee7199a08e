"""Timelines of blocks with engines: whose a track is, is said by the block, the engine and the lane."""

from __future__ import annotations

import re

from tests.sequence.test_pipes import compiled, product_then_sum, small_npu
from tilegrad.report.picture.timeline import timeline_json
from tilegrad.sequence.timing import time_listing
from tilegrad.targets import base as targets

ROWS = 61


def tracks(depth: int | None) -> list[str]:
    program = compiled(product_then_sum(ROWS, 24, 16), ROWS, depth=depth, target=small_npu(2))
    found = timeline_json(program, time_listing(program.listing))["infer"]["tracks"]
    assert isinstance(found, list)
    return found


def test_sides_of_a_pipe_are_engines_of_one_block() -> None:
    found = tracks(2)
    assert [name for name in found if name.endswith("cores")] == [
        "matrix cores", "vector cores", "block 1 matrix cores", "block 1 vector cores",
    ]  # fmt: skip
    assert {"matrix L2-L1 in", "block 1 vector L2-L1 out"} <= set(found)
    assert not [name for name in found if re.match(r"block ([2-9]|\d\d)", name)]


def test_lanes_of_a_block_are_told_apart() -> None:
    found = [name for name in tracks(None) if name.endswith("cores")]
    assert "vector cores" in found and "vector 1 cores" in found and "matrix 1 cores" not in found
    assert {re.match(r"(block \d )?", name)[0] for name in found} <= {"", "block 1 "}  # type: ignore[index]


def test_cycles_say_whose_costs_they_are() -> None:
    assert targets.get("siracusa").cycles_word == "estimated cycles"
    assert targets.get("mppa").cycles_word == "estimated cycles (uncalibrated: another chip's costs)"
    assert targets.get("npu").cycles_word == "estimated cycles (uncalibrated: rates of a design)"
    assert targets.get("npu").cycles_are == targets.get("mppa").cycles_are == "estimated, uncalibrated"
