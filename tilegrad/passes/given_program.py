"""A program from a training graph that came from outside: its step as it is, and an update from its optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tilegrad.analysis.verify import verify_graph
from tilegrad.errors import UserError
from tilegrad.expectations import is_told
from tilegrad.ir.given import GivenTraining
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import LEARNING_RATE, RESET_FLAG, UPDATE_COUNTER, Program, Role, StateTensor
from tilegrad.ir.types import Constant, DType
from tilegrad.ops import registry
from tilegrad.passes.builder import GraphBuilder
from tilegrad.passes.program import (
    COUNTER,
    FLAG,
    SCALAR_F32,
    label_inputs,
    only_own_state,
    promote_constants,
    update_entry,
    with_state,
    without_dead_nodes,
)
from tilegrad.recipe import Recipe

_ACCUMULATE = "InPlaceAccumulatorV2"


def given_recipe(training: GivenTraining, recipe: Recipe) -> Recipe:
    """The recipe with what the graph decides. What a recipe leaves at its default is the graph's own."""
    optimizer = recipe.optimizer
    if training.optimizer is not None:
        default = Recipe().optimizer
        fixed = all(update.learning_rate is not None for update in training.updates)
        own_rate = optimizer == default and not is_told(optimizer.lr) and fixed
        optimizer = training.optimizer if own_rate else replace(training.optimizer, lr=optimizer.lr)
    accumulate = recipe.accumulate if is_told(recipe.accumulate) else training.accumulate or 1
    return replace(
        recipe, optimizer=optimizer, batch=training.batch, accumulate=accumulate, accum_mode="sum", loss=None
    )


def given_program(training: GivenTraining, name: str, recipe: Recipe) -> Program:
    _refuse_choices(recipe)
    recipe = given_recipe(training, recipe)
    graph = training.step
    state: dict[str, StateTensor] = {}
    written = {target for _, target in training.writes}
    own = {value: Constant(training.initial[value]) for value in training.parameters}
    for value, constant in {**own, **training.evaluate.constants, **graph.constants}.items():
        if value in training.gradients:
            role = Role.PARAMETER
        elif value in written:
            role = Role.STATISTIC
        else:
            role = Role.FROZEN if value in training.initial else Role.CONSTANT
        state[value] = StateTensor(value, constant.type, role, constant)
    ordered = [*training.parameters, *(value for value in state if value not in training.gradients)]
    state = {value: state[value] for value in ordered if value in state}
    step = _step(training, state)
    infer = with_state(replace(training.evaluate, name="infer"), "infer", state)
    update = _update(training, recipe, state, own=recipe.optimizer == training.optimizer)
    entries, state = promote_constants({"infer": infer, "step": step, "update": update}, state)
    entries = {key: verify_graph(only_own_state(entry)) for key, entry in entries.items()}
    used = {value for entry in entries.values() for value in entry.state}
    tensors = tuple(tensor for tensor in state.values() if tensor.name in used)
    return Program(name, recipe, f"output:{graph.outputs[0]}", tensors, entries, label_inputs(entries["step"]))


def _refuse_choices(recipe: Recipe) -> None:
    """What a training graph has decided already."""
    choices = {"--loss": recipe.loss, "--train": recipe.train}
    if recipe.batchnorm != "frozen":
        choices["--batchnorm"] = recipe.batchnorm
    for option, value in choices.items():
        if value is not None:
            raise UserError(
                f"a training graph has its own loss and gradients: {option} cannot change them",
                stage="recipe",
                got=f"{option} {value}",
                hint="give the model itself, as its .onnx file",
            )


def _step(training: GivenTraining, state: dict[str, StateTensor]) -> Graph:
    """The nodes as they came; each accumulator follows its gradient, and the last node that reads its parameter: an
    update that takes its place may write there."""
    graph = training.step
    owners = {buffer: parameter for parameter, buffer in training.gradients.items()}
    nodes = tuple(node for node in graph.nodes if node.op != _ACCUMULATE)
    waiting = _places(graph, nodes, owners)
    builder = GraphBuilder("step")
    builder.types.update({value: graph.types[value] for value in (*graph.inputs, *graph.constants)})
    builder.inputs += graph.inputs
    for value in graph.constants:
        builder.add_state(value, graph.types[value])
    state[RESET_FLAG] = StateTensor(RESET_FLAG, FLAG, Role.HYPER, Constant(np.array([True])))
    builder.add_state(RESET_FLAG, FLAG)

    def accumulate(position: int) -> None:
        for node in waiting.get(position, ()):
            buffer, gradient = node.inputs[:2]
            owner = owners[buffer]
            state[buffer] = StateTensor(buffer, state[owner].type, Role.GRADIENT, owner=owner)
            builder.add_state(buffer, state[owner].type)
            updated = builder.unique(f"{owner}_grad.sum")
            inputs = (buffer, gradient, RESET_FLAG)
            builder.append(Node(builder.unique_node_name(node.name), _ACCUMULATE, inputs, ("", updated)))
            builder.writes.append((updated, buffer))

    accumulate(-1)
    for position, node in enumerate(nodes):
        builder.append(node)
        accumulate(position)
    builder.writes += training.writes
    builder.node_name = "end_of_step"
    (off,) = builder.emit("Copy", [builder.constant([False], DType.BOOL)], hint=f"{RESET_FLAG}.off")
    builder.writes.append((off, RESET_FLAG))
    return without_dead_nodes(builder.finish(graph.outputs))


def _places(graph: Graph, nodes: tuple[Node, ...], owners: Mapping[str, str]) -> dict[int, list[Node]]:
    """The accumulators by the position of the node that they follow."""
    made = {value: position for position, node in enumerate(nodes) for value in node.outputs if value}
    last: dict[str, int] = {}  # reader of each value, through views of it
    for position, node in reversed(list(enumerate(nodes))):
        until = position
        if registry.get(node.op).is_view:
            until = max([position, *(last.get(value, position) for value in node.outputs)])
        for value in node.inputs:
            last[value] = max(last.get(value, until), until)
    found: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node.op == _ACCUMULATE:
            place = max(made.get(node.inputs[1], -1), last.get(owners[node.inputs[0]], -1))
            found.setdefault(place, []).append(node)
    return found


def _update(training: GivenTraining, recipe: Recipe, state: dict[str, StateTensor], own: bool) -> Graph:
    """The recipe's rule for every parameter; stored moments and counters go on, and rates of single nodes stay."""
    graph = update_entry(recipe, state, frozenset())
    slots = recipe.optimizer.slots
    for update in training.updates:
        for slot, array in zip(slots, update.slots, strict=False):
            name = f"{update.parameter}.{slot}"
            state[name] = replace(state[name], initial=Constant(np.asarray(array, np.float32)))
    if training.updates_done and UPDATE_COUNTER in state:
        initial = Constant(np.array(training.updates_done, np.int64))
        state[UPDATE_COUNTER] = StateTensor(UPDATE_COUNTER, COUNTER, Role.HYPER, initial)
    rates = {u.parameter: u.learning_rate for u in training.updates if u.learning_rate is not None} if own else {}
    others = {name: rate for name, rate in rates.items() if np.float32(rate) != np.float32(recipe.optimizer.lr)}
    if not others:
        return graph
    names = {rate: f"{LEARNING_RATE}.{i}" for i, rate in enumerate(dict.fromkeys(others.values()), 1)}
    for rate, name in names.items():
        state[name] = StateTensor(name, SCALAR_F32, Role.HYPER, Constant(np.float32(rate)))
    nodes = tuple(
        node.with_inputs(tuple(names[others[node.inputs[0]]] if i == LEARNING_RATE else i for i in node.inputs))
        if node.inputs and node.inputs[0] in others
        else node
        for node in graph.nodes
    )
    types = {**graph.types, **dict.fromkeys(names.values(), SCALAR_F32)}
    return replace(graph, nodes=nodes, types=types, state=(*graph.state, *names.values()))
