"""Cycles of a kernel call, from counted instructions.

A tile's trip counts (costs/derived.py, costs/loops) times the coefficients that were fitted to counts under QEMU
(costs.json of the target) give the instruction mix of the busiest core; the chip's stall rules (`Target.costs`) turn a
mix into cycles. Nothing of that is a rate: `KernelCosts.mix` shows what an estimate is made of. Engines of a chip that
is described by its rates (`Target.compute_engines`) are the other case.
docs/cost-model.md has the evidence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from itertools import chain
from math import prod
from operator import mul
from pathlib import Path
from typing import Any

from tilegrad.costs.conduct import Conduct
from tilegrad.costs.derived import family_of
from tilegrad.costs.loops.base import Counter, Sizes, Trips, call_of, dot, sum_of
from tilegrad.costs.measured import Measured, form_name, load_measured
from tilegrad.costs.own_loops import Ends, own_loops
from tilegrad.errors import InternalError
from tilegrad.ir.nest import Nest, NestKind, box_sizes
from tilegrad.ir.schedule import Schedule
from tilegrad.targets.base import ComputeEngine, CoreCosts, Target

CLASSES = tuple(
    "i_total i_fma i_fp_other i_fdiv_sqrt i_branch_taken i_jump i_div load_use data_loads data_stores l0_misses".split()
)
LINES = "l0_misses"
# Instructions of the busiest core, by class (docs/cost-model.md says which), none of those that are not there;
# `all_fdiv_sqrt` is the sum over the cores.
InstructionMix = Mapping[str, float]


def class_cycles(costs: CoreCosts, access_cycles: float) -> dict[str, float]:
    """What one instruction of each class costs a core that has everything to itself; a load or store of an operand
    costs `access_cycles` more."""
    return {
        "i_total": 1.0,
        "i_branch_taken": costs.taken_branch_extra,
        "i_jump": costs.jump_extra,
        "load_use": costs.load_use_extra,
        "i_fdiv_sqrt": costs.divide_sqrt_cycles - 1.0,
        "i_div": costs.integer_divide_extra,
        LINES: costs.line_miss_cycles,
        "data_loads": access_cycles,
        "data_stores": access_cycles,
    }


@dataclass(frozen=True, slots=True)
class Span:
    """A kernel call on all cores: `cycles` where all begin together.

    `alone` is the busiest core's time with everything to itself, `shared` its time beside the core on the same FPU.
    `accesses` are loads and stores of operands, by all cores.
    """

    cycles: float
    alone: float
    shared: float
    accesses: float = 0.0

    @property
    def accesses_per_cycle(self) -> float:
        return self.accesses / self.cycles if self.cycles else 0.0

    def later(self, cycles: float) -> Span:
        """The same where every core takes so many cycles more."""
        return Span(self.cycles + cycles, self.alone + cycles, self.shared + cycles, self.accesses)

    def and_then(self, other: Span) -> Span:
        return Span(
            self.cycles + other.cycles, self.alone + other.alone, self.shared + other.shared,
            self.accesses + other.accesses,
        )  # fmt: skip

    def times(self, factor: float) -> Span:
        return Span(self.cycles * factor, self.alone * factor, self.shared * factor, self.accesses * factor)

    def ending(self, delay: float) -> float:
        """Cycles from fork to barrier where the conducting core joins late.

        Until it joins, its partner has their FPU to itself; when the partner is done, it has. So of the delay two cores
        that would be in each other's way all the time lose nothing, and two that never are lose all of it.
        """
        if delay <= self.alone:
            return self.cycles + delay * (2.0 - self.shared / self.alone) if self.alone else self.cycles + delay
        return self.cycles + delay + self.alone - self.shared


def cluster_span(
    alone: float, fpu_instructions: float, all_divisions: float, cores: int, fpus: int, costs: CoreCosts
) -> Span:
    """`alone` is the busiest core's time with everything to itself.

    Two cores on one FPU: an FPU instruction finds one of the partner's in the way as often as the partner issues one.
    The one divider serves all cores: at first they queue for it, and it bounds the whole from below.
    """
    cycles = shared = alone
    if cores > fpus and alone > 0:
        cycles = shared = max(alone + fpu_instructions * fpu_instructions / alone, 2.0 * fpu_instructions)
    if all_divisions > 0:
        cycles += (cores - 1) * costs.divide_sqrt_cycles
        cycles = max(cycles, all_divisions * costs.divide_sqrt_cycles)
    return Span(cycles, alone, shared)


def span_in_turns(alone: float, fpu_instructions: float, cores: int, fpus: int) -> Span:
    """Of loops in which a core does something else between two FPU instructions: two cores on one FPU take turns, and
    wait for each other only where the FPU has no time left."""
    cycles = max(alone, 2.0 * fpu_instructions) if cores > fpus else alone
    return Span(cycles, alone, cycles)


def call_cycles(cores: int, costs: CoreCosts) -> float:
    """Fork and barrier of a call, where nothing else was measured."""
    return costs.call_one_core_cycles if cores == 1 else costs.call_all_cores_cycles


def cycles_of_mix(mix: InstructionMix, target: Target, level: str, cores: int) -> float:
    """The formula on a mix, predicted or counted."""
    assert target.costs is not None
    weights = class_cycles(target.costs, float(target.memory(level).core_extra_cycles or 0))
    alone = sum(weight * mix.get(name, 0.0) for name, weight in weights.items())
    divisions = mix.get("all_fdiv_sqrt", 0.0) if cores > 1 else 0.0
    fpu = mix.get("i_fma", 0.0) + mix.get("i_fp_other", 0.0)
    span = cluster_span(alone, fpu, divisions, cores, target.fpus, target.costs)
    return span.cycles + call_cycles(cores, target.costs)


@cache
def load_table(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise InternalError(f"no kernel costs at {path.name}: run make calibrate")
    return dict(json.loads(path.read_text(encoding="utf-8")))


class _Coefficients:
    """One variant's coefficients, combined into what the formula needs."""

    def __init__(self, classes: Mapping[str, Sequence[float]], target: Target) -> None:
        assert target.costs is not None
        self.classes = classes
        near = [memory for memory in target.memories if memory.core_extra_cycles is not None]
        weights = {memory.name: class_cycles(target.costs, float(memory.core_extra_cycles or 0)) for memory in near}
        self.alone = {level: self._combined(own) for level, own in weights.items()}
        self.fpu = self._combined({"i_fma": 1.0, "i_fp_other": 1.0})
        self.lines = self._combined({LINES: target.costs.line_miss_cycles})
        self.accesses = self._combined({"data_loads": 1.0, "data_stores": 1.0})
        divisions = tuple(classes.get("i_fdiv_sqrt", ()))
        self.divisions = divisions if any(divisions) else None

    def _combined(self, weights: Mapping[str, float]) -> Trips:
        nothing = 0.0, self.classes["i_total"]
        return sum_of(nothing, *[(weights[name], self.classes[name]) for name in weights if name in self.classes])


@dataclass(slots=True)
class _BoundNest:
    """A nest with its trip counter and coefficients; remembers what it was asked."""

    nest: Nest
    counter: Counter
    coefficients: _Coefficients
    known: dict[tuple[object, ...], Span] = field(default_factory=dict)


def uncounted_kernels(schedule: Schedule) -> tuple[str, ...]:
    """Those whose cycles rest on no counts of their own: wherever cycles are shown, they are named."""
    if schedule.target.costs is None or schedule.target.compute_engines:
        return ()
    launches = chain.from_iterable(entry.launches for entry in schedule.entries.values())
    kernels = {kernel for launch in launches for nest in launch.nests for kernel in nest.kernels}
    return tuple(sorted(kernel for kernel in kernels if not kernel_costs(schedule.target).is_counted(kernel)))


def estimates_are(schedule: Schedule) -> str:
    """What its estimated cycles are, in a few words: kernels that nobody counted are named."""
    guessed = ", ".join(uncounted_kernels(schedule))
    return f"{schedule.target.cycles_are}, uncounted: {guessed}" if guessed else schedule.target.cycles_are


@dataclass(frozen=True)
class KernelCosts:
    """Estimates for one target. Cycles are those of the cluster, fork and barrier included."""

    target: Target
    _bound: dict[NestKind, _BoundNest] = field(default_factory=dict, compare=False, repr=False)
    _coefficients: dict[tuple[str, str], _Coefficients] = field(default_factory=dict, compare=False, repr=False)

    @property
    def table(self) -> dict[str, Any]:
        return load_table(self.target.folder / "costs.json")

    def is_counted(self, kernel: str) -> bool:
        """Whether the estimate rests on counts of this kernel: if not, it is what counted kernels of such a nest take
        on average."""
        return kernel in self.table["kernels"]

    def _bind(self, nest: Nest) -> _BoundNest:
        found = self._bound.get(nest.kind)
        if found is not None:
            return found
        kind, nest = nest.kind, nest if nest.pointers == nest.operands else replace(nest, operands=nest.pointers)
        entry = self.table["kernels"].get(nest.kernel)
        family = family_of(nest, entry)
        variants = (entry or self.table["uncounted"])["variants"]
        bound = _BoundNest(nest, family.bind(nest), self._variant(nest.kernel, family.variant(nest), variants))
        self._bound[kind] = bound
        return bound

    def _variant(self, kernel: str, variant: str, variants: Mapping[str, Any]) -> _Coefficients:
        """A variant that was never counted takes the coefficients of the one whose description is nearest."""
        key = (kernel, variant)
        if key not in self._coefficients:
            wanted = set(variant.split())
            nearest = min(variants, key=lambda name: (len(wanted ^ set(name.split())), name))
            self._coefficients[key] = _Coefficients(variants[nearest]["classes"], self.target)
        return self._coefficients[key]

    def measured_as(self, nest: Nest, sizes: Sizes) -> str:
        """The kernel, with the form of its loops where tiles of other sizes go to others."""
        own = None if self.measured is None else own_loops(nest.kernel, sizes)
        return nest.kernel if own is None else form_name(nest.kernel, own.form)

    def code_of(self, nest: Nest, sizes: Sizes) -> tuple[str, ...]:
        """All kernels that run on a tile, so called."""
        return (self.measured_as(nest, sizes), *nest.kernels[1:])

    def cycles(self, nest: Nest, sizes: Sizes, level: str, cores: int, ends: Ends | None = None) -> float:
        """Estimated cycles of one call on a tile of these sizes, whose operands are in `level`: from the middle of the
        nest (or all of it), where it is not known whether it begins or `ends` sums."""
        return self.span(nest, sizes, level, cores, ends).cycles

    def span(self, nest: Nest, sizes: Sizes, level: str, cores: int, ends: Ends | None = None) -> Span:
        """The same with what it takes where the conducting core comes late."""
        engine = self.target.compute_engine(nest.counts_macs)
        if engine is not None:
            return self._at_rate(engine, nest, sizes, level)
        span = self._own_span(nest.without_epilogues, sizes, level, cores, ends)
        for epilogue in nest.epilogues:
            box = box_sizes(nest.operand(epilogue.result), sizes)
            span = span.and_then(self._own_span(epilogue.nest, epilogue.sizes(box), level, cores, None))
        return span

    def _own_span(self, nest: Nest, sizes: Sizes, level: str, cores: int, ends: Ends | None) -> Span:
        """Without epilogues."""
        known, key = self._bind(nest).known, (*sizes.values(), level, cores, ends)
        found = known.get(key)
        if found is None:
            counted = self.counted(nest, sizes, level, cores, ends)
            found = known[key] = self._called(self.measured_as(nest, sizes), counted, level, cores)
        return found

    def _at_rate(self, engine: ComputeEngine, nest: Nest, sizes: Mapping[str, int], level: str) -> Span:
        """On an engine with a rate. Where it computes in a farther memory, it waits for every byte of that."""
        points = float(prod(sizes.values()))
        if engine.macs_per_cycle is not None:
            extent = prod(axis.extent for axis in nest.axes)
            points = points * nest.macs / extent if extent else 0.0
        cycles = points / (engine.macs_per_cycle or engine.elements_per_cycle or 1.0) + engine.call_cycles
        if level != self.target.compute:
            timing = self.target.engine(level, self.target.compute).inward
            cycles += sum(timing.cycles(operand.size_bytes) for operand in nest.present)
        return Span(cycles, cycles, cycles)

    def _called(self, kernel: str, span: Span, level: str, cores: int) -> Span:
        """With the way to the cores and back, and what was measured of the kernel."""
        if self.measured is None:
            assert self.target.costs is not None
            return replace(span, cycles=span.cycles + call_cycles(cores, self.target.costs))
        scale = self.measured.scale(kernel, level)
        scaled = span.times(scale.factor)
        return replace(scaled, cycles=scaled.cycles + scale.call, accesses=span.accesses)

    def counted(self, nest: Nest, sizes: Sizes, level: str, cores: int, ends: Ends | None = None) -> Span:
        """What the counted instructions of a call take, without the way to the cores and back."""
        assert self.target.costs is not None
        own, trips, divisions = self._trips(nest, sizes, cores, None, ends)
        cluster = cores, self.target.fpus, self.target.costs
        divisions, accesses = divisions if cores > 1 else 0.0, cores * dot(own.accesses, trips)
        loops = None if self.measured is None else own_loops(nest.kernel, sizes)
        if loops is None:
            span = cluster_span(dot(own.alone[level], trips), dot(own.fpu, trips), divisions, *cluster)
            return replace(span, accesses=accesses)
        in_turns = [*map(mul, loops.turns, trips)]
        rest = sum_of((1, trips), (-1, in_turns))
        alone = sum_of((1, own.alone[level]), (-1, [*map(mul, loops.code, own.lines)]))
        span = cluster_span(dot(alone, rest), dot(own.fpu, rest), divisions, *cluster)
        turns = span_in_turns(dot(alone, in_turns), dot(own.fpu, in_turns), cores, self.target.fpus)
        return replace(span.and_then(turns), accesses=accesses)

    def mix(self, nest: Nest, sizes: Sizes, cores: int, starts: Sizes | None = None) -> InstructionMix:
        """The busiest core's instructions for one call, by class. With `starts`, of a tile that begins there."""
        own, trips, divisions = self._trips(nest, sizes, cores, starts)
        return {**{name: dot(loads, trips) for name, loads in own.classes.items()}, "all_fdiv_sqrt": divisions}

    def _trips(
        self, nest: Nest, sizes: Sizes, cores: int, starts: Sizes | None, ends: Ends | None = None
    ) -> tuple[_Coefficients, Trips, float]:
        """Of the busiest core, with what each trip takes; and the divisions of all cores."""
        bound = self._bind(nest)
        own, divisions = bound.coefficients, 0.0

        def counted(cores: int, loads: Trips) -> Trips:
            call = call_of(bound.nest, sizes, starts, cores, loads)
            return bound.counter(call if ends is None else replace(call, first=ends.first, last=ends.last))

        trips = counted(cores, own.classes["i_total"])
        if own.divisions is not None:
            divisions = dot(own.divisions, counted(1, ()))
        return own, trips, divisions

    @cached_property
    def measured(self) -> Measured | None:
        """Nothing of engines with a rate: what cores take is not theirs."""
        if self.target.compute_engines:
            return None
        return load_measured(self.target.folder)

    @cached_property
    def conduct(self) -> Conduct:
        """What the conductor spends from act to act; nothing where that was never measured."""
        return Conduct() if self.measured is None else self.measured.conduct

    def cold_cycles(self, kernel: str, level: str) -> float:
        """What all code of a kernel, or of a form of its loops, takes to fetch."""
        return 0.0 if self.measured is None else self.measured.scale(kernel, level).cold


@lru_cache(maxsize=16)
def kernel_costs(target: Target) -> KernelCosts:
    """Those that stages of this process share, with all calls they ever asked for. Whoever writes other costs of a
    target forgets them (`cache_clear`)."""
    return KernelCosts(target)
