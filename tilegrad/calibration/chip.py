"""`python -m tilegrad.calibration.chip`: measures kernels and conductor on `iss:siracusa` and writes measured.json.

Trainings of the zoo are run as they are; each event of their listings gets the cycle at which it happened. What the
conductor takes from act to act is the mean of what it took. How long kernel calls took, beside what counted
instructions say, gives each kernel a factor, a cost of the call, and a cost of code that is not in the cache.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path

import numpy as np

from tilegrad.calibration import document
from tilegrad.calibration.aligned import Happened, align_trace
from tilegrad.calibration.cases import KIB, TARGET, Case
from tilegrad.calibration.document import conduct_lines, kernel_lines
from tilegrad.calibration.fit import non_negative_least_squares
from tilegrad.calibration.observed import Observation, observe
from tilegrad.calibration.transfers import Moved, Span, far_crowded, fit_moved, moved
from tilegrad.costs.conduct import Act, CodeCache, Conduct, Pair, PairCost, behind
from tilegrad.costs.kernel_cost import KernelCosts
from tilegrad.costs.measured import FILE, KernelScale, Measured, as_json, load_measured
from tilegrad.costs.own_loops import ends_of
from tilegrad.ir.listing import Begin, End, EntryListing, Fetch, Load, Wait
from tilegrad.targets.base import L1, L2, L3, Target, get

SOURCE = "iss:siracusa"
CASES = (
    *(Case(model, "auto", 128 * KIB) for model in ("simplemlp", "autoencoder_tiny", "mlp", "autoencoder", "dscnn")),
    *(Case(model, "auto", 128 * KIB) for model in ("resnet8", "mobilenetv1", "cct_lora", "cct")),
    *(Case(model, mode, 64 * KIB) for model in ("simplemlp", "autoencoder", "dscnn") for mode in ("single", "double")),
    *(Case(model, "untiled", 64 * KIB) for model in ("simplemlp", "autoencoder_tiny", "mlp", "autoencoder", "dscnn")),
    *(
        Case(model, "untiled", 64 * KIB, recipe)
        for model in ("simplemlp", "autoencoder_tiny")
        for recipe in ("momentum, accum 2", "adam, accum 2")
    ),
    *(Case("simplemlp", mode, 128 * KIB, "sgd, accum 2") for mode in ("untiled", "auto", "single", "double")),
    *(Case("autoencoder_tiny", mode, 128 * KIB, "sgd, accum 2") for mode in ("untiled", "auto")),
    Case("mlp", "auto", 128 * KIB, "sgd, accum 2"),
    *(Case("autoencoder_tiny", "auto", 32 * KIB, recipe) for recipe in ("momentum, accum 2", "adam, accum 2")),
    *(Case(model, "auto", 64 * KIB, "momentum, accum 2") for model in ("simplemlp", "autoencoder_tiny", "mlp")),
    *(Case(model, "auto", 32 * KIB, "adam") for model in ("simplemlp", "autoencoder_tiny", "mlp")),
    Case("autoencoder", "auto", 32 * KIB),
    Case("dscnn", "auto", 32 * KIB),
    *(Case("mlp", "auto", 128 * KIB, batch=batch) for batch in (4, 32)),
    *(Case("autoencoder", "auto", 128 * KIB, batch=batch) for batch in (8, 32)),
    *(Case("autoencoder_tiny", "auto", 128 * KIB, batch=batch) for batch in (4, 7, 16)),
    *(Case("simplemlp", "auto", 128 * KIB, batch=batch) for batch in (8, 32)),
    Case("autoencoder_tiny", "untiled", 64 * KIB, batch=8),
    Case("mlp", "untiled", 64 * KIB, batch=5),
)
LONG_COUNT_LESS = 0.6
# Below this, calls are measured by what they are off in cycles; longer ones count by their cycles, so that what all of
# a kernel's calls take together is right.
SHORT_CYCLES = 400.0
# How many calls of a kernel weigh as much as what others of its kind take.
PRIOR_CALLS = 0.3
TYPICAL = KernelScale(1.05, 60.0, 500.0)
LEAST_FACTOR = 0.3
# The way to the cores and back, with arguments and constants in L2. More is no call's: large tiles that take less than
# their counts say would make small ones dear.
MOST_CALL_CYCLES = 400.0


@dataclass(frozen=True, slots=True)
class KernelCall:
    kernel: str
    level: str
    counted: float
    cycles: int
    weight: float
    began: int = 0
    accesses: float = 0.0


@dataclass(frozen=True, slots=True)
class Between:
    """What the conductor took from one act to the next. The longer a training is, the less it is about its conductor,
    and the less it weighs."""

    pair: Pair
    cycles: float
    weight: float
    is_beside: bool = False
    transfer_cycles: float = 0.0


Kernels = dict[tuple[str, str], KernelScale]
Walk = list[KernelCall | Between]
Calls = dict[tuple[str, str], list[tuple[KernelCall, float]]]


@dataclass
class Samples:
    """What was measured, over all cases. A walk is what happened in an entry, in order; an update's goes on with that
    of the step before it, whose code it finds in the cache. Behind an update samples are made, which displaces all."""

    walks: list[Walk] = field(default_factory=list)
    moves: list[float] = field(default_factory=list)
    around: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    moved: list[Moved] = field(default_factory=list)
    far_crowded: list[tuple[bool, float, float]] = field(default_factory=list)

    def add(self, seen: Observation) -> None:
        compiled = seen.compiled
        for entry, events in seen.entries.items():
            listing = compiled.listing.entries.get(entry)
            if listing is None or not listing.events:
                continue
            happened = align_trace(listing, events)
            if entry != "update" or not self.walks:
                self.walks.append([])
            own = list(walk(compiled.target, listing, happened, events[0].cycle, events[-1].cycle))
            self.walks[-1] += own
            enqueue = compiled.target.engine(L3, L2).enqueue_cycles
            self.moves += [one.went - one.came - enqueue for one in happened if one.act is Act.MOVE]
            on_tiles = [one for one in own if isinstance(one, KernelCall) and one.level == compiled.target.compute]
            computing = [
                Span(one.began, one.began + one.cycles, rate=one.accesses / max(one.cycles, 1)) for one in on_tiles
            ]
            self.moved += moved(compiled.target, happened, computing)
            self.far_crowded += far_crowded(compiled.target, events)
            if seen.counts.get(entry):
                self.around[entry].append(seen.counts[entry][-1] - seen.cycles(entry))


def walk(
    target: Target, listing: EntryListing, happened: Sequence[Happened], begun: int, ended: int
) -> Iterator[KernelCall | Between]:
    """A kernel call lasts from where cores begin to where the last one is done."""
    costs, enqueued = KernelCosts(target), target.engine(L2, L1).enqueue_cycles
    weight = (ended - begun) ** -LONG_COUNT_LESS
    ends = iter([one.computed for one in happened if isinstance(one.event, End)])
    before, went, computed, arrived = Act.START, begun, 0, 0
    for one in happened:
        cycles = one.came - went - (enqueued if one.parts else 0)
        yield Between((before, one.act), cycles, weight, went < computed, arrived - went)
        for a, b in pairwise(one.parts):
            yield Between((one.act, Act.PART), b - a - enqueued, weight)
        if isinstance(one.event, Begin):
            listed = listing.nests[one.event.nest]
            level = target.home if listed.tiling is None else target.compute
            sizes = {axis: tile_range.size for axis, tile_range in one.event.ranges.items()}
            counted = costs.counted(listed.nest, sizes, level, target.cores, ends_of(listed.nest, one.event.ranges))
            computed, kernel = next(ends), costs.measured_as(listed.nest, sizes)
            cycles = computed - one.went
            yield KernelCall(kernel, level, counted.cycles, cycles, weight**0.5, one.went, counted.accesses)
        elif isinstance(one.event, Fetch | Load):
            arrived = one.arrived
        # Behind a wait, time counts from where there was nothing to wait for.
        is_told = isinstance(one.event, Wait) and one.arrived > 0
        before, went = one.act, max(one.came, one.arrived) if is_told else one.went
    yield Between((before, Act.STOP), ended - went, weight, transfer_cycles=arrived - went)


def _gone(
    walks: Sequence[Walk], kernels: Kernels, pairs: Mapping[Pair, PairCost]
) -> tuple[Calls, dict[Pair, list[tuple[Between, float]]]]:
    """Calls by kernel and what was between by pair, each with the share of its code that others had displaced."""
    calls: Calls = defaultdict(list)
    between: dict[Pair, list[tuple[Between, float]]] = defaultdict(list)
    for walk in walks:
        cache = CodeCache()
        for one in walk:
            if isinstance(one, KernelCall):
                key = one.kernel, one.level
                calls[key].append((one, cache.run(one.kernel, kernels.get(key, TYPICAL).cold)))
            else:
                cost = pairs.get(one.pair)
                between[one.pair].append((one, cache.run(one.pair, 0.0 if cost is None else cost.gone)))
    return calls, between


def fit_kernel(
    calls: Sequence[tuple[KernelCall, float]], typical: KernelScale, prior: float = PRIOR_CALLS
) -> KernelScale:
    """By least squares, none of the three below zero; little is drawn to what is typical, and a call is no more than it
    can be."""
    mean = sum(call.weight for call, _ in calls) / len(calls)
    weights = [call.weight / mean / max(call.cycles, SHORT_CYCLES) ** 0.5 for call, _ in calls]
    x = np.array([[call.counted, 1.0, gone] for call, gone in calls])
    y, w = np.array([float(call.cycles) for call, _ in calls]), np.array(weights)
    size = float(np.median(y))
    drawn = prior / size**0.5
    pulls = np.array([[size, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]) * drawn
    wanted = np.array([typical.factor * size, typical.call, typical.cold]) * drawn
    rows, wanted = np.vstack([x * w[:, None], pulls]), np.concatenate([y * w, wanted])
    factor, call, cold = map(float, non_negative_least_squares(rows, wanted))
    if call > MOST_CALL_CYCLES:
        call = MOST_CALL_CYCLES
        factor, cold = map(float, non_negative_least_squares(rows[:, [0, 2]], wanted - call * rows[:, 1]))
    return KernelScale(round(max(factor, LEAST_FACTOR), 4), round(call, 1), round(cold, 1), len(calls))


def fit_walks(walks: Sequence[Walk]) -> tuple[Kernels, dict[str, KernelScale], dict[Pair, PairCost]]:
    """How much of any code is gone follows from what others' code takes to fetch: so it is fitted three times."""
    kernels: Kernels = {}
    pairs: dict[Pair, PairCost] = {}
    others: dict[str, KernelScale] = defaultdict(lambda: TYPICAL)
    for _ in range(3):
        calls, between = _gone(walks, kernels, pairs)
        kernels = {key: fit_kernel(found, others[key[1]]) for key, found in calls.items()}
        pairs = {pair: fit_pair(values) for pair, values in between.items()}
        for level in {level for _, level in kernels}:
            own = [scale for (_, at), scale in kernels.items() if at == level]
            factor, call, cold = np.median([(scale.factor, scale.call, scale.cold) for scale in own], axis=0)
            others[level] = KernelScale(round(float(factor), 4), round(float(call), 1), round(float(cold), 1))
    return kernels, dict(others), pairs


def _kept(values: Sequence[tuple[Between, float]]) -> list[tuple[Between, float]]:
    """Without the largest few: among them are those that waited for a queue."""
    return sorted(values, key=lambda value: value[0].cycles)[: max(1, round(0.97 * len(values)))]


def _mean(values: Sequence[tuple[Between, float]]) -> float:
    kept = [one for one, _ in _kept(values)]
    return round(max(0.0, sum(one.cycles * one.weight for one in kept) / sum(one.weight for one in kept)), 1)


def fit_pair(values: Sequence[tuple[Between, float]]) -> PairCost:
    """By least squares, none below zero; what nothing tells apart is in the first."""
    kept = _kept(values)
    weights = np.sqrt([one.weight for one, _ in kept])
    rows = np.array([[1.0, gone, one.is_beside, behind(one.transfer_cycles)] for one, gone in kept])
    drawn = PRIOR_CALLS * float(weights.max()) * np.eye(4)[1:]
    wanted = np.array([one.cycles for one, _ in kept]) * weights
    found = non_negative_least_squares(np.vstack([rows * weights[:, None], drawn]), np.append(wanted, np.zeros(3)))
    return PairCost(*(round(float(cycles), 1) for cycles in found))


def fit_conduct(samples: Samples, pairs: Mapping[Pair, PairCost]) -> Conduct:
    acts: dict[Act, list[tuple[Between, float]]] = defaultdict(list)
    for one in chain.from_iterable(samples.walks):
        if isinstance(one, Between):
            acts[one.pair[1]].append((one, 0.0))
    return Conduct(
        pairs,
        {act: _mean(values) for act, values in acts.items()},
        round(float(np.median(samples.moves or [0.0])), 1),
        {entry: round(float(np.median(cycles)), 1) for entry, cycles in samples.around.items()},
        *fit_moved(samples.moved),
        (_far_ratio(samples, True), _far_ratio(samples, False)),
    )


def _far_ratio(samples: Samples, inward: bool) -> float:
    own = [(alone, taken) for way, alone, taken in samples.far_crowded if way is inward]
    return round(max(1.0, sum(taken for _, taken in own) / sum(alone for alone, _ in own)), 3) if own else 1.0


def fit(samples: Samples) -> Measured:
    kernels, others, pairs = fit_walks(samples.walks)
    return Measured(SOURCE, kernels, others, fit_conduct(samples, pairs))


def with_new_kernels(known: Measured, samples: Samples) -> Measured:
    """What is known stays as it is; kernels that were never measured get figures beside it."""
    kernels = dict(known.kernels)
    for _ in range(3):
        calls, _ = _gone(samples.walks, kernels, known.conduct.pairs)
        new = {key: found for key, found in calls.items() if key not in known.kernels}
        kernels |= {key: fit_kernel(found, known.others[key[1]]) for key, found in new.items()}
    return replace(known, kernels=kernels)


def write_measured(measured: Measured, folder: Path, cases: Sequence[Case]) -> None:
    table = {**as_json(measured), "cases": [case.name for case in cases]}
    (folder / FILE).write_text(document.table_text(table), encoding="utf-8")
    document.update({"conduct": conduct_lines(measured), "measured-kernels": kernel_lines(measured)})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", help="only these")
    parser.add_argument("--new", action="store_true", help="only kernels that were never measured; all else stays")
    arguments = parser.parse_args()
    cases = [case for case in CASES if not arguments.models or case.model in arguments.models]
    target, samples = get(TARGET), Samples()
    for case in cases:
        seen = observe(case.compile())
        samples.add(seen)
        estimate, cycles = seen.compiled.timing["step"].cycles, seen.counts["step"][-1]
        error = 100 * (estimate / cycles - 1.0)
        print(f"{case.name}: {estimate:,.0f} estimated before, {cycles:,} measured: {error:+.1f} %", flush=True)
    known = load_measured(target.folder) if arguments.new else None
    measured = fit(samples) if known is None else with_new_kernels(known, samples)
    write_measured(measured, target.folder, CASES if arguments.new else cases)
    print(f"{len(measured.kernels)} kernels, {len(measured.conduct.pairs)} pairs of acts")
    return 0


if __name__ == "__main__":
    sys.exit(main())
