"""Tilings are judged by the clock: what a nest alone is expected to take is what its listing takes.

The judge plays the first tiles with the average of what they move, and takes the rest to be like the last of them. So
where tiles are even it differs from the listing, which knows each transfer, by a few per cent: by what the first tile
does not store, the last does not load, and a step of an outer loop moves more. TOLERANCE is what that came to here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from tests.schedule.programs import KIB, imported, recipe_of, siracusa
from tests.sequence.clock_cases import CONDUCT
from tests.sequence.toy import CHIP, ENTRY, Toy, ToyCosts, chip, copy_nest, sum_nest, tiling_of, timed, with_events
from tilegrad.costs.kernel_cost import KernelCosts, Span
from tilegrad.costs.own_loops import Ends
from tilegrad.ir.listing import Fetch, Wait
from tilegrad.ir.nest import Nest
from tilegrad.ir.schedule import TileEstimate
from tilegrad.pipeline import Observer, compile_model
from tilegrad.schedule.candidates import Candidate, one_row
from tilegrad.schedule.judge import Judge
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.schedule.tiling import TilingOptions, TilingSearch
from tilegrad.targets.base import Target

TOLERANCE = 0.06
COSTS = ToyCosts(conduct=CONDUCT)
NESTS = [
    (copy_nest(16), {"m": 4}),
    (copy_nest(32), {"m": 4}),
    (copy_nest(32), {"m": 16}),
    (copy_nest(64), {"m": 8}),
    (copy_nest(16), {}),
    (sum_nest(8, 8), {"m": 4, "k": 4}),
    (sum_nest(8, 16), {"m": 2, "k": 8}),
    (sum_nest(6, 8), {"m": 3}),
    (sum_nest(8, 8), {"k": 2}),
]


def candidate(nest: Nest, tiles: Mapping[str, int], is_double: bool) -> Candidate:
    return one_row(nest, {axis.name: tiles.get(axis.name, axis.extent) for axis in nest.axes}, 8, is_double)


def judged(
    nest: Nest, one: Candidate, costs: object, target: Target, overlaps: bool = False, shown: float = 1.0
) -> TileEstimate:
    judge = Judge(target, costs)  # type: ignore[arg-type]
    return judge.estimate(nest, one, judge.compute_cycles(nest, one), overlaps, shown)


def estimate(nest: Nest, tiles: Mapping[str, int], is_double: bool, costs: object, target: Target) -> TileEstimate:
    return judged(nest, candidate(nest, tiles, is_double), costs, target)


def listed(nest: Nest, tiles: Mapping[str, int], is_double: bool, costs: object, target: Target) -> float:
    """Cycles of the nest alone: without its table, which comes while the nest before it runs."""
    listing = Toy([(nest, tiling_of(nest, tiles, is_double))], target).listing()
    events = listing.entries[ENTRY].events
    tables = {event.transfer for event in events if isinstance(event, Fetch)}
    kept = [e for e in events if not isinstance(e, Fetch) and not (isinstance(e, Wait) and e.transfer in tables)]
    return timed(with_events(listing, kept), costs).cycles  # type: ignore[arg-type]


@pytest.mark.parametrize("target", [CHIP, chip({"queue_depth": 1}), chip({"duplex": False}), chip(cores=1)])
@pytest.mark.parametrize("is_double", [False, True])
def test_a_nest_alone_takes_what_it_is_judged_to(target: Target, is_double: bool) -> None:
    for nest, tiles in NESTS:
        if is_double and not tiles:
            continue
        expected = listed(nest, tiles, is_double, COSTS, target)
        assert estimate(nest, tiles, is_double, COSTS, target).cycles == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize("tile", [2, 3, 4, 5, 8])
def test_what_ends_a_sum_is_judged_once_for_each(tile: int) -> None:
    """Four tiles along m, each of which ends its sums once, however these are cut: also with a smaller last tile."""
    nest, tiles = sum_nest(8, 8), {"m": 2, "k": tile}
    ending = [
        estimate(nest, tiles, False, ToyCosts(conduct=CONDUCT, finish=finish), CHIP).compute_cycles
        for finish in (0.0, 1000.0)
    ]
    assert ending[1] - ending[0] == 4 * 1000
    costs = ToyCosts(conduct=CONDUCT, finish=1000.0)
    expected = listed(nest, tiles, False, costs, CHIP)
    assert estimate(nest, tiles, False, costs, CHIP).cycles == pytest.approx(expected, rel=TOLERANCE)


def test_one_tile_is_judged_on_paper() -> None:
    """16 numbers in one tile, conducting free: 5 to start, 64 bytes, 10 set-up: 79; 16 steps: 180; 5, 128, 10: 143."""
    found = estimate(copy_nest(16), {}, False, ToyCosts(), CHIP)
    assert (found.cycles, found.compute_cycles, found.steady_cycles) == (79 + 180 + 143, 180, 180)
    assert (found.dma_cycles, found.dma_bytes) == (64 + 128, 128)
    hidden = judged(copy_nest(16), candidate(copy_nest(16), {}, False), ToyCosts(), CHIP, overlaps=True, shown=0.5)
    assert hidden.cycles == 180 + (79 + 143) / 2


@dataclass
class Slowed:
    """The chip's costs, with one kernel slower."""

    costs: KernelCosts
    kernel: str
    factor: float

    @property
    def conduct(self) -> object:
        return self.costs.conduct

    def cold_cycles(self, kernel: str, level: str) -> float:
        return self.costs.cold_cycles(kernel, level)

    def code_of(self, nest: Nest, sizes: Mapping[str, int]) -> tuple[str, ...]:
        return self.costs.code_of(nest, sizes)

    def span(self, nest: Nest, sizes: Mapping[str, int], level: str, cores: int, ends: Ends | None = None) -> Span:
        found = self.costs.span(nest, sizes, level, cores, ends)
        if nest.kernel != self.kernel:
            return found
        return Span(found.cycles * self.factor, found.alone * self.factor, found.shared * self.factor)

    def cycles(self, nest: Nest, sizes: Mapping[str, int], level: str, cores: int, ends: Ends | None = None) -> float:
        return self.span(nest, sizes, level, cores, ends).cycles


def real_nests() -> dict[str, tuple[str, Nest]]:
    """One nest of each kernel of a model, with its operator."""
    seen: dict[str, object] = {}
    watch = Observer(lambda stage, result: seen.setdefault(stage, result))  # type: ignore[arg-type]
    compile_model(imported("odd_cnn"), recipe_of("odd_cnn"), siracusa(16 * KIB), watch, options=ScheduleOptions())
    schedule = seen["schedule"]
    launches = schedule.entries["step"].launches  # type: ignore[attr-defined]
    return {nest.kernel: (launch.node.op, nest) for launch in launches for nest in launch.nests}


def test_a_slower_kernel_is_dearer() -> None:
    """Every choice for every kernel of a model; where transfers or the conductor take the time, it may be no faster."""
    target = siracusa(16 * KIB)
    costs = KernelCosts(target)
    dearer = tried = 0
    for kernel, (op, nest) in real_nests().items():
        search = TilingSearch(TilingOptions(target, "auto", costs), op, nest)
        for is_double in (False, True):
            for one in search._candidates(is_double)[:2]:
                before = judged(nest, one, costs, target)
                after = judged(nest, one, Slowed(costs, kernel, 1.5), target)
                other = judged(nest, one, Slowed(costs, "another", 1.5), target)
                assert after.cycles >= before.cycles == other.cycles
                assert after.compute_cycles == pytest.approx(1.5 * before.compute_cycles)
                tried += 1
                dearer += after.cycles > before.cycles
    assert tried > 40 and dearer > 0.75 * tried


def test_the_best_tiling_takes_no_longer_where_kernels_are_faster() -> None:
    """What is chosen follows the costs, too."""
    target = siracusa(16 * KIB)
    costs = KernelCosts(target)
    for kernel, (op, nest) in list(real_nests().items())[:4]:
        slowed = Slowed(costs, kernel, 2.0)
        best = TilingSearch(TilingOptions(target, "auto", costs), op, nest).choices("n")[0][0].estimate
        slow = TilingSearch(TilingOptions(target, "auto", slowed), op, nest).choices("n")[0][0].estimate  # type: ignore[arg-type]
        assert best.cycles < slow.cycles
