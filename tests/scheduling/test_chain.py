"""Tilings that are chosen together: the cheapest path, and what neighbours hide of each other."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilegrad.ir.nest import Access, Axis, Index, Nest, Operand, Range, along
from tilegrad.ir.schedule import Loop, Slot, TileEstimate, Tiling
from tilegrad.scheduling.chain import WAITING_COUNTS, Link, choose, exposed_cycles
from tilegrad.scheduling.footprint import nth_tile, tiles
from tilegrad.scheduling.overlap import box_bytes
from tilegrad.targets.base import get

TARGET = get("siracusa")
SCRATCH = 4096


def map_nest(source: str, target: str) -> Nest:
    """y [c, s] from x [c, s]."""
    index = (along("c"), along("s"))
    operands = (
        Operand("x", source, Access.READ, (8, 16), index),
        Operand("y", target, Access.WRITE, (8, 16), index),
    )
    return Nest("relu", (Axis("c", 8), Axis("s", 16)), operands)


def link(source: str, target: str, *loops: Loop, cycles: float = 1000.0, table_bytes: int = 64) -> Link:
    nest = map_nest(source, target)
    tile = nth_tile(nest, loops, 0)
    assert tile is not None
    box = tile["c"].size * tile["s"].size * 4
    slots = {"x": Slot(0, box, 2), "y": Slot(2 * box, box, 2)}
    tiling = Tiling(loops, slots, True, 4 * box, TileEstimate(cycles, cycles, 0.0, 0, "", cycles))
    return Link(nest, tiling, table_bytes, {"x": 4, "y": 4}, {}, TARGET)


BY_C, BY_S = Loop("c", 8, 2), Loop("s", 16, 4)


@pytest.mark.parametrize("is_on_top", [False, True])
def test_a_neighbour_that_is_cut_alike_does_not_wait(is_on_top: bool) -> None:
    for loop in (BY_C, BY_S):
        assert exposed_cycles(link("a", "b", loop), link("b", "c", loop), is_on_top, SCRATCH) == 0.0
    for first, second in ((BY_C, BY_S), (BY_S, BY_C)):
        waits = exposed_cycles(link("a", "b", first), link("b", "c", second), is_on_top, SCRATCH)
        assert waits > 0.0
        # What another nest wrote is there already.
        assert exposed_cycles(link("a", "b", first), link("d", "c", second), is_on_top, SCRATCH) == 0.0


@pytest.mark.parametrize("is_on_top", [False, True])
def test_a_neighbour_without_room_waits(is_on_top: bool) -> None:
    before, after = link("a", "b", BY_C), link("d", "c", BY_C)
    both = before.size_bytes + after.size_bytes
    assert exposed_cycles(before, after, is_on_top, both) == 0.0
    assert exposed_cycles(before, after, is_on_top, before.size_bytes + 100) > 0.0


def test_a_short_neighbour_hides_little() -> None:
    short = link("a", "b", BY_C, cycles=4.0)
    assert 0.0 < exposed_cycles(short, link("d", "c", BY_C), False, SCRATCH) < link("d", "c", BY_C).loads[0].cycles


@given(st.data())
def test_the_chosen_path_is_the_cheapest(data: st.DataObject) -> None:
    loops = st.sampled_from([(BY_C,), (BY_S,), (Loop("c", 8, 4), Loop("s", 16, 8)), ()])
    values = "abcdef"
    choices = [
        [
            link(values[i], values[i + 1], *data.draw(loops), cycles=data.draw(st.floats(1.0, 200.0)))
            for _ in range(data.draw(st.integers(1, 3)))
        ]
        for i in range(data.draw(st.integers(1, 4)))
    ]

    def cost(path: tuple[Link, ...]) -> float:
        waiting = sum(load.cycles for load in path[0].loads)
        for i in range(1, len(path)):
            waiting += exposed_cycles(path[i - 1], path[i], bool(i % 2), SCRATCH)
        return sum(one.tiling.estimate.steady_cycles for one in path) + WAITING_COUNTS * waiting

    chosen = choose(choices, SCRATCH)
    path = tuple(
        next(one for one in links if one.tiling is tiling) for links, tiling in zip(choices, chosen, strict=True)
    )
    assert cost(path) == pytest.approx(min(map(cost, product(*choices))))


def test_nth_tile_is_the_nth() -> None:
    nest = map_nest("a", "b")
    loops = (Loop("c", 8, 3), Loop("s", 16, 5))
    every = [tile for tile, _ in tiles(nest, loops)]
    assert [nth_tile(nest, loops, i) for i in range(len(every))] == every
    assert nth_tile(nest, loops, -1) == every[-1] and nth_tile(nest, loops, -2) == every[-2]
    assert nth_tile(nest, loops, len(every)) is None and nth_tile(nest, (), -2) is None


@st.composite
def operands(draw: st.DrawFn) -> tuple[Operand, dict[str, Range], int]:
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    axes = [f"a{i}" for i in range(len(shape))]
    tile = {}
    for axis, extent in zip(axes, shape, strict=True):
        start = draw(st.integers(0, extent - 1))
        tile[axis] = Range(start, draw(st.integers(start + 1, extent)))
    index = tuple(Index(((axis, 1),)) for axis in axes)
    return Operand("x", "v", Access.READ, shape, index), tile, draw(st.integers(0, 40))


def every_byte(operand: Operand, tile: dict[str, Range], offset: int) -> set[int]:
    found = set()
    for position in product(*(range(tile[f"a{d}"].start, tile[f"a{d}"].stop) for d in range(len(operand.shape)))):
        flat = 0
        for extent, at in zip(operand.shape, position, strict=True):
            flat = flat * extent + at
        found |= set(range(offset + 4 * flat, offset + 4 * flat + 4))
    return found


@given(operands(), operands())
def test_boxes_meet_where_they_share_a_byte(
    a: tuple[Operand, dict[str, Range], int], b: tuple[Operand, dict[str, Range], int]
) -> None:
    first, second = (box_bytes(operand, tile, "arena", offset, 4) for operand, tile, offset in (a, b))
    assert first is not None and second is not None
    for box, expected in ((first, every_byte(*a)), (second, every_byte(*b))):
        assert {int(s) + i for s in box.starts for i in range(box.run_bytes)} == expected
    assert first.meets(second) == bool(every_byte(*a) & every_byte(*b)) == second.meets(first)
