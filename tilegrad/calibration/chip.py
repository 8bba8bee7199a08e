"""`python -m tilegrad.calibration.chip`: measures kernels and conductor on `iss:siracusa` and writes measured.json.

Trainings of the zoo are run as they are; each event of their listings gets the cycle at which it happened. What the
conductor takes from act to act is the mean of what it took. How long kernel calls took, beside what counted
instructions say, gives each kernel a factor, a cost of the call, and a cost of code that is not in the cache.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from tilegrad.calibration import document
from tilegrad.calibration.aligned import Happened, align_trace
from tilegrad.calibration.cases import KIB, TARGET, Case
from tilegrad.calibration.document import conduct_lines, kernel_lines
from tilegrad.calibration.fit import non_negative_least_squares
from tilegrad.calibration.observed import Observation, TraceEvent, observe
from tilegrad.compiled import Compiled
from tilegrad.costs.conduct import Act, CodeCache, Conduct, Pair, PairCost, around
from tilegrad.costs.kernel_cost import KernelCosts
from tilegrad.costs.measured import FILE, KernelScale, Measured, as_json, load_measured
from tilegrad.ir.listing import Begin, End, EntryListing, Fetch, Load, Store, Wait
from tilegrad.schedule.schedule import known_choices
from tilegrad.targets.base import L1, L2, L3, Target, get

SOURCE = "iss:siracusa"
CASES = (
    *(Case(model, "auto", 128 * KIB) for model in ("simplemlp", "autoencoder_tiny", "mlp", "autoencoder", "dscnn")),
    *(Case(model, "auto", 128 * KIB) for model in ("resnet8", "mobilenetv1", "cct_lora", "cct")),
    *(Case(model, mode, 64 * KIB) for model in ("simplemlp", "autoencoder", "dscnn") for mode in ("single", "double")),
    *(Case(model, "untiled", 64 * KIB) for model in ("simplemlp", "autoencoder_tiny", "mlp", "autoencoder", "dscnn")),
    *(Case("simplemlp", mode, 128 * KIB, "sgd, accum 2") for mode in ("untiled", "auto", "single", "double")),
    *(Case("autoencoder_tiny", mode, 128 * KIB, "sgd, accum 2") for mode in ("untiled", "auto")),
    Case("mlp", "auto", 128 * KIB, "sgd, accum 2"),
    *(Case("autoencoder_tiny", "auto", 32 * KIB, recipe) for recipe in ("momentum, accum 2", "adam, accum 2")),
    *(Case(model, "auto", 64 * KIB, "momentum, accum 2") for model in ("simplemlp", "autoencoder_tiny", "mlp")),
    *(Case(model, "auto", 32 * KIB, "adam") for model in ("simplemlp", "autoencoder_tiny", "mlp")),
    Case("autoencoder", "auto", 32 * KIB),
    Case("dscnn", "auto", 32 * KIB),
)
LONG_COUNT_LESS = 0.6
# Short calls are measured by what they are off in cycles, long ones by the share of it.
SHORT_CYCLES = 400.0
# How many calls of a kernel weigh as much as what others of its kind take.
PRIOR_CALLS = 0.3
TYPICAL = KernelScale(1.05, 60.0, 500.0)
LEAST_FACTOR = 0.3
# Transfers whose time says how fast bytes move.
LONG_BYTES = 2048


@dataclass(frozen=True, slots=True)
class KernelCall:
    kernel: str
    level: str
    counted: float
    cycles: int
    weight: float


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
Ratios = dict[bool, list[tuple[float, float]]]


@dataclass
class Samples:
    """What was measured, over all cases. A walk is what happened in an entry, in order."""

    walks: list[Walk] = field(default_factory=list)
    waits: dict[Act, list[float]] = field(default_factory=lambda: defaultdict(list))
    wakes: dict[Act, list[float]] = field(default_factory=lambda: defaultdict(list))
    around: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    crowded: Ratios = field(default_factory=lambda: {True: [], False: []})
    far_crowded: Ratios = field(default_factory=lambda: {True: [], False: []})

    def add(self, compiled: Compiled, seen: Observation) -> None:
        for entry, events in seen.entries.items():
            listing = compiled.listing.entries.get(entry)
            if listing is None or not listing.events:
                continue
            happened = align_trace(listing, events)
            self.walks.append(list(walk(compiled.target, listing, happened, events[0].cycle, events[-1].cycle)))
            self.add_waits(happened, compiled.target.engine(L3, L2).enqueue_cycles)
            for inward, nominal, taken in _crowded(compiled.target, happened, events):
                self.crowded[inward].append((nominal, taken))
            for inward, nominal, taken in _far_crowded(compiled.target, events):
                self.far_crowded[inward].append((nominal, taken))
            if seen.counts.get(entry):
                self.around[entry].append(seen.counts[entry][-1] - seen.cycles(entry))

    def add_waits(self, happened: Sequence[Happened], enqueue_cycles: float) -> None:
        for one in happened:
            if one.act is Act.MOVE:
                self.waits[one.act].append(one.went - one.came - enqueue_cycles)
            elif not isinstance(one.event, Wait):
                continue
            elif one.arrived > one.came:
                self.wakes[one.act].append(one.went - one.arrived)
            elif one.arrived:
                self.waits[one.act].append(one.went - one.came)


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
            counted = costs.counted(listed.nest, sizes, level, target.cores).cycles
            computed = next(ends)
            yield KernelCall(listed.nest.kernel, level, counted, computed - one.went, weight**0.5)
        elif isinstance(one.event, Fetch | Load):
            arrived = one.arrived
        before, went = one.act, one.went
    yield Between((before, Act.STOP), ended - went, weight, transfer_cycles=arrived - went)


def _gone(walks: Sequence[Walk], kernels: Kernels) -> Iterator[tuple[KernelCall | Between, float]]:
    """Each thing that happened, with the share of its code that others had displaced."""
    for walk in walks:
        cache = CodeCache()
        for one in walk:
            if isinstance(one, KernelCall):
                yield one, cache.run(one.kernel, kernels.get((one.kernel, one.level), TYPICAL).cold)
            else:
                yield one, cache.run(one.pair)


def _crowded(
    target: Target, happened: Sequence[Happened], events: Sequence[TraceEvent]
) -> Iterator[tuple[bool, float, float]]:
    """Long transfers that went on while cores computed: which way, what they would take alone, and what they took."""
    engine, calls, begun = target.engine(L2, L1), [], 0
    for one in happened:
        if isinstance(one.event, Begin):
            begun = one.went
        elif isinstance(one.event, End):
            calls.append((begun, one.computed))
    for inward in (True, False):
        timing = engine.inward if inward else engine.outward
        ends = [event.cycle for event in events if event.kind == "D" and bool(event.a) is inward]
        kinds = (Fetch, Load) if inward else (Store,)
        parts = [
            (part.size_bytes, started)
            for one in happened
            if isinstance(one.event, Fetch | Load | Store) and isinstance(one.event, kinds)
            for part, started in zip(one.event.parts, one.parts, strict=True)
        ]
        free = at = 0
        for (size_bytes, started), end in zip(parts, ends, strict=True):
            start, free = max(started, free), end
            while at < len(calls) and calls[at][1] < start:
                at += 1
            if size_bytes >= LONG_BYTES and at < len(calls) and calls[at][0] <= start and end <= calls[at][1]:
                latency = timing.setup_cycles if start == started else 0.0
                yield inward, size_bytes * timing.cycles_per_byte, end - start - latency


def _far_crowded(target: Target, events: Sequence[TraceEvent]) -> Iterator[tuple[bool, float, float]]:
    """The same of long transfers between L2 and L3, which come one after the other."""
    engine, free = target.engine(L3, L2), 0
    started = [event for event in events if event.kind == "h"]
    for begin, end in zip(started, (event for event in events if event.kind == "H"), strict=True):
        inward = bool(begin.b)
        timing = engine.inward if inward else engine.outward
        start, free = max(begin.cycle, free), end.cycle
        if begin.a >= LONG_BYTES:
            yield inward, timing.cycles(begin.a), end.cycle - start


def fit_kernel(
    calls: Sequence[tuple[KernelCall, float]], typical: KernelScale, prior: float = PRIOR_CALLS
) -> KernelScale:
    """By least squares of relative errors, none of the three below zero; little is drawn to what is typical."""
    rows = [[call.counted, 1.0, gone] for call, gone in calls]
    measured = [float(call.cycles) for call, _ in calls]
    mean = sum(call.weight for call, _ in calls) / len(calls)
    weights = [call.weight / mean / max(call.cycles, SHORT_CYCLES) for call, _ in calls]
    x, y, w = np.array(rows), np.array(measured), np.array(weights)
    size = float(np.median(y))
    drawn = prior / size
    pulls = np.array([[size, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]) * drawn
    wanted = np.array([typical.factor * size, typical.call, typical.cold]) * drawn
    found = non_negative_least_squares(np.vstack([x * w[:, None], pulls]), np.concatenate([y * w, wanted]))
    factor = max(float(found[0]), LEAST_FACTOR)
    return KernelScale(round(factor, 4), round(float(found[1]), 1), round(float(found[2]), 1), len(calls))


def fit_kernels(walks: Sequence[Walk]) -> tuple[Kernels, dict[str, KernelScale]]:
    """How much of a kernel's code is gone follows from what others' code takes to fetch: so it is fitted twice."""
    kernels: Kernels = {}
    others: dict[str, KernelScale] = defaultdict(lambda: TYPICAL)
    for _ in range(3):
        groups: dict[tuple[str, str], list[tuple[KernelCall, float]]] = defaultdict(list)
        for one, gone in _gone(walks, kernels):
            if isinstance(one, KernelCall):
                groups[one.kernel, one.level].append((one, gone))
        kernels = {key: fit_kernel(found, others[key[1]]) for key, found in groups.items()}
        for level in {level for _, level in kernels}:
            own = [scale for (_, at), scale in kernels.items() if at == level]
            others[level] = KernelScale(
                round(float(np.median([scale.factor for scale in own])), 4),
                round(float(np.median([scale.call for scale in own])), 1),
                round(float(np.median([scale.cold for scale in own])), 1),
            )
    return kernels, dict(others)


def _kept(values: Sequence[tuple[Between, float]]) -> list[tuple[Between, float]]:
    """Without the largest few: among them are those that waited for a queue."""
    return sorted(values, key=lambda value: value[0].cycles)[: max(1, round(0.97 * len(values)))]


def _mean(values: Sequence[tuple[Between, float]]) -> float:
    kept = _kept(values)
    return round(max(0.0, sum(one.cycles * one.weight for one, _ in kept) / sum(one.weight for one, _ in kept)), 1)


def fit_pair(values: Sequence[tuple[Between, float]]) -> PairCost:
    """By least squares, none below zero; what nothing tells apart is in the first."""
    kept = _kept(values)
    weights = np.sqrt([one.weight for one, _ in kept])
    rows = np.array([[1.0, *around(gone, one.is_beside, one.transfer_cycles)] for one, gone in kept])
    drawn = PRIOR_CALLS * float(weights.max()) * np.eye(4)[1:]
    wanted = np.array([one.cycles for one, _ in kept]) * weights
    found = non_negative_least_squares(np.vstack([rows * weights[:, None], drawn]), np.append(wanted, np.zeros(3)))
    return PairCost(*(round(float(cycles), 1) for cycles in found))


def fit_conduct(samples: Samples, kernels: Kernels) -> Conduct:
    pairs: dict[Pair, list[tuple[Between, float]]] = defaultdict(list)
    acts: dict[Act, list[tuple[Between, float]]] = defaultdict(list)
    for one, gone in _gone(samples.walks, kernels):
        if isinstance(one, Between):
            pairs[one.pair].append((one, gone))
            acts[one.pair[1]].append((one, gone))
    return Conduct(
        {pair: fit_pair(values) for pair, values in pairs.items()},
        {act: _mean(values) for act, values in acts.items()},
        {act: round(float(np.median(values)), 1) for act, values in samples.waits.items()},
        {act: round(float(np.median(values)), 1) for act, values in samples.wakes.items()},
        {entry: round(float(np.median(cycles)), 1) for entry, cycles in samples.around.items()},
        (_ratio(samples.crowded[True]), _ratio(samples.crowded[False])),
        (_ratio(samples.far_crowded[True]), _ratio(samples.far_crowded[False])),
    )


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return round(max(1.0, sum(taken for _, taken in pairs) / sum(alone for alone, _ in pairs)), 3) if pairs else 1.0


def fit(samples: Samples) -> Measured:
    kernels, others = fit_kernels(samples.walks)
    return Measured(SOURCE, kernels, others, fit_conduct(samples, kernels))


def write_measured(measured: Measured, folder: Path, cases: Sequence[Case]) -> None:
    table = {**as_json(measured), "cases": [case.name for case in cases]}
    numbers = re.compile(r"\[\s+([\d.,\s]+?)\s+\]")
    text = numbers.sub(lambda found: f"[{' '.join(found[1].split())}]", json.dumps(table, indent=1))
    (folder / FILE).write_text(text + "\n", encoding="utf-8")
    load_measured.cache_clear()
    known_choices.cache_clear()
    document.update({"conduct": conduct_lines(measured), "measured-kernels": kernel_lines(measured)})


def _report(measured: Measured, before: Mapping[str, float]) -> Iterator[str]:
    for name, error in before.items():
        yield f"{name}: {100 * error:+.1f} %"
    yield f"{len(measured.kernels)} kernels, {len(measured.conduct.pairs)} pairs of acts"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="tiles are chosen by what was measured: so often")
    parser.add_argument("--models", nargs="*", help="only these")
    arguments = parser.parse_args()
    cases = [case for case in CASES if not arguments.models or case.model in arguments.models]
    target = get(TARGET)
    for _ in range(arguments.rounds):
        samples = Samples()
        errors = {}
        for case in cases:
            compiled = case.compile()
            seen = observe(compiled)
            samples.add(compiled, seen)
            estimate, cycles = compiled.timing["step"].cycles, seen.counts["step"][-1]
            errors[case.name] = estimate / cycles - 1.0
            print(f"{case.name}: {estimate:,.0f} estimated before, {cycles:,} measured", flush=True)
        measured = fit(samples)
        write_measured(measured, target.folder, cases)
        print("\n".join(_report(measured, errors)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
