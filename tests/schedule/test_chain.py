"""Tilings that are chosen together: the cheapest path, and what neighbours hide of each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilegrad.analysis.footprint import nth_tile, tiles
from tilegrad.analysis.overlap import box_bytes
from tilegrad.costs.kernel_cost import KernelCosts
from tilegrad.ir.nest import Access, Axis, Index, Nest, Operand, Range, along
from tilegrad.ir.schedule import Loop, Slot, TileEstimate, Tiling
from tilegrad.schedule import chain
from tilegrad.schedule.chain import WAITING_COUNTS, Edge, Link, Waits, cheapest_path
from tilegrad.schedule.judge import Judge
from tilegrad.targets.base import get

TARGET = get("siracusa")
SCRATCH = 4096
JUDGE = Judge(TARGET, KernelCosts(TARGET))


def exposed_cycles(before: Link, link: Link, is_on_top: bool, scratch: int, arriving: tuple[str, ...] = ()) -> float:
    ((cycles,),) = Waits(JUDGE, scratch).between(before, link, is_on_top, arriving)
    return cycles


def choose(choices: list[list[Link]], scratch: int, hides: bool) -> list[Tiling]:
    """Of links with one way each, those of a nest together."""
    links = [Link(own[0].nest, [edge for one in own for edge in one.edges], own[0].homes) for own in choices]
    return chain.choose(links, Waits(JUDGE, scratch), hides)


def map_nest(source: str, target: str) -> Nest:
    """y [c, s] from x [c, s]."""
    index = (along("c"), along("s"))
    operands = (
        Operand("x", source, Access.READ, (8, 16), index),
        Operand("y", target, Access.WRITE, (8, 16), index),
    )
    return Nest("relu", (Axis("c", 8), Axis("s", 16)), operands)


def link(source: str, target: str, *loops: Loop, cycles: float = 1000.0, dma_cycles: float = 0.0) -> Link:
    nest = map_nest(source, target)
    tile = nth_tile(nest, loops, 0)
    assert tile is not None
    box = tile["c"].size * tile["s"].size * 4
    count = 2 if loops else 1
    slots = {"x": Slot(0, box, count), "y": Slot(count * box, box, count)}
    tiling = Tiling(loops, slots, bool(loops), 2 * count * box, TileEstimate(cycles, cycles, dma_cycles, 0, "", cycles))
    return Link(nest, [Edge(nest, tiling, 64)], (source, target))


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
    both = before.edges[0].size_bytes + after.edges[0].size_bytes
    assert exposed_cycles(before, after, is_on_top, both) == 0.0
    assert exposed_cycles(before, after, is_on_top, before.edges[0].size_bytes + 100) > 0.0


def test_a_short_neighbour_hides_little() -> None:
    short = link("a", "b", BY_C, cycles=4.0)
    first = link("d", "c", BY_C).edges[0].loads
    alone = JUDGE.exposed(0.0, tuple(load.box.shape for load in first))
    assert 0.0 < exposed_cycles(short, link("d", "c", BY_C), False, SCRATCH) < alone


@given(st.data(), st.sampled_from(WAITING_COUNTS))
def test_the_path_is_the_cheapest(data: st.DataObject, weight: float) -> None:
    counts = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    number = st.integers(0, 9)
    steady = [[data.draw(number) for _ in range(count)] for count in counts]
    waits = [
        [[data.draw(number) for _ in range(before)] for _ in range(count)]
        for before, count in zip([1, *counts], counts, strict=False)
    ]

    def costs(path: Sequence[int]) -> tuple[float, float]:
        cycles = sum(own[k] for own, k in zip(steady, path, strict=True))
        waiting = sum(own[k][j] for own, j, k in zip(waits, (0, *path), path, strict=False))
        return cycles + weight * waiting, cycles + waiting

    cycles, path = cheapest_path(steady, waits, weight)
    assert costs(path)[0] == min(costs(other)[0] for other in product(*map(range, counts)))
    assert costs(path)[1] == pytest.approx(cycles)


def test_hiding_costs_little() -> None:
    """Cut along s both pass data on at once. Where that takes longer than the waits that it saves, it is chosen if that
    is little of all, and not if it is much."""
    for cycles, is_hidden in ((50_000.0, True), (100.0, False)):
        waits = exposed_cycles(link("a", "b", BY_C, cycles=cycles), link("b", "c", BY_S), False, SCRATCH)
        choices = [
            [link("a", "b", BY_C, cycles=cycles), link("a", "b", BY_S, cycles=cycles + waits + 60.0)],
            [link("b", "c", BY_S, cycles=cycles)],
        ]
        assert (choose(choices, SCRATCH, hides=False)[0] is choices[0][1].edges[0].tiling) is is_hidden


def test_hiding_may_cost_more_where_it_is_asked_for() -> None:
    """The first nest has nothing before it: cut, it shows less of its load, but takes longer. A little is paid for
    that, and not much."""
    for cycles, is_paid in ((20_240.0, True), (40_000.0, False)):
        whole = link("a", "b", cycles=20_000.0, dma_cycles=100.0)
        cut = link("a", "b", BY_S, cycles=cycles, dma_cycles=100.0)
        assert choose([[whole, cut]], SCRATCH, hides=False) == [whole.edges[0].tiling]
        assert choose([[whole, cut]], SCRATCH, hides=True) == [(cut if is_paid else whole).edges[0].tiling]


def test_what_is_whole_in_scratchpad_is_passed_on() -> None:
    before, after = link("a", "b"), link("b", "c")
    assert exposed_cycles(before, after, False, SCRATCH) == 0.0
    assert exposed_cycles(before, after, False, before.edges[0].size_bytes + after.edges[0].size_bytes - 8) > 0.0
    assert exposed_cycles(link("a", "b", BY_C), after, False, SCRATCH) > 0.0
    # What another nest has just made may be on its way while a nest of one tile computes.
    other = link("d", "c")
    assert exposed_cycles(before, other, False, SCRATCH, arriving=("d",)) > 0.0
    assert exposed_cycles(link("a", "b", BY_C, cycles=2000.0), other, False, SCRATCH, arriving=("d",)) == 0.0


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
    first, second = (box_bytes(operand, tile, "arena", offset) for operand, tile, offset in (a, b))
    assert first is not None and second is not None
    for box, expected in ((first, every_byte(*a)), (second, every_byte(*b))):
        assert {int(s) + i for s in box.starts for i in range(box.run_bytes)} == expected
    assert first.meets(second) == bool(every_byte(*a) & every_byte(*b)) == second.meets(first)
