"""Compiling a model four times as large takes about four times as many steps, whatever stage they are in.

Steps are lines of tilegrad's Python, each turn of a loop counted: the same number on any machine, at any load.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import onnx
import pytest

from benchmarks.growth import KINDS, compile_for, mlp
from tilegrad.ir.plan import Buffer
from tilegrad.place.allocate import FEW_PAIRS, MANY_PAIRS, allocate, lower_bound
from tilegrad.schedule.schedule import searched

TIMES = 4
MOST = 1.15 * TIMES


def steps(work: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        del argument
        if event == "call" and "tilegrad" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def ratio(make: Callable[[int], onnx.ModelProto], count: int, target: str) -> float:
    """What is cached is cached now, but for tilings: each model searches its own."""
    compile_for(mlp(4), target)
    counts = []
    for model in (make(TIMES * count), make(count)):
        searched.cache_clear()
        counts.append(steps(partial(compile_for, model, target)))
    return counts[0] / counts[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_growth_on_the_host(kind: str) -> None:
    assert ratio(KINDS[kind], 40, "host") < MOST


@pytest.mark.slow
def test_growth_on_a_chip() -> None:
    assert ratio(KINDS["relus"], 20, "siracusa") < MOST


def nested(count: int) -> list[Buffer]:
    """What a backward pass frees in reverse order: all are alive in the middle."""
    return [Buffer(f"b{i}", 8 * (1 + i % 3), i, 2 * count - i) for i in range(count)]


@pytest.mark.parametrize("count", [700, 2500])
def test_many_buffers_that_are_alive_together_are_placed_at_the_bound(count: int) -> None:
    pairs = count * (count - 1) // 2
    assert pairs > (MANY_PAIRS if count > 2000 else FEW_PAIRS)
    buffers = nested(count)
    allocation = allocate(buffers)
    assert allocation.size_bytes == lower_bound(buffers)
    ends = sorted((allocation.offsets[b.name], allocation.offsets[b.name] + b.size_bytes) for b in buffers)
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(ends))


def test_a_chain_deeper_than_pythons_stack_compiles() -> None:
    compile_for(KINDS["relus"](2 * sys.getrecursionlimit()), "host")
