"""What a model is and what training it costs, without running anything: what `tilegrad inspect` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tilegrad.analysis.lifetimes import align
from tilegrad.build.frames import StackUse
from tilegrad.compiled import Compiled
from tilegrad.costs.kernel_cost import uncounted_kernels
from tilegrad.fit import Fit
from tilegrad.fit.answer import Answer
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import ENTRIES, Program, Role
from tilegrad.passes.store import saved_bytes
from tilegrad.pipeline import parameters_in_use
from tilegrad.place.board import image_parts, place
from tilegrad.sequence.timing import Roofline
from tilegrad.targets.base import Target
from tilegrad.training.train import parameter_count


@dataclass(frozen=True)
class OperatorUse:
    """How often an operator runs in each entry, and the multiply-accumulates of all of them in one call."""

    name: str
    count: Mapping[str, int]
    macs: Mapping[str, int]


@dataclass(frozen=True)
class ParameterUse:
    """One initializer: what it is, whether this recipe trains it, and why."""

    name: str
    shape: tuple[int, ...]
    elements: int
    role: str
    trains: bool
    reason: str


@dataclass(frozen=True)
class EntryMemory:
    """The arena one entry needs; the arena of the program is the largest of them."""

    arena_bytes: int
    lower_bound_bytes: int


@dataclass(frozen=True)
class LevelMemory:
    used_bytes: int
    capacity_bytes: int | None
    lower_bound_bytes: int

    @property
    def fits(self) -> bool:
        return self.capacity_bytes is None or self.used_bytes <= self.capacity_bytes


@dataclass(frozen=True)
class Inspection:
    """The facts. `state_bytes` are by role, as aligned in memory; `advice` is what would make it fit, each by itself,
    and empty where everything does.

    `cycles` are estimated, of one call of each entry; `uncounted` are the kernels that were not counted for it.
    `image_bytes` are what the image of a board takes beside state and arena, by what it is for.
    `saved_activation_bytes` are what the forward pass leaves for the backward pass; `store` says as what.
    """

    model: str
    target: str
    batch: int
    loss: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    params: int
    trainable_params: int
    operators: tuple[OperatorUse, ...]
    macs: Mapping[str, int]
    parameters: tuple[ParameterUse, ...]
    state_bytes: Mapping[str, int]
    entries: Mapping[str, EntryMemory]
    image_bytes: Mapping[str, int]
    memory: Mapping[str, LevelMemory]
    c_lines: int
    notes: tuple[str, ...]
    stack: StackUse = field(default_factory=StackUse)
    advice: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    cycles: Mapping[str, int | None] = field(default_factory=dict)
    roofline: Roofline | None = None
    is_calibrated: bool = True
    cycles_word: str = "estimated cycles"
    fit: Fit | None = None
    ways: Answer | None = None
    saved_activation_bytes: int = 0
    store: str = "f32"

    @property
    def arena_bytes(self) -> int:
        return max(entry.arena_bytes for entry in self.entries.values())

    @property
    def arena_lower_bound_bytes(self) -> int:
        return max(entry.lower_bound_bytes for entry in self.entries.values())

    @property
    def fits(self) -> bool:
        return all(level.fits for level in self.memory.values())

    def as_json(self) -> dict[str, Any]:
        facts = asdict(self)
        del facts["cycles_word"]  # for people; `is_calibrated` says it
        facts["memory"] = {
            name: {"used": level.used_bytes, "capacity": level.capacity_bytes, "lower_bound": level.lower_bound_bytes}
            for name, level in self.memory.items()
        }
        facts["arena"] = {"used": self.arena_bytes, "lower_bound": self.arena_lower_bound_bytes}
        facts["stack"] = self.stack.as_json()
        facts["macs_per_step"] = self.macs["step"]
        facts["fits"] = self.fits
        facts["fit"] = None if self.fit is None else self.fit.as_json()
        facts["ways"] = None if self.ways is None else self.ways.as_json()
        return facts


def inspect_program(
    compiled: Compiled, target: Target | None = None, stack: StackUse | None = None, ways: Answer | None = None
) -> Inspection:
    """Describes a program; `target` has the real capacities where it was compiled for `target.without_limits()`.

    `ways` are what would make it fit. What fits into the RAM of a board but not into its banks is DoesNotFit.
    """
    program, plan = compiled.program, compiled.plan
    chip = target or compiled.target
    memory = {
        name: LevelMemory(use.used_bytes, chip.memory(name).capacity_bytes, use.lower_bound_bytes)
        for name, use in plan.memory.items()
    }
    infer = program.entries["infer"]
    facts = Inspection(
        model=program.name,
        target=chip.name,
        batch=program.recipe.batch,
        loss=program.loss,
        inputs={name: str(infer.types[name]) for name in infer.inputs},
        outputs={name: str(infer.types[name]) for name in infer.outputs},
        params=parameter_count(compiled),
        trainable_params=sum(tensor.type.size for tensor in program.trainable),
        operators=_operators(plan),
        macs={entry: plan.schedule.macs(entry) for entry in ENTRIES},
        parameters=_parameters(compiled),
        state_bytes=_state_bytes(program, plan.alignment_bytes),
        entries={name: EntryMemory(entry.arena_bytes, entry.lower_bound_bytes) for name, entry in plan.entries.items()},
        image_bytes=image_parts(plan.schedule),
        memory=memory,
        c_lines=compiled.project.line_count,
        notes=compiled.model.notes,
        stack=stack or StackUse(),
        uncounted=uncounted_kernels(plan.schedule),
        cycles=compiled.cycles,
        roofline=compiled.timing["step"].roofline if "step" in compiled.timing else None,
        is_calibrated=chip.is_calibrated,
        cycles_word=chip.cycles_word,
        fit=compiled.fit,
        ways=ways,
        advice=() if ways is None or ways.as_is.fits else ways.hints,
        saved_activation_bytes=saved_bytes(program.entries["step"]),
        store=str(program.recipe.store),
    )
    if facts.fits and chip.board is not None:
        place(replace(plan.schedule, target=chip), chip.board, plan.state_bytes, plan.arena_bytes)
    return facts


def _operators(plan: Plan) -> tuple[OperatorUse, ...]:
    """In order of first appearance, so that the table reads like the model."""
    counts: dict[str, Counter[str]] = {}
    macs: dict[str, Counter[str]] = {}
    for entry in ENTRIES:
        for launch in plan.schedule.entries[entry].launches:
            counts.setdefault(launch.node.op, Counter())[entry] += 1
            macs.setdefault(launch.node.op, Counter())[entry] += sum(nest.macs for nest in launch.nests)
    return tuple(
        OperatorUse(name, {entry: count[entry] for entry in ENTRIES}, {entry: macs[name][entry] for entry in ENTRIES})
        for name, count in counts.items()
    )


def _parameters(compiled: Compiled) -> tuple[ParameterUse, ...]:
    trained = {tensor.name for tensor in compiled.program.trainable}
    return tuple(
        ParameterUse(name, info.type.shape, info.type.size, info.role, name in trained, info.reason)
        for name, info in parameters_in_use(compiled.model, compiled.program.recipe).items()
    )


def _state_bytes(program: Program, alignment_bytes: int) -> dict[str, int]:
    sizes = {role.value: 0 for role in Role}
    for tensor in program.state:
        sizes[tensor.role.value] += align(tensor.type.size_bytes, alignment_bytes)
    return {role: size for role, size in sizes.items() if size}
