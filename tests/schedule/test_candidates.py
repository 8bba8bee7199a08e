"""The search weighs thousands of ways to cut a nest at once, in columns; what it says of one is what that way moves."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import prod

import numpy as np
import pytest

from tilegrad.analysis.footprint import load_count, moving_axes, tileable_axes, tiles, units_of
from tilegrad.analysis.lifetimes import align
from tilegrad.calibration.examples import graphs
from tilegrad.calibration.samples import nests_of
from tilegrad.ir.nest import AxisKind, Nest, operand_box, ordered_sizes
from tilegrad.ops import registry
from tilegrad.ops.example import Draw
from tilegrad.schedule.candidates import Candidate, Split, columns_of, one_row

ALIGNMENT = 8
OPERATORS = ("Gemm", "MatMul", "Conv", "MaxPool", "Transpose", "LayerNormalization", "SoftmaxCrossEntropyLoss", "Adam")


def nests_with(op: str) -> Iterator[Nest]:
    for graph in islice(graphs(registry.get(op), Draw(0, largest=12)), 12):
        yield from (nest for _, nest in nests_of(graph) if all(axis.extent for axis in nest.axes))


def check(nest: Nest, one: Candidate) -> bool:
    """Tile by tile: a box is moved when one of its own loops has, and its slot holds the largest. Whether no box is cut
    off where an operand ends: those that are, are weighed as if they were not."""
    walked, slots, moved = tiles(nest, one.loops), 0, list[int]()
    for operand in nest.present:
        own = sum(1 << i for i in moving_axes(operand, one.loops))
        boxes = [tile for n, (tile, bits) in enumerate(walked) if n == 0 or bits & own]
        sizes = [operand.element_bytes * prod(r.size for r in operand_box(operand, tile)) for tile in boxes]
        assert len(boxes) == load_count(operand, one.loops)
        slots += (2 if one.is_double and len(boxes) > 1 else 1) * align(max(sizes), ALIGNMENT)
        moved.append(sum(sizes))
    assert one.tile_count == len(walked)
    summed = [nest.axis(loop.axis).kind is AxisKind.REDUCTION for loop in one.loops]
    assert summed == sorted(summed)
    assert one.footprint_bytes >= slots and all(map(int.__ge__, one.moved_bytes, moved))
    return one.footprint_bytes == slots and list(one.moved_bytes) == moved


@pytest.mark.parametrize("is_double", [False, True])
@pytest.mark.parametrize("op", OPERATORS)
def test_a_candidate_says_what_tiles_do(op: str, is_double: bool) -> None:
    random = np.random.default_rng(0)
    checked = exact = cut = 0
    for nest in nests_with(op):
        wished = {axis: int(random.integers(1, nest.axis(axis).extent + 1)) for axis in tileable_axes(nest)}
        one = one_row(nest, ordered_sizes(nest, wished), ALIGNMENT, is_double)
        exact += check(nest, one)
        checked, cut = checked + 1, cut + bool(one.loops)
    assert checked >= 12 and cut >= 4 and exact >= 4


@pytest.mark.parametrize("op", OPERATORS)
def test_every_row_is_what_it_would_be_alone(op: str) -> None:
    checked = 0
    for nest in nests_with(op):
        for chosen in ((), *((axis,) for axis in tileable_axes(nest)), tileable_axes(nest)[:3]):
            for row in columns_of(nest, chosen, ALIGNMENT, True).rows(split=Split(2, 1e3, 4.0)):
                one = row.candidate()
                alone = one_row(nest, one.sizes, ALIGNMENT, True)
                assert one.sizes == ordered_sizes(nest, one.sizes) and set(one.loops) == set(alone.loops)
                assert (one.footprint_bytes, one.tile_count) == (alone.footprint_bytes, alone.tile_count)
                assert one.units == units_of(nest, one.loops)[0] > 1
                check(nest, one)
                checked += 1
    assert checked >= 20
