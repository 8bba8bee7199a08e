"""Estimates: consistent with each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilegrad as tg
from tests.calibration.nests import nest_of
from tilegrad.costs.kernel_cost import KernelCosts, Span, call_cycles, cluster_span, cycles_of_mix, uncounted_kernels
from tilegrad.costs.own_loops import WHOLE, Ends, ends_of
from tilegrad.ir.nest import Nest, Range
from tilegrad.targets.base import CoreCosts, get

COSTS = KernelCosts(get("siracusa"))


GEMM = nest_of("Gemm", [(64, 64), (64, 64)])
ROW = nest_of("Gemm", [(1, 64), (64, 64)])
CONV = nest_of("Conv", [(1, 16, 32, 32), (16, 16, 3, 3)], kernel_shape=(3, 3), pads=(1, 1, 1, 1))
SOFTMAX = nest_of("Softmax", [(64, 64)], axis=-1)
RELU = nest_of("Relu", [(4096,)])


def whole_sizes(nest: Nest) -> dict[str, int]:
    return {axis.name: axis.extent for axis in nest.axes}


@pytest.mark.parametrize("nest", [ROW, CONV, SOFTMAX], ids=lambda nest: nest.kernel)
@pytest.mark.parametrize("level", ["L1", "L2"])
@pytest.mark.parametrize("cores", [1, 2, 8])
def test_cycles_follow_from_the_mix(nest: Nest, level: str, cores: int) -> None:
    sizes = whole_sizes(nest)
    assert COSTS.target.costs is not None and COSTS.measured is not None
    call = call_cycles(cores, COSTS.target.costs)
    expected = cycles_of_mix(COSTS.mix(nest, sizes, cores), COSTS.target, level, cores) - call
    assert COSTS.counted(nest, sizes, level, cores).cycles == pytest.approx(expected, rel=1e-3)
    scale = COSTS.measured.scale(nest.kernel, level)
    assert COSTS.cycles(nest, sizes, level, cores) == pytest.approx(scale.factor * expected + scale.call, rel=1e-3)


def test_rows_and_blocks_of_a_product_are_measured_apart() -> None:
    """Three rows go to the loops of one; four are a strip of blocks; an outer product has neither."""
    measured = COSTS.measured
    assert measured is not None
    names = [COSTS.measured_as(GEMM, {"m": m, "n": 64, "k": 64}) for m in (1, 3, 4, 9)]
    assert names == ["gemm_nn", "gemm_nn", "gemm_nn, blocks", "gemm_nn, blocks"]
    assert COSTS.measured_as(GEMM, {"m": 64, "n": 64, "k": 1}) == "gemm_nn" and COSTS.measured_as(CONV, {}) == "conv"
    assert measured.scale(names[2], "L1") != measured.scale("gemm_nn", "L1")
    assert measured.scale("gemm_nn, another form", "L1") == measured.scale("gemm_nn", "L1")


def test_blocks_are_bound_by_the_fpu() -> None:
    """Two cores on one FPU do a multiply-add of a block each in two cycles, and their code is their own: so with many k
    that is what a call is counted to take. A core with its own FPU takes what its instructions do."""
    sizes = {"m": 32, "n": 32, "k": 1000}
    nest = nest_of("Gemm", [(32, 1000), (1000, 32)])
    counted = COSTS.counted(nest, sizes, "L1", 8)
    assert counted.cycles == pytest.approx(2 * nest.macs / 8, rel=0.05) and counted.cycles > 2 * nest.macs / 8
    assert counted.cycles == counted.shared > counted.alone
    assert COSTS.counted(nest, sizes, "L1", 4).cycles == COSTS.counted(nest, sizes, "L1", 4).alone
    mix = COSTS.mix(nest, sizes, 4)
    lost = COSTS.target.costs.line_miss_cycles * mix["l0_misses"] if COSTS.target.costs is not None else 0.0
    call = call_cycles(4, CoreCosts())
    expected = cycles_of_mix(mix, COSTS.target, "L1", 4) - call
    assert expected - lost <= COSTS.counted(nest, sizes, "L1", 4).cycles < expected


def test_tiles_that_end_sums_take_longer() -> None:
    """A bias and a Relu come with the last of the tiles along k; where nobody knows, it is a tile from the middle."""
    nest = nest_of("Gemm", [(32, 64), (64, 32), (32,)])
    sizes = {"m": 32, "n": 32, "k": 16}
    first, middle, last = (COSTS.cycles(nest, sizes, "L1", 8, Ends(*ends)) for ends in ((1, 0), (0, 0), (0, 1)))
    assert first <= middle < last and COSTS.cycles(nest, sizes, "L1", 8) == middle
    whole = COSTS.cycles(nest, {**sizes, "k": 64}, "L1", 8)
    assert COSTS.cycles(nest, {**sizes, "k": 64}, "L1", 8, WHOLE) == whole < first + 2 * middle + last
    ranges = [{"m": Range(0, 32), "n": Range(0, 32), "k": Range(k, k + 16)} for k in (0, 16, 48)]
    assert [ends_of(nest, tile) for tile in ranges] == [(True, False), (False, False), (False, True)]


@pytest.mark.parametrize("nest", [GEMM, CONV, SOFTMAX], ids=lambda nest: nest.kernel)
def test_more_cores_are_faster_and_l2_is_slower(nest: Nest) -> None:
    sizes = whole_sizes(nest)
    one, two, eight = (COSTS.cycles(nest, sizes, "L1", cores) for cores in (1, 2, 8))
    assert eight < two < one
    assert one / two == pytest.approx(2.0, rel=0.1)
    assert COSTS.cycles(nest, sizes, "L2", 8) > 2 * eight


def test_blocked_products_come_near_the_machine() -> None:
    """The calibration set's own blocked product does 3.2 to 3.7 MAC per cycle in L1, 0.85 in L2. What was measured is
    within some per cent, so that an estimate may pass the four of the machine by as much."""
    macs = GEMM.macs
    assert 2.8 <= macs / COSTS.cycles(GEMM, whole_sizes(GEMM), "L1", 8) <= 4.1
    assert 0.6 <= macs / COSTS.cycles(GEMM, whole_sizes(GEMM), "L2", 8) <= 1.2
    assert 2.8 <= CONV.macs / COSTS.cycles(CONV, whole_sizes(CONV), "L1", 8) <= 4.1


def test_a_tile_in_the_middle_has_more_taps_than_one_at_the_edge() -> None:
    sizes = {**whole_sizes(CONV), "oh": 8}
    at_edge = COSTS.mix(CONV, sizes, 1, {"oh": 0})
    inside = COSTS.mix(CONV, sizes, 1, {"oh": 8})
    assert inside["i_fma"] > at_edge["i_fma"]
    assert COSTS.mix(CONV, sizes, 1)["i_fma"] == inside["i_fma"]


def test_continuing_a_sum_costs_loads() -> None:
    sizes = {**whole_sizes(GEMM), "k": 32}
    first, second = (COSTS.mix(GEMM, sizes, 1, {"m": 0, "n": 0, "k": k}) for k in (0, 32))
    assert second["data_loads"] > first["data_loads"]


def test_an_uncounted_kernel_costs_what_counted_ones_of_such_a_nest_do() -> None:
    """A map that nobody counted lies between a plain one and a division, and is known to be a guess."""
    nest = replace(RELU, kernel="of_somebody_else")
    assert COSTS.is_counted("relu") and not COSTS.is_counted(nest.kernel)
    for cores in (1, 8):
        guess, plain = (COSTS.cycles(one, whole_sizes(one), "L1", cores) for one in (nest, RELU))
        assert plain < guess < 50 * plain
    one, eight = (COSTS.cycles(nest, {"i": 4096}, "L1", cores) for cores in (1, 8))
    assert eight == pytest.approx(one / 8, rel=0.5)


def test_uncounted_kernels_are_named() -> None:
    program = tg.compile("simplemlp", target="siracusa").plan.schedule
    assert uncounted_kernels(program) == ()
    entry = program.entries["step"]
    launch = replace(entry.launches[0], nests=(replace(entry.launches[0].nests[0], kernel="of_somebody_else"),))
    changed = replace(program, entries={**program.entries, "step": replace(entry, launches=(launch,))})
    assert uncounted_kernels(changed) == ("of_somebody_else",)
    assert uncounted_kernels(replace(changed, target=get("host"))) == ()


def test_a_core_that_comes_late_costs_what_its_partner_cannot_use() -> None:
    """Two cores on one FPU that do nothing else lose nothing; two that never meet there lose all of the delay."""
    fpu_bound, apart = Span(1050.0, 500.0, 1000.0), Span(550.0, 500.0, 500.0)
    for delay in (0.0, 100.0, 500.0):
        assert fpu_bound.ending(delay) == 1050.0
        assert apart.ending(delay) == 550.0 + delay
    # Later than the partner's end, all of what is left is done alone.
    assert fpu_bound.ending(700.0) == 50.0 + 700.0 + 500.0


@given(alone=st.floats(1.0, 1e6), share=st.floats(0.0, 1.0), early=st.floats(0.0, 1e6), later=st.floats(0.0, 1e6))
def test_a_later_core_never_ends_earlier(alone: float, share: float, early: float, later: float) -> None:
    span = cluster_span(alone, share * alone, 0.0, 8, 4, CoreCosts())
    first, second = span.ending(min(early, later)), span.ending(max(early, later))
    assert span.cycles <= first * (1 + 1e-9) and first <= second * (1 + 1e-9)
    assert second <= span.cycles + max(early, later) + 1e-6 * span.cycles
