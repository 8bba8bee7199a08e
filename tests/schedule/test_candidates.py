"""The search weighs thousands of ways to cut a nest at once, in columns; what it says of one is what that way moves."""

from __future__ import annotations

from itertools import islice
from math import prod

import numpy as np
import pytest

from tilegrad.analysis.footprint import box_shape, load_count, moving_axes, tileable_axes, tiles, units_of
from tilegrad.analysis.lifetimes import align
from tilegrad.calibration.examples import graphs
from tilegrad.calibration.samples import nests_of
from tilegrad.ir.nest import Nest, operand_box, ordered_sizes
from tilegrad.ops import registry
from tilegrad.ops.example import Draw
from tilegrad.schedule.candidates import Candidate, Columns, one_row

ALIGNMENT = 8
OPERATORS = ("Gemm", "MatMul", "Conv", "MaxPool", "Transpose", "LayerNormalization", "SoftmaxCrossEntropyLoss", "Adam")


def walked_bytes(nest: Nest, one: Candidate) -> list[int]:
    """Tile by tile: a box is moved when one of its own loops has."""
    found = []
    for operand in nest.present:
        own = sum(1 << i for i in moving_axes(operand, one.loops))
        boxes = [tile for n, (tile, moved) in enumerate(tiles(nest, one.loops)) if n == 0 or moved & own]
        sizes = [prod(r.size for r in operand_box(operand, tile)) for tile in boxes]
        assert len(boxes) == load_count(operand, one.loops)
        found.append(operand.element_bytes * sum(sizes))
    return found


def check(nest: Nest, one: Candidate) -> bool:
    """Whether no box is cut off where an operand ends: those that are, are weighed as if they were not."""
    slots = []
    for operand in nest.present:
        count = 2 if one.is_double and moving_axes(operand, one.loops) else 1
        slots.append(count * align(prod(box_shape(operand, one.sizes)) * operand.element_bytes, ALIGNMENT))
    assert one.footprint_bytes == sum(slots)
    assert one.tile_count == prod(loop.count for loop in one.loops)
    moved = walked_bytes(nest, one)
    assert all(map(int.__ge__, one.moved_bytes, moved))
    return list(one.moved_bytes) == moved


@pytest.mark.parametrize("is_double", [False, True])
@pytest.mark.parametrize("op", OPERATORS)
def test_columns_say_what_tiles_do(op: str, is_double: bool) -> None:
    draw, random = Draw(0, largest=12), np.random.default_rng(0)
    checked = exact = cut = 0
    for graph in islice(graphs(registry.get(op), draw), 12):
        for _, nest in nests_of(graph):
            if any(axis.extent == 0 for axis in nest.axes):
                continue
            axes = tileable_axes(nest)
            wished = {axis: int(random.integers(1, nest.axis(axis).extent + 1)) for axis in axes}
            one = one_row(nest, ordered_sizes(nest, wished), ALIGNMENT, is_double)
            exact += check(nest, one)
            checked, cut = checked + 1, cut + bool(one.loops)
            columns = Columns(nest, {a: np.array([n]) for a, n in one.sizes.items()}, ALIGNMENT, is_double)
            parallel = [loop.axis for loop in one.loops if loop.axis not in reductions(nest)]
            assert int(columns.units(parallel)[0]) == units_of(nest, one.loops)[0]
    assert checked >= 12 and cut >= 4 and exact >= 4


def reductions(nest: Nest) -> set[str]:
    return {axis.name for axis in nest.axes if axis.kind.name == "REDUCTION"}
