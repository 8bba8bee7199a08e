"""The stages, top to bottom. Read this first.

    model -> Graph -> Program -> Schedule -> Plan -> Listing -> C project

Each arrow is a pure function from one frozen type to the next; nothing flows back. A verifier runs at the end of each
stage (inside it), and `Observer` sees every result, which is how `--dump-after` and the timings work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from tilegrad import zoo
from tilegrad.build.folder import write_folder
from tilegrad.codegen.project import Project, generate
from tilegrad.frontend import ImportedModel, SourceKind
from tilegrad.ir.graph import Graph
from tilegrad.ir.listing import Listing
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import Program
from tilegrad.ir.schedule import Schedule
from tilegrad.passes.batchnorm_policy import check_batchnorm_policy
from tilegrad.passes.fold_batchnorm import FoldBatchNorm, folded_parameters
from tilegrad.passes.fuse import fuse
from tilegrad.passes.fuse_activation import FuseActivationGrad
from tilegrad.passes.fuse_dense_grad import FuseDenseGrad
from tilegrad.passes.fuse_outer import FuseOuterProduct
from tilegrad.passes.fuse_update import FuseUpdate
from tilegrad.passes.group_updates import GroupUpdates
from tilegrad.passes.inference import inference_program
from tilegrad.passes.order_end import OrderEnd
from tilegrad.passes.parameters import ParameterInfo, select
from tilegrad.passes.program import derive_program
from tilegrad.place.plan import plan_memory
from tilegrad.recipe import Recipe
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.schedule.schedule import schedule_program
from tilegrad.sequence.sequence import sequence_plan
from tilegrad.sequence.timing import EntryTiming, time_listing
from tilegrad.targets.base import Target

STAGES = ("import", "canonicalize", "program", "schedule", "plan", "sequence", "codegen")
R = TypeVar("R")


@dataclass
class Observer:
    """Sees each stage's result; `seconds` collects how long each took."""

    on_stage: Callable[[str, object], None] | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, stage: str, work: Callable[[], R]) -> R:
        start = time.perf_counter()
        result = work()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start
        if self.on_stage is not None:
            self.on_stage(stage, result)
        return result


@dataclass(frozen=True)
class Compiled:
    """A model compiled for a target: what every stage made, and the C project."""

    model: ImportedModel
    program: Program
    listing: Listing
    project: Project
    options: ScheduleOptions = field(default_factory=ScheduleOptions)

    @property
    def name(self) -> str:
        return self.program.name

    @cached_property
    def timing(self) -> dict[str, EntryTiming]:
        """Estimated cycles of each entry, where the target has a scratchpad; nothing is run for it."""
        return time_listing(self.listing)

    @property
    def plan(self) -> Plan:
        return self.listing.plan

    @property
    def target(self) -> Target:
        return self.plan.schedule.target

    def unfused(self) -> Compiled:
        """The same with gradients that can be read, where the optimizer moved into the backward pass.

        Gradients take memory: what fits into L2 when fused may not without L3. Homes do not change the bits.
        """
        if not self.program.is_fused:
            return self
        home = "auto" if self.options.home == "L2" else self.options.home
        options = replace(self.options, fuses_update=False, home=home)
        return compile_model(self.model, self.program.recipe, self.target, options=options)

    def write(self, folder: str | Path, *, force: bool = False) -> Path:
        """Writes the C project; the folder appears complete or not at all.

        A folder that has one already keeps what is not ours. Files that were edited are refused, unless `force`.
        """
        write_folder(Path(folder), self.project.files, force=force)
        return Path(folder)


def canonical_graph(model: ImportedModel, recipe: Recipe) -> Graph:
    """The graph that the program is derived from."""
    graph = fuse(model.graph)
    return FoldBatchNorm().apply(graph) if recipe.batchnorm == "fold" else graph


def parameters_in_use(model: ImportedModel, recipe: Recipe) -> Mapping[str, ParameterInfo]:
    """What each initializer is under this recipe: folding BatchNorm makes biases, and leaves scales unused."""
    if recipe.batchnorm != "fold":
        return model.parameters
    return folded_parameters(model.parameters, FoldBatchNorm().fold(fuse(model.graph)))


def defaults(model: ImportedModel) -> tuple[str, str]:
    """The loss and the selection of parameters to use where the recipe names none."""
    if model.kind is SourceKind.ZOO:
        entry = zoo.describe(model.name)
        return entry.loss, entry.train
    return "cross_entropy", "all"


def compile_model(
    model: ImportedModel,
    recipe: Recipe,
    target: Target,
    observer: Observer | None = None,
    *,
    options: ScheduleOptions | None = None,
    weights_as_c: bool = False,
) -> Compiled:
    watch = observer or Observer()
    model = replace(model, notes=tuple(dict.fromkeys((*model.notes, *check_batchnorm_policy(model, recipe.batchnorm)))))
    graph: Graph = watch.run("canonicalize", lambda: canonical_graph(model, recipe))

    def derive() -> Program:
        default_loss, default_train = defaults(model)
        parameters = parameters_in_use(model, recipe)
        trainable = select(graph, parameters, recipe.train or default_train)
        roles = {name: info.role for name, info in parameters.items()}
        return derive_program(graph, recipe, roles, trainable, recipe.loss or default_loss)

    program: Program = watch.run("program", derive)
    return _compile_program(model, program, target, watch, options or ScheduleOptions(), weights_as_c)


def compile_inference(
    model: ImportedModel,
    recipe: Recipe,
    target: Target,
    observer: Observer | None = None,
    *,
    options: ScheduleOptions | None = None,
) -> Compiled:
    """A program whose only working entry is `infer`: no gradients, no optimizer, and none of their memory."""
    watch = observer or Observer()
    graph: Graph = watch.run("canonicalize", lambda: canonical_graph(model, recipe))
    roles = {name: info.role for name, info in parameters_in_use(model, recipe).items()}
    program: Program = watch.run("program", lambda: inference_program(graph, recipe, roles))
    return _compile_program(model, program, target, watch, options or ScheduleOptions(), weights_as_c=False)


def _compile_program(
    model: ImportedModel,
    program: Program,
    target: Target,
    watch: Observer,
    options: ScheduleOptions,
    weights_as_c: bool,
) -> Compiled:
    if options.fuses_update:
        program = watch.run("fuse", lambda: FuseUpdate().apply(program))
    for fusion in (FuseActivationGrad(), FuseOuterProduct(), FuseDenseGrad()):
        program = fusion.apply(program)
    if program.is_fused:
        program = OrderEnd().apply(GroupUpdates().apply(program))
    schedule: Schedule = watch.run("schedule", lambda: schedule_program(program, target, options))
    plan: Plan = watch.run("plan", lambda: plan_memory(schedule, options.home))
    listing: Listing = watch.run("sequence", lambda: sequence_plan(plan))
    project: Project = watch.run("codegen", lambda: generate(listing, weights_as_c=weights_as_c))
    return Compiled(model, program, listing, project, options)
