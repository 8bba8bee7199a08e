"""From a model's graph and a recipe to a program: loss, backward pass, accumulation, optimizer."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Container, Mapping
from dataclasses import replace
from itertools import chain, count

import numpy as np

from tilegrad.analysis.verify import verify_graph
from tilegrad.errors import UserError
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import (
    LEARNING_RATE,
    RESET_FLAG,
    UPDATE_COUNTER,
    Program,
    Role,
    StateTensor,
    TargetInput,
)
from tilegrad.ir.types import Constant, DType, TensorType
from tilegrad.losses import LOSSES, LossExpression, Term, parse
from tilegrad.ops import registry
from tilegrad.ops.base import MINIBATCH_COUNTER, NodeView
from tilegrad.passes.autodiff import append_backward, values_on_trainable_paths
from tilegrad.passes.builder import GraphBuilder
from tilegrad.recipe import Rate, Recipe
from tilegrad.recipe.rates import RATE_KINDS

SCALAR_F32 = TensorType(DType.F32, ())
COUNTER = TensorType(DType.I64, ())
FLAG = TensorType(DType.BOOL, (1,))

_ROLES = {"parameter": Role.FROZEN, "statistic": Role.STATISTIC, "constant": Role.CONSTANT}


def derive_program(
    graph: Graph,
    variances: Mapping[str, str],
    recipe: Recipe,
    roles: Mapping[str, str],
    trainable: tuple[str, ...],
    loss: str,
    undecayed: Container[str] = (),
) -> Program:
    """`variances` says which variance a constant stands for (see passes.freeze_statistics), `roles` of each constant
    what it is (see passes.parameters); `trainable` are the ones that train, without weight decay those that are
    `undecayed`."""
    for name in (RESET_FLAG, LEARNING_RATE, UPDATE_COUNTER, MINIBATCH_COUNTER):
        if name in graph.types:
            raise UserError(
                f"the model has a tensor called '{name}', a name that tilegrad keeps for itself",
                stage="recipe",
                hint="rename it in the model",
            )
    state: dict[str, StateTensor] = {}
    training = set(trainable)
    for name, constant in graph.constants.items():
        role = Role.PARAMETER if name in training else _ROLES[roles.get(variances.get(name, name), "constant")]
        state[name] = StateTensor(name, constant.type, role, constant, variances.get(name))
    step, targets = _step_entry(graph, recipe, parse(loss), state)
    infer = _in_the_steps_form(with_state(graph, "infer", state), step)
    update = update_entry(recipe, state, undecayed)
    entries, state = promote_constants({"infer": infer, "step": step, "update": update}, state)
    entries = {name: verify_graph(only_own_state(entry)) for name, entry in entries.items()}
    used = {name for entry in entries.values() for name in entry.state}
    tensors = tuple(tensor for tensor in state.values() if tensor.name in used)
    trained = {tensor.name for tensor in tensors if tensor.role is Role.PARAMETER}
    spared = frozenset(name for name in trained if name in undecayed)
    return Program(graph.name, recipe, loss, tensors, entries, targets, undecayed=spared)


def with_state(graph: Graph, name: str, state: Mapping[str, StateTensor]) -> Graph:
    """The graph with its constants turned into state reads."""
    return replace(graph, name=name, constants={}, state=tuple(n for n in graph.constants if n in state))


def _in_the_steps_form(infer: Graph, step: Graph) -> Graph:
    """Where the step's node is the same with more outputs (statistics kept for the gradient), infer takes that node.

    The few bytes are worth it: both entries then have the same forward code.
    """
    forms = {node.name: node for node in step.nodes}
    nodes = []
    types = dict(infer.types)
    for node in infer.nodes:
        form = forms.get(node.name)  # None where the loss does not depend on the node
        if form is not None and (
            (form.op, form.inputs, form.attributes) == (node.op, node.inputs, node.attributes)
            and form.outputs[: len(node.outputs)] == node.outputs
        ):
            nodes.append(form)
            types |= {name: step.types[name] for name in form.outputs if name}
        else:
            nodes.append(node)
    return replace(infer, nodes=tuple(nodes), types=types)


def _training_graph(graph: Graph, recipe: Recipe, state: dict[str, StateTensor]) -> Graph:
    """The forward pass as it runs in training: dropout draws its masks, BatchNorm may use batch statistics."""
    builder = GraphBuilder("step")
    builder.types.update({name: graph.types[name] for name in (*graph.inputs, *graph.constants)})
    builder.inputs += graph.inputs
    for name in graph.constants:
        builder.add_state(name, graph.types[name])
    uses_counter = False
    types = dict(graph.types)
    for node in graph.nodes:
        view = NodeView(node, graph.types, graph.constants)
        if node.op == "BatchNormalization" and recipe.batchnorm == "train" and _has_running_statistics(node, state):
            node = _batch_statistics_form(node, builder, state, types)
        else:
            form = registry.get(node.op).training_form(view, recipe.seed)
            if form is not None:
                node = form
                if MINIBATCH_COUNTER in node.inputs:
                    uses_counter = True
                    builder.add_state(MINIBATCH_COUNTER, COUNTER)
        builder.append(node)
    if uses_counter:
        state[MINIBATCH_COUNTER] = StateTensor(MINIBATCH_COUNTER, COUNTER, Role.HYPER)
    return builder.finish(graph.outputs)


def _has_running_statistics(node: Node, state: Mapping[str, StateTensor]) -> bool:
    """Statistics that the graph computes are part of the model: no policy changes them, and gradients pass them."""
    return all(name in state for name in node.inputs[3:5])


def _batch_statistics_form(
    node: Node, builder: GraphBuilder, state: Mapping[str, StateTensor], taken: dict[str, TensorType]
) -> Node:
    """BatchNormalization with batch statistics, which updates the running ones."""
    running = node.inputs[3:5]
    # Statistics that two nodes share are updated by one after the other, as by a module that is called twice.
    latest = {target: value for value, target in builder.writes}
    inputs = (*node.inputs[:3], *(latest.get(name, name) for name in running))
    updated = tuple(_fresh(f"{name}.updated", ChainMap(builder.types, taken)) for name in running)
    if any(name in latest for name in running):
        builder.writes = [(value, target) for value, target in builder.writes if target not in running]
    builder.writes += zip(updated, running, strict=True)
    attributes = {key: value for key, value in node.attributes.items() if key in ("epsilon", "momentum")}
    saved = tuple(_fresh(f"{node.outputs[0]}.{word}", taken) for word in ("saved_mean", "saved_inv_std"))
    return Node(node.name, "BatchNormInternal", inputs, (node.outputs[0], *updated, *saved), attributes)


def _fresh(name: str, taken: Container[str]) -> str:
    """The name, or one like it that the model does not use."""
    return next(found for found in chain([name], (f"{name}.{i}" for i in count(1))) if found not in taken)


def _compared(graph: Graph, loss: LossExpression) -> str:
    """The outputs that a loss is of, in words."""
    first = graph.outputs[0]
    return "', '".join(dict.fromkeys(term.output or first for term in loss.terms))


def _prediction(graph: Graph, loss: LossExpression, term: Term) -> str:
    """The output that a term is of, which must be a float, and one number where it is the loss itself."""
    outputs = {name: name for name in graph.outputs}
    prediction = str(loss.output_of(term, outputs))
    found = graph.types[prediction]
    if found.dtype is not DType.F32:
        which = "first output" if term.output is None else f"output '{prediction}'"
        raise UserError(
            f"the model's {which} cannot be trained against",
            stage="recipe",
            expected="a float output",
            got=f"'{prediction}' {found}",
        )
    if term.kind is None and found.size != 1:
        raise UserError(
            f"the output '{prediction}' is no loss",
            stage="recipe",
            expected="one number",
            got=f"'{prediction}' {found}",
            hint="reduce it in the model (ReduceMean), or name a loss of it: " + " or ".join(LOSSES),
        )
    return prediction


def _append_losses(
    builder: GraphBuilder, graph: Graph, loss: LossExpression
) -> tuple[str, tuple[TargetInput, ...]]:
    """Appends the terms and their sum; returns its name, and the inputs that hold what outputs are compared with."""
    targets: dict[int, TargetInput] = {}
    total = None
    builder.node_name = "loss"
    for term in loss.terms:
        prediction = _prediction(graph, loss, term)
        if term.kind is None:
            value = prediction
            if builder.type_of(value).rank:
                (value,) = builder.emit("Reshape", [value], {"shape": (), "allowzero": 1}, hint="loss")
        else:
            position = loss.target_of(term)
            if position not in targets:
                targets[position] = _add_target(builder, graph, prediction, term)
            value = _append_loss(builder, prediction, targets[position].name, term)
        if term.weight != 1.0:
            (value,) = builder.emit("Mul", [value, builder.constant(np.float32(term.weight))], hint="loss.part")
        total = value if total is None else builder.emit("Add", [total, value], hint="loss.sum")[0]
    assert total is not None
    labels = () if targets else label_inputs(graph)
    return total, (*(targets[i] for i in sorted(targets)), *labels)


def _add_target(builder: GraphBuilder, graph: Graph, prediction: str, term: Term) -> TargetInput:
    output = builder.type_of(prediction)
    if term.has_classes and output.rank < 2:
        others = ", ".join(name for name, other in LOSSES.items() if not other.has_classes)
        raise UserError(
            f"{term.name.replace('_', ' ')} needs logits with a batch and a class dimension",
            stage="recipe",
            expected="rank 2 or more",
            got=f"'{prediction}' {output}",
            hint=f"choose --loss {' or '.join(others.rsplit(', ', 1))}",
        )
    word = "labels" if term.has_classes else "target"
    hint = word if prediction == graph.outputs[0] else f"{word}.{prediction}"
    if not term.has_classes:
        return TargetInput(builder.add_input(builder.unique(hint), output))
    shape = (output.shape[0], *output.shape[2:])
    name = builder.add_input(builder.unique(hint), TensorType(DType.I64, shape))
    return TargetInput(name, output.shape[1], term.options.get("ignore"))


def _append_loss(builder: GraphBuilder, prediction: str, target: str, term: Term) -> str:
    kind = term.kind
    assert kind is not None
    attributes = {}
    operands = []
    for name, value in term.options.items():
        attribute = kind.options[name].attribute
        if attribute is None:
            operands.append(builder.constant(np.asarray(value, np.float32)))
        else:
            attributes[attribute] = value
    if term.has_classes and operands and builder.type_of(operands[0]).shape != (builder.type_of(prediction).shape[1],):
        raise UserError(
            f"the loss {term.name} has a wrong number of class weights",
            stage="recipe",
            expected=f"{builder.type_of(prediction).shape[1]}, as '{prediction}' {builder.type_of(prediction)} has",
            got=str(builder.type_of(operands[0]).size),
        )
    inputs = [prediction, target, *operands]
    return builder.emit(kind.operator, inputs, attributes, outputs=(True,) * kind.outputs, hint="loss")[0]


_LABEL_LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")


def label_inputs(graph: Graph) -> tuple[TargetInput, ...]:
    """Inputs of a model that computes its loss itself which hold class indices, as they are."""
    found = {}
    for node in graph.nodes:
        if node.op in _LABEL_LOSSES and node.inputs[1] in graph.inputs:
            ignored = node.attributes.get("ignore_index")
            classes = graph.types[node.inputs[0]].shape[1]
            found[node.inputs[1]] = TargetInput(node.inputs[1], classes, ignored if isinstance(ignored, int) else None)
    return tuple(found.values())


def _step_entry(
    graph: Graph, recipe: Recipe, loss: LossExpression, state: dict[str, StateTensor]
) -> tuple[Graph, tuple[TargetInput, ...]]:
    forward = _training_graph(graph, recipe, state)
    builder = GraphBuilder.from_graph(forward)
    loss_value, targets = _append_losses(builder, graph, loss)
    with_loss = builder.finish((loss_value,))
    trainable = [name for name, tensor in state.items() if tensor.role is Role.PARAMETER]
    reachable = values_on_trainable_paths(with_loss, trainable)
    if loss_value not in reachable:
        raise UserError(
            "no trainable parameter influences the loss",
            stage="autodiff",
            got=f"{len(trainable)} selected parameter(s), none on a differentiable path to '{_compared(graph, loss)}'",
            hint="`tilegrad inspect MODEL --parameters` lists what could train",
        )
    scale = 1.0 / recipe.accumulate if recipe.accum_mode == "mean" else 1.0
    seed_gradient = builder.constant(np.float32(scale))
    builder.add_state(RESET_FLAG, FLAG)
    state[RESET_FLAG] = StateTensor(RESET_FLAG, FLAG, Role.HYPER, Constant(np.array([True])))
    trained: set[str] = set()

    def accumulate(parameter: str, gradient: str) -> None:
        buffer = builder.unique(f"{parameter}_grad.accumulation.buffer")
        tensor_type = builder.type_of(parameter)
        builder.add_state(buffer, tensor_type)
        state[buffer] = StateTensor(buffer, tensor_type, Role.GRADIENT, owner=parameter)
        _, updated = builder.emit(
            "InPlaceAccumulatorV2", [buffer, gradient, RESET_FLAG], outputs=(False, True), hint=f"{parameter}_grad.sum"
        )
        builder.writes.append((updated, buffer))
        trained.add(parameter)

    append_backward(builder, with_loss, loss_value, seed_gradient, trainable, accumulate)
    for name in trainable:
        if name not in trained:  # selected, but the loss does not depend on it: PyTorch leaves it alone too
            state[name] = replace(state[name], role=Role.FROZEN)
    builder.node_name = "end_of_step"
    (off,) = builder.emit("Copy", [builder.constant([False], DType.BOOL)], hint=f"{RESET_FLAG}.off")
    builder.writes.append((off, RESET_FLAG))
    if MINIBATCH_COUNTER in builder.state:
        (following,) = builder.emit(
            "Add", [MINIBATCH_COUNTER, builder.constant(1, DType.I64)], hint=f"{MINIBATCH_COUNTER}.next"
        )
        builder.writes.append((following, MINIBATCH_COUNTER))
    return without_dead_nodes(builder.finish((loss_value,))), targets


def update_entry(recipe: Recipe, state: dict[str, StateTensor], undecayed: Container[str]) -> Graph:
    """The optimizer on every parameter. A schedule makes the rate of the update from the base rate first; clipping
    scales the gradients where they are."""
    optimizer = recipe.optimizer
    kept_as = next(dtype for dtype in DType if dtype.short == recipe.store.optimizer)
    builder = GraphBuilder("update")
    counts_updates = optimizer.counts_updates or not recipe.rate.is_constant
    state[LEARNING_RATE] = StateTensor(LEARNING_RATE, SCALAR_F32, Role.HYPER, Constant(np.float32(optimizer.lr)))
    builder.add_state(LEARNING_RATE, SCALAR_F32)
    if counts_updates:
        state[UPDATE_COUNTER] = StateTensor(UPDATE_COUNTER, COUNTER, Role.HYPER)
        builder.add_state(UPDATE_COUNTER, COUNTER)
    buffers = {tensor.owner: tensor for tensor in state.values() if tensor.role is Role.GRADIENT}
    parameters = [name for name, tensor in state.items() if tensor.role is Role.PARAMETER]
    for name in parameters:
        builder.add_state(name, state[name].type)
    rate = _rate_of_the_update(builder, recipe.rate)
    gradients = {name: builder.add_state(buffers[name].name, state[name].type) for name in parameters}
    if recipe.clip is not None:
        gradients = _clipped(builder, gradients, recipe.clip)
    for name in parameters:
        tensor_type = replace(state[name].type, dtype=kept_as)
        builder.node_name = f"update/{name}"
        slots = []
        for slot in optimizer.slots:
            slot_name = _fresh(f"{name}.{slot}", state)
            state[slot_name] = StateTensor(slot_name, tensor_type, Role.OPTIMIZER, owner=name)
            slots.append(builder.add_state(slot_name, tensor_type))
        written = [name, *slots]
        rule = optimizer.without_decay() if name in undecayed else optimizer
        outputs = builder.emit(
            optimizer.operator,
            [name, gradients[name], *slots, rate, *([UPDATE_COUNTER] if optimizer.counts_updates else [])],
            rule.attributes,
            outputs=(True,) * len(written),
            hint=f"{name}.updated",
        )
        builder.writes += zip(outputs, written, strict=True)
    builder.node_name = "end_of_update"
    if counts_updates:
        (following,) = builder.emit(
            "Add", [UPDATE_COUNTER, builder.constant(1, DType.I64)], hint=f"{UPDATE_COUNTER}.next"
        )
        builder.writes.append((following, UPDATE_COUNTER))
    builder.add_state(RESET_FLAG, FLAG)
    (on,) = builder.emit("Copy", [builder.constant([True], DType.BOOL)], hint=f"{RESET_FLAG}.on")
    builder.writes.append((on, RESET_FLAG))
    return builder.finish(())


def _rate_of_the_update(builder: GraphBuilder, rate: Rate) -> str:
    """The value that the optimizer reads: the base rate itself, unless it follows the updates."""
    if rate.is_constant:
        return LEARNING_RATE
    builder.node_name = "learning_rate"
    options = {
        "kind": RATE_KINDS.index(rate.kind),
        "warmup": rate.warmup,
        "period": {"step": rate.every, "cosine": rate.updates}.get(rate.kind, 0),
        "factor": rate.factor,
        "floor": rate.floor,
    }
    return builder.emit("LearningRate", [LEARNING_RATE, UPDATE_COUNTER], options, hint="tg.rate")[0]


def _clipped(builder: GraphBuilder, gradients: Mapping[str, str], max_norm: float) -> dict[str, str]:
    """The gradients, scaled where they lie: what is read after the update are the clipped ones, as in PyTorch."""
    builder.node_name = "clip"
    total = builder.constant(np.float32(0.0))
    for gradient in gradients.values():
        (total,) = builder.emit("SquaredNorm", [gradient, total], hint="tg.squared_norm")
    (scale,) = builder.emit("ClipScale", [total], {"max_norm": max_norm}, hint="tg.clip_scale")
    clipped = {}
    for name, gradient in gradients.items():
        (clipped[name],) = builder.emit("Mul", [gradient, scale], hint=f"{gradient}.clipped")
        builder.writes.append((clipped[name], gradient))
    return clipped


def without_dead_nodes(graph: Graph) -> Graph:
    """Drops nodes, and names of optional outputs, that nothing reads."""
    live = {*graph.outputs, *(value for value, _ in graph.writes)}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not any(name in live for name in node.outputs):
            continue
        live.update(filter(None, node.inputs))
        kept.append(node)
    nodes = tuple(reversed(kept))
    produced = {name for node in nodes for name in node.outputs if name}
    sources = {*graph.inputs, *graph.state, *graph.constants}
    types = {name: t for name, t in graph.types.items() if name in produced or name in sources}
    return replace(graph, nodes=nodes, types=types)


def promote_constants(
    entries: Mapping[str, Graph], state: dict[str, StateTensor]
) -> tuple[dict[str, Graph], dict[str, StateTensor]]:
    """Constants that the passes made become state as well, shared between the entries by content."""
    by_content: dict[Constant, str] = {}
    taken = {*state, *(name for entry in entries.values() for name in entry.types if name not in entry.constants)}
    result = {}
    for entry_name, entry in entries.items():
        renamed: dict[str, str] = {}
        for name, constant in entry.constants.items():
            if constant not in by_content:
                shared = by_content[constant] = _fresh(f"tg.constant.{len(by_content)}", taken)
                taken.add(shared)
                state[shared] = StateTensor(shared, constant.type, Role.CONSTANT, constant)
            renamed[name] = by_content[constant]
        nodes = tuple(node.with_inputs(tuple(renamed.get(name, name) for name in node.inputs)) for node in entry.nodes)
        types = {name: t for name, t in entry.types.items() if name not in renamed}
        types.update({renamed[name]: entry.types[name] for name in renamed})
        names = tuple(dict.fromkeys((*entry.state, *renamed.values())))
        result[entry_name] = replace(entry, nodes=nodes, types=types, constants={}, state=names)
    return result, state


def only_own_state(entry: Graph) -> Graph:
    """Keeps only the state that an entry reads or writes."""
    used = {name for node in entry.nodes for name in node.inputs}
    used |= {target for _, target in entry.writes} | set(entry.outputs)
    state = tuple(name for name in entry.state if name in used)
    dropped = set(entry.state) - set(state)
    return replace(entry, state=state, types={n: t for n, t in entry.types.items() if n not in dropped})
