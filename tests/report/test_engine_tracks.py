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
    engines = ("matrix", "vector", "block 1 matrix", "block 1 vector")
    own = ("", " L2-L1 in", " L2-L1 out", " conductor")
    assert tracks(2) == [f"{engine}{part}" for engine in engines for part in own]


def test_lanes_of_a_block_are_told_apart() -> None:
    found = [name for name in tracks(None) if not re.search("L2|conductor", name)]
    assert found == ["matrix", "vector", "vector 1", "block 1 matrix", "block 1 vector", "block 1 vector 1"]


def test_cycles_say_whose_costs_they_are() -> None:
    assert targets.get("siracusa").cycles_word == "estimated cycles"
    assert targets.get("mppa").cycles_word == "estimated cycles (uncalibrated: another chip's costs)"
    assert targets.get("npu").cycles_word == "estimated cycles (uncalibrated: rates of a design)"
    assert targets.get("npu").cycles_are == targets.get("mppa").cycles_are == "estimated, uncalibrated"
