"""The stages, top to bottom. Read this first.

    model -> Graph -> Program -> Schedule -> Plan -> Listing -> C project

Each arrow is a pure function from one frozen type to the next; nothing flows back. A verifier runs at the end of each
stage (inside it), and `Observer` sees every result, which is how `--dump-after` and the timings work.

What is rewritten on the way, in which order and for which targets is said by `MODEL_PASSES`, `GRAPH_PASSES`,
`FORWARD_PASSES`, `PROGRAM_PASSES`, `SPLIT` and `FIT`: the command line and `tilegrad.compile` give the same C. Each has
its name here, and no pass runs elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any, Generic, TypeVar

from tilegrad import zoo
from tilegrad.analysis.verify import verify_graph
from tilegrad.codegen.project import Project, generate
from tilegrad.compiled import Compiled
from tilegrad.errors import DoesNotFit
from tilegrad.fit import Fit, fitted
from tilegrad.fit.answer import Answer, answer, explained
from tilegrad.fit.channels import choose, training_bytes
from tilegrad.fit.levels import fitted_levels
from tilegrad.frontend import ImportedModel, SourceKind
from tilegrad.frontend.batchnorm_policy import check_batchnorm_policy
from tilegrad.frontend.channels import Parted, with_channels
from tilegrad.frontend.gradient_policy import check_gradients
from tilegrad.frontend.lora import with_adapters
from tilegrad.ir.graph import Graph
from tilegrad.ir.listing import Listing
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import Program
from tilegrad.ir.schedule import Schedule
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.passes.fold_batchnorm import FoldBatchNorm, folded_parameters
from tilegrad.passes.freeze_statistics import FreezeStatistics, frozen_variances
from tilegrad.passes.fuse import PATTERNS
from tilegrad.passes.fuse_activation import FuseActivation, FuseActivationGrad
from tilegrad.passes.fuse_conv_grad import FuseConvGrad
from tilegrad.passes.fuse_dense_grad import FuseDenseGrad
from tilegrad.passes.fuse_dense_step import FuseDenseStep
from tilegrad.passes.fuse_frozen_grad import FuseFrozenGrad
from tilegrad.passes.fuse_loss_grad import FuseLossGrad
from tilegrad.passes.fuse_outer import FuseOuterProduct
from tilegrad.passes.fuse_update import FuseUpdate
from tilegrad.passes.given_program import given_program
from tilegrad.passes.group_updates import GroupUpdates
from tilegrad.passes.guard import AddGuard
from tilegrad.passes.inference import inference_program
from tilegrad.passes.order_end import OrderEnd
from tilegrad.passes.order_peak import OrderPeak
from tilegrad.passes.parameters import ParameterInfo, layers_of, select, undecayed
from tilegrad.passes.program import derive_program
from tilegrad.passes.split_conv_grad import SplitConvGrad
from tilegrad.passes.store import StoreActivations, refuse_stored
from tilegrad.place.plan import plan_memory
from tilegrad.recipe import Recipe
from tilegrad.recipe.adapters import lora_of
from tilegrad.recipe.sparse import Selected, parse_sparse, sparse_of
from tilegrad.recipe.storage import Storage
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.sequence.epilogues import has_epilogues, with_epilogues
from tilegrad.sequence.fastest import fastest_schedule
from tilegrad.sequence.regroup import regrouped
from tilegrad.sequence.sequence import sequence_plan
from tilegrad.targets import base as targets
from tilegrad.targets.base import L2, L3, Target

R = TypeVar("R")
T = TypeVar("T", Graph, Program)


class Where(Enum):
    """The programs that a pass is for."""

    EVERYWHERE = "every program"
    ADAPTED = "a recipe that trains adapters (--train lora:4)"
    PARTED = "a recipe that trains channels (--train sparse:256K)"
    FITTED = "a program that is to fit (--fit)"
    FOLDING = "a recipe that folds BatchNormalization (--batchnorm fold)"
    FROZEN = "a program whose BatchNormalization keeps its statistics (not --batchnorm train)"
    FUSING = "a target that fuses updates and a recipe with one mini-batch per update, without clipping"
    GUARDED = "a recipe with a guard (--guard nan)"
    STORED = "a recipe that stores activations in two bytes (--store)"
    TILED = "a target that runs tiles"
    SMALL = "a target that runs tiles, and a step of few multiply-adds"
    FUSED = "a program whose optimizer moved into the backward pass (fuse-update)"
    FUSED_TILED = "a program whose optimizer moved into the backward pass, on a target that runs tiles"


@dataclass(frozen=True)
class Pass(Generic[T]):
    """One rewriting, valid in and valid out, by the name that `--dump-after` knows."""

    name: str
    apply: Callable[[T], T]
    where: Where = Where.EVERYWHERE


MODEL_PASSES = {"adapters": Where.ADAPTED, "channels": Where.PARTED}
"""Of what is imported, by name: both make another model of it, which trains less."""

GRAPH_PASSES: tuple[Pass[Graph], ...] = (
    *(Pass(name, work) for name, work in PATTERNS.items()),
    Pass("fold-batchnorm", FoldBatchNorm().apply, Where.FOLDING),
)
"""Of the stage `canonicalize`, in order: before differentiation."""

FORWARD_PASSES: tuple[Pass[Graph], ...] = (
    Pass("freeze-statistics", FreezeStatistics().apply, Where.FROZEN),
    Pass("fuse-activation", FuseActivation().apply),
)
"""In front of the stage `program`, in order: of the graph that it differentiates. People choose what trains, and
`inspect` describes, by the one before."""

PROGRAM_PASSES: tuple[Pass[Program], ...] = (
    Pass("guard", AddGuard().apply, Where.GUARDED),
    Pass("fuse-update", FuseUpdate().apply, Where.FUSING),
    Pass("fuse-activation-grad", FuseActivationGrad().apply),
    Pass("fuse-frozen-grad", FuseFrozenGrad().apply, Where.TILED),
    Pass("fuse-outer-product", FuseOuterProduct().apply),
    Pass("fuse-dense-step", FuseDenseStep().apply, Where.SMALL),
    Pass("fuse-loss-grad", FuseLossGrad().apply, Where.SMALL),
    Pass("fuse-dense-grad", FuseDenseGrad().apply),
    Pass("fuse-conv-grad", FuseConvGrad().apply, Where.FUSED_TILED),
    Pass("group-updates", GroupUpdates().apply, Where.FUSED_TILED),
    Pass("store", StoreActivations().apply, Where.STORED),
    Pass("order-peak", OrderPeak().apply),
    Pass("order-end", OrderEnd().apply, Where.FUSED),
)
"""Behind the stage `program`, in order: after differentiation. The bits are the same with and without each."""

SPLIT: Pass[Program] = Pass("split-conv-grad", SplitConvGrad().apply, Where.FITTED)
"""Behind these: the program that `FIT` starts from where the one that it is given does not fit."""

FIT = "fit"
"""Behind it: what is computed again, or on parts, so that the program fits."""

EPILOGUES = "fuse-epilogues"
"""Behind that, where a target runs tiles: operators as chains, each tile of which goes on through another's kernel,
where the program is faster so."""

STAGES = ("import", "canonicalize", "program", "schedule", "plan", "sequence", "codegen")
DUMPS = (
    "import",
    *MODEL_PASSES,
    *(each.name for each in GRAPH_PASSES),
    "canonicalize",
    *(each.name for each in FORWARD_PASSES),
    "program",
    *(each.name for each in PROGRAM_PASSES),
    SPLIT.name,
    FIT,
    EPILOGUES,
    *STAGES[3:],
)
"""What `--dump-after` takes: the stages and the passes, in the order in which they run."""


def fuses_update(recipe: Recipe, target: Target, options: ScheduleOptions) -> bool:
    """The one policy: where an update is one mini-batch, a target may update parameters where their gradients come
    into being, which saves keeping, writing and reading these. Clipping needs all gradients before the first
    update, and a guard those that a bad loss came with, so they do without. `options` may say otherwise."""
    if options.fuses_update is not None:
        return options.fuses_update
    return target.fuses_update and recipe.accumulate == 1 and recipe.clip is None and recipe.guard is None


SMALL_MACS = 8192
"""Of a step: below, calls of kernels and fetches of their code take longer than what they compute, and passes make
fewer calls with less code of it, which would be slower where there is more to compute."""


def is_small(program: Program) -> bool:
    """Whether the step has few multiply-adds, but some: a program without any is no network."""
    graph = program.entries["step"]
    operators = ((registry.get(node.op), NodeView(node, graph.types, graph.constants)) for node in graph.nodes)
    macs = sum(nest.macs for each, view in operators if not each.is_view for nest in each.nests(view))
    return 0 < macs <= SMALL_MACS


@dataclass
class Observer:
    """Sees each result; `seconds` collects how long each stage took, its passes included."""

    on_stage: Callable[[str, object], None] | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, name: str, work: Callable[[], R], stage: str | None = None) -> R:
        """`name` is a stage, or a pass of `stage`."""
        start = time.perf_counter()
        result = work()
        self.took(stage or name, time.perf_counter() - start)
        if self.on_stage is not None:
            self.on_stage(name, result)
        return result

    def took(self, stage: str, seconds: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def skip(self, name: str, where: Where) -> None:
        """A pass that is not for this program."""
        del name, where


def canonical_graph(model: ImportedModel, recipe: Recipe, observer: Observer | None = None) -> Graph:
    """The graph that the program is derived from, and that `inspect` describes."""
    watch = observer or Observer()
    graph = model.graph
    for each in GRAPH_PASSES:
        if each.where is Where.FOLDING and recipe.batchnorm != "fold":
            watch.skip(each.name, each.where)
        else:
            graph = watch.run(each.name, partial(each.apply, graph), "canonicalize")
    return watch.run("canonicalize", lambda: verify_graph(graph))


def forward_graph(graph: Graph, *, freezes: bool, observer: Observer | None = None) -> tuple[Graph, dict[str, str]]:
    """A canonical graph after `FORWARD_PASSES`, and the variances that constants stand for which it has now."""
    watch = observer or Observer()
    variances = frozen_variances(graph) if freezes else {}
    for each in FORWARD_PASSES:
        if each.where is Where.FROZEN and not freezes:
            watch.skip(each.name, each.where)
        else:
            graph = watch.run(each.name, partial(each.apply, graph), "program")
    return graph, variances


def _rewritten(program: Program, target: Target, options: ScheduleOptions, watch: Observer) -> Program:
    """The program after `PROGRAM_PASSES`."""
    for each in PROGRAM_PASSES:
        applies = {
            Where.FUSING: fuses_update(program.recipe, target, options),
            Where.FUSED: program.is_fused,
            Where.FUSED_TILED: program.is_fused and not target.is_flat,
            Where.TILED: not target.is_flat,
            Where.SMALL: not target.is_flat and is_small(program),
            Where.GUARDED: program.recipe.guard is not None,
            Where.STORED: program.recipe.store.activations != "f32",
        }.get(each.where, True)
        if applies:
            program = watch.run(each.name, partial(each.apply, program), "program")
        else:
            watch.skip(each.name, each.where)
    return program


def parameters_in_use(model: ImportedModel, recipe: Recipe) -> Mapping[str, ParameterInfo]:
    """What each initializer is under this recipe: folding BatchNorm makes biases, and leaves scales unused."""
    if recipe.batchnorm != "fold":
        return model.parameters
    graph = model.graph
    for pattern in PATTERNS.values():
        graph = pattern(graph)
    return folded_parameters(model.parameters, FoldBatchNorm().fold(graph))


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
    storage: Storage | None = None,
) -> Compiled:
    watch = observer or Observer()
    asked = options or ScheduleOptions()
    model, program = _derived(model, recipe, target, asked, watch)
    return _compile_program(model, program, target, watch, asked, weights_as_c, storage)


def _derived(
    model: ImportedModel, recipe: Recipe, target: Target, options: ScheduleOptions, watch: Observer
) -> tuple[ImportedModel, Program]:
    """The program of a recipe, and the model with the adapters and notes that belong to it."""
    if model.training is not None:
        given, name = model.training, model.name
        refuse_stored(recipe, "a training graph says itself what it keeps")
        return model, watch.run("program", lambda: given_program(given, name, recipe))
    lora = lora_of(recipe.train)
    if lora is None:
        watch.skip("adapters", Where.ADAPTED)
    else:
        unadapted = model
        model = watch.run("adapters", lambda: with_adapters(unadapted, lora, recipe.seed), "import")
    text = sparse_of(recipe.train)
    if text is None:
        watch.skip("channels", Where.PARTED)
    else:
        whole = model
        model = watch.run("channels", lambda: _with_channels(whole, recipe, target, text, options), "import")
    model = replace(model, notes=tuple(dict.fromkeys((*model.notes, *check_batchnorm_policy(model, recipe.batchnorm)))))
    graph = canonical_graph(model, recipe, watch)
    forward = forward_graph(graph, freezes=recipe.batchnorm != "train", observer=watch)

    def derive() -> Program:
        default_loss, default_train = defaults(model)
        parameters = parameters_in_use(model, recipe)
        trainable = select(graph, parameters, recipe.train or default_train)
        check_gradients(model, trainable)
        roles = {name: info.role for name, info in parameters.items()}
        spared = undecayed(graph, parameters, recipe)
        return derive_program(*forward, recipe, roles, trainable, recipe.loss or default_loss, spared)

    return model, watch.run("program", derive)


def ways_to_fit(model: ImportedModel, recipe: Recipe, target: Target, options: ScheduleOptions | None = None) -> Answer:
    """What would make training fit into a flat target with a limit: each way is planned, and none is run."""
    asked = replace(options or ScheduleOptions(), fit_bytes=None)

    def program_of(other: Recipe) -> tuple[Program, Program]:
        _, program = _derived(model.with_batch(other.batch), other, target, asked, Observer())
        program = _rewritten(program, target, asked, Observer())
        return program, SPLIT.apply(program)

    layers = 0 if model.training is not None else len(layers_of(canonical_graph(model, recipe), model.parameters))
    return answer(program_of, recipe, target, layers)


def compile_or_explain(
    model: ImportedModel, recipe: Recipe, target: Target, observer: Observer | None = None, **given: Any
) -> Compiled:
    """As `compile_model`; what does not fit into a flat target is refused with hints that would close the gap."""
    try:
        return compile_model(model, recipe, target, observer, **given)
    except DoesNotFit as error:
        if not target.is_flat or target.memory(target.home).capacity_bytes is None or error.stage not in _EXPLAINED:
            raise
        raise explained(error, lambda: ways_to_fit(model, recipe, target, given.get("options"))) from error


_EXPLAINED = ("memory", "fit")


def _with_channels(
    model: ImportedModel, recipe: Recipe, target: Target, text: str, options: ScheduleOptions
) -> ImportedModel:
    """The model in parts, of which some train; as it is where it was parted for this very wish."""
    if isinstance(model.adapted, Parted):
        if model.adapted.text == text:
            return model
        model = model.adapted.base
    wanted = parse_sparse(text)
    if isinstance(wanted, Selected):
        return with_channels(model, wanted, text)

    def used_bytes(selected: Selected | None) -> int:
        train = "all" if selected is None else recipe.train
        candidate = model if selected is None else with_channels(model, selected, text)
        graph = canonical_graph(candidate, recipe)
        parameters = parameters_in_use(candidate, recipe)
        trainable = select(graph, parameters, train or "all")
        roles = {name: info.role for name, info in parameters.items()}
        forward = forward_graph(graph, freezes=recipe.batchnorm != "train")
        program = derive_program(*forward, recipe, roles, trainable, recipe.loss or defaults(candidate)[0])
        return training_bytes(_rewritten(program, target, options, Observer()), target)

    return with_channels(model, choose(model, recipe, wanted, used_bytes), text)


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
    graph = canonical_graph(model, recipe, watch)
    roles = {name: info.role for name, info in parameters_in_use(model, recipe).items()}
    forward = forward_graph(graph, freezes=True, observer=watch)
    program: Program = watch.run("program", lambda: inference_program(*forward, recipe, roles))
    return _compile_program(model, program, target, watch, options or ScheduleOptions(), weights_as_c=False)


def _compile_program(
    model: ImportedModel,
    program: Program,
    target: Target,
    watch: Observer,
    options: ScheduleOptions,
    weights_as_c: bool,
    storage: Storage | None = None,
) -> Compiled:
    options.check(target)
    program = _rewritten(program, target, options, watch)
    fit = None
    if options.fit_bytes is None:
        watch.skip(SPLIT.name, SPLIT.where)
        watch.skip(FIT, Where.FITTED)
    else:
        unfit, limit_bytes = program, options.fit_bytes
        split = watch.run(SPLIT.name, partial(SPLIT.apply, program), "program")

        def fitting() -> tuple[Program, Fit]:
            flat = target.is_flat
            return fitted(unfit, split, target, limit_bytes) if flat else fitted_levels(unfit, split, target, options)

        program, fit = watch.run(FIT, fitting, "program")
    chained = program
    if has_epilogues(target, options):
        chained = watch.run(EPILOGUES, partial(with_epilogues, program, target, options), "schedule")
    else:
        watch.skip(EPILOGUES, Where.TILED)
    schedule: Schedule = watch.run("schedule", lambda: fastest_schedule(chained, target, options))
    plan: Plan = watch.run("plan", lambda: regrouped(plan_memory(schedule, options.home)))
    listing: Listing = watch.run("sequence", lambda: sequence_plan(plan))
    project: Project = watch.run(
        "codegen", lambda: generate(listing, weights_as_c=weights_as_c, storage=storage)
    )
    return Compiled(model, program, listing, project, options, fit)


# For what is a little larger where it is not fused.
_SPARE_BYTES = 1 << 20


def unfused(compiled: Compiled) -> Compiled:
    """The same with gradients that can be read, where the optimizer moved into the backward pass.

    Gradients take memory: what fits into L2 when fused may not without L3, and what fits into L3 may not without more
    of it, which only a simulator has. Neither changes the bits.
    """
    if not compiled.program.is_fused:
        return compiled
    home = "auto" if compiled.options.home == "L2" else compiled.options.home
    options = replace(compiled.options, fuses_update=False, home=home, fit_bytes=None)
    target = compiled.target
    return replace(_unfused_for(compiled, target, options), residency=compiled.residency)


def _unfused_for(compiled: Compiled, target: Target, options: ScheduleOptions) -> Compiled:
    try:
        return compile_model(compiled.model, compiled.program.recipe, target, options=options)
    except DoesNotFit:
        if target.is_flat:  # as much as the chip has, whatever this program was to fit into
            own = targets.get(target.name).memory(target.home).capacity_bytes
            larger = target.without_limits() if own is None else target.with_capacity(target.home, own)
            return compile_model(compiled.model, compiled.program.recipe, larger, options=options)
        trained_bytes = sum(tensor.type.size_bytes for tensor in compiled.program.trainable)
        outer = L3 if target.has_l3 else L2
        more = (target.memory(outer).capacity_bytes or 0) + trained_bytes + _SPARE_BYTES
        larger = target.with_capacity(outer, more)
        return compile_model(compiled.model, compiled.program.recipe, larger, options=options)
