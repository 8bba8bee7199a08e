"""The stages, top to bottom. Read this first.

    model -> Graph -> Program -> Schedule -> Plan -> C project

Each arrow is a pure function from one frozen type to the next; nothing flows back. A verifier runs at the end of each
stage (inside it), and `Observer` sees every result, which is how `--dump-after` and the timings work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from tilegrad import zoo
from tilegrad.build.folder import write_folder
from tilegrad.codegen.project import Project, generate
from tilegrad.frontend import ImportedModel, SourceKind
from tilegrad.ir.graph import Graph
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import Program
from tilegrad.ir.schedule import Schedule
from tilegrad.memory.plan import plan_memory
from tilegrad.passes.batchnorm_policy import check_batchnorm_policy
from tilegrad.passes.fold_batchnorm import FoldBatchNorm
from tilegrad.passes.fuse import fuse
from tilegrad.passes.fuse_activation import FuseActivationGrad
from tilegrad.passes.fuse_dense_grad import FuseDenseGrad
from tilegrad.passes.fuse_outer import FuseOuterProduct
from tilegrad.passes.fuse_update import FuseUpdate
from tilegrad.passes.group_updates import GroupUpdates
from tilegrad.passes.inference import inference_program
from tilegrad.passes.order_end import OrderEnd
from tilegrad.passes.parameters import select
from tilegrad.passes.program import derive_program
from tilegrad.recipe import Recipe
from tilegrad.scheduling.options import ScheduleOptions
from tilegrad.scheduling.schedule import schedule_program
from tilegrad.targets.base import Target

STAGES = ("import", "canonicalize", "program", "schedule", "plan", "codegen")
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
    plan: Plan
    project: Project
    options: ScheduleOptions = field(default_factory=ScheduleOptions)

    @property
    def name(self) -> str:
        return self.program.name

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

    def write(self, folder: str | Path) -> Path:
        """Writes the C project; the folder appears complete or not at all."""
        write_folder(Path(folder), self.project.files)
        return Path(folder)


def canonical_graph(model: ImportedModel, recipe: Recipe) -> Graph:
    """The graph that the program is derived from, and that `inspect` describes."""
    graph = fuse(model.graph)
    return FoldBatchNorm().apply(graph) if recipe.batchnorm == "fold" else graph


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
        trainable = select(graph, model.parameters, recipe.train or default_train)
        return derive_program(graph, recipe, model.roles, trainable, recipe.loss or default_loss)

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
    program: Program = watch.run("program", lambda: inference_program(graph, recipe, model.roles))
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
    project: Project = watch.run("codegen", lambda: generate(plan, weights_as_c=weights_as_c))
    return Compiled(model, program, plan, project, options)
