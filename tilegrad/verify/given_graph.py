"""A training graph executed as its makers meant it, in NumPy: the reference of runs whose backward pass was given.

The graphs are the files' own. Nothing of tilegrad's import, operators or differentiation is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tilegrad.errors import UserError
from tilegrad.optimizers import Optimizer
from tilegrad.verify.compare import Reference
from tilegrad.verify.given_ops import TABLE, Array, Call
from tilegrad.verify.reference import loss_errors, relative_errors

NAME = "the given graphs in NumPy float64"
_POOLS = {"MaxPoolGrad": "MaxPool", "AveragePoolGrad": "AveragePool"}
_UPDATES = ("SGD", "SGDOptimizerV2", "AdamWOptimizer")
_LOSSES = ("SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossInternal")
_ACCUMULATE = "InPlaceAccumulatorV2"


@dataclass(frozen=True, eq=False)
class GivenGraphs:
    """`parameters` is the buffer of each that trains. `initial` has every weight that is fed."""

    training: onnx.ModelProto
    evaluation: onnx.ModelProto | None
    parameters: Mapping[str, str]
    initial: Mapping[str, Array]
    inputs: tuple[str, ...]
    optimizer: Optimizer
    rates: Mapping[str, float] = field(default_factory=dict)
    slots: Mapping[str, Sequence[Array]] = field(default_factory=dict)
    updates_done: int = 0


def reference_of(graphs: GivenGraphs, batches: Sequence[Sequence[Array]], accumulate: int) -> tuple[Reference, float]:
    """Of a run over these mini-batches, and the evaluation's loss on the first of them afterwards (NaN without one)."""
    exact, rounded = (_Run(graphs, kind).over(batches, accumulate) for kind in (np.float64, np.float32))
    losses = loss_errors(tuple(rounded.losses), tuple(exact.losses))
    reference = Reference(
        name=NAME,
        losses=tuple(exact.losses),
        gradients=exact.first_gradients,
        weights={name: exact.weights[name] for name in graphs.parameters},
        statistics=exact.statistics(),
        loss_differences=tuple(np.maximum.accumulate(losses).tolist()) if losses else (),
        gradient_differences=relative_errors(rounded.first_gradients, exact.first_gradients),
        weight_differences=relative_errors(
            {name: rounded.weights[name] for name in graphs.parameters},
            {name: exact.weights[name] for name in graphs.parameters},
        ),
    )
    return reference, exact.evaluate(batches[0])


class _Graph:
    """One graph, node by node."""

    def __init__(self, model: onnx.ModelProto, kind: type) -> None:
        self.kind = kind
        self.opset = max((e.version for e in model.opset_import if e.domain in ("", "ai.onnx")), default=14)
        self.stored = {t.name: self._of_kind(numpy_helper.to_array(t)) for t in model.graph.initializer}
        self.outputs = [value.name for value in model.graph.output]
        self.nodes = [node for node in model.graph.node if node.op_type not in _UPDATES]
        self.makers = {name: node for node in self.nodes for name in node.output if name}
        self.evaluators: dict[int, Any] = {}

    def _of_kind(self, array: Array) -> Array:
        return array.astype(self.kind) if array.dtype.kind == "f" else array

    def run(self, fed: Mapping[str, Array], nodes: Sequence[onnx.NodeProto] | None = None) -> dict[str, Array]:
        values = {**self.stored, **{name: self._of_kind(np.asarray(array)) for name, array in fed.items()}}
        waiting = list(self.nodes if nodes is None else nodes)
        while waiting:
            left = [node for node in waiting if not self._try(node, values)]
            if len(left) == len(waiting):
                raise UserError("the given graph cannot be executed", stage="verify", node=left[0].name)
            waiting = left
        return values

    def _try(self, node: onnx.NodeProto, values: dict[str, Array]) -> bool:
        if node.op_type == _ACCUMULATE:
            return node.input[1] in values
        if any(name and name not in values for name in node.input):
            return False
        inputs = [values[name] if name else None for name in self._inputs(node)]
        found = self._call(node, inputs, values)
        outputs = list(node.output)
        if node.op_type in _LOSSES and len(outputs) == 1 and self._is_log_prob(outputs[0]):
            outputs = [f"{outputs[0]}.loss", outputs[0]]
        for name, value in zip(outputs, found, strict=False):
            if name and value is not None:
                values[name] = self._of_kind(np.asarray(value))
        return True

    def _is_log_prob(self, name: str) -> bool:
        return any(n.op_type.endswith("LossGrad") and name in n.input[:2] for n in self.nodes)

    def _inputs(self, node: onnx.NodeProto) -> list[str]:
        """A Gelu's gradient is of that Gelu's input, also where the file names what a bias is added to first; and a
        LayerNormalizationGrad with four operands has the bias as its fourth."""
        names = list(node.input)
        if node.op_type == "GeluGrad":
            gelus = [each.input[0] for each in self.nodes if each.op_type == "Gelu"]
            if names[1] not in gelus:
                sums = [g for g in gelus if g in self.makers and self.makers[g].op_type == "Add"]
                names[1] = next((g for g in sums if names[1] in self.makers[g].input), names[1])
        if node.op_type == "LayerNormalizationGrad" and len(names) == 4:
            names = names[:3]
        return names

    def _call(self, node: onnx.NodeProto, inputs: list[Array | None], values: Mapping[str, Array]) -> Sequence[Any]:
        function = TABLE.get(node.op_type)
        if function is None:
            return self._by_onnx(node, inputs)
        given = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        plain = {key: value.decode() if isinstance(value, bytes) else value for key, value in given.items()}
        shape = None
        if node.op_type in _POOLS:
            forward = self._pool(node, inputs, values)
            shape = None if forward is None else values[forward.input[0]].shape
        return function(Call(node.op_type, inputs, plain, self.opset, shape, len(node.output), tuple(node.input)))

    def _pool(
        self, node: onnx.NodeProto, inputs: list[Array | None], values: Mapping[str, Array]
    ) -> onnx.NodeProto | None:
        if node.op_type == "MaxPoolGrad":
            return self.makers.get(node.input[1])
        dy = inputs[0]
        assert dy is not None
        found = [
            each
            for each in self.nodes
            if each.op_type == _POOLS[node.op_type] and values[each.output[0]].shape == dy.shape
        ]
        named = [each for each in found if node.output[0].startswith(each.input[0])]
        return next(iter(named or found), None)

    def _by_onnx(self, node: onnx.NodeProto, inputs: list[Array | None]) -> Sequence[Any]:
        if node.domain not in ("", "ai.onnx"):
            raise UserError(
                f"no reference can execute {node.domain}.{node.op_type}", stage="verify", hint="--no-verify"
            )
        key = id(node)
        if key not in self.evaluators:
            self.evaluators[key] = ReferenceEvaluator(node, opsets={"": self.opset})
        names = [name for name in node.input if name]
        present = [value for value in inputs if value is not None]
        found: Sequence[Any] = self.evaluators[key].run(None, dict(zip(names, present, strict=True)))
        return found


class GivenModel:
    """The loss of a given graph as a function of its weights: what central differences are taken of."""

    evaluator = NAME

    def __init__(self, graphs: GivenGraphs) -> None:
        self._run = _Run(graphs, np.float64)
        graph = self._run.graph
        wanted = {*graph.outputs, *(name for node in graph.nodes if node.op_type in _LOSSES for name in node.output)}
        for node in reversed(graph.nodes):
            gradient = node.op_type.endswith(("Grad", "Grad_13", "Grad_dX")) or node.op_type == _ACCUMULATE
            if not gradient and any(name in wanted for name in node.output):
                wanted.update(node.input)
        self._graph = graph
        self._forward = [
            node
            for node in graph.nodes
            if any(name in wanted for name in node.output)
            and not node.op_type.endswith(("Grad", "Grad_13", "Grad_dX"))
            and node.op_type != _ACCUMULATE
        ]
        self.weights = dict(self._run.weights)

    def loss(self, batch: Sequence[Array], overrides: Mapping[str, Array] | None = None) -> float:
        fed = dict(zip(self._run.graphs.inputs, batch, strict=True))
        shaped = {name: np.asarray(a).reshape(self.weights[name].shape) for name, a in (overrides or {}).items()}
        values = self._graph.run({**self.weights, **shaped, **fed}, self._forward)
        return self._run.loss_of(values)


class _Run:
    """One training in one float type."""

    def __init__(self, graphs: GivenGraphs, kind: type) -> None:
        self.graphs = graphs
        self.kind = kind
        self.graph = _Graph(graphs.training, kind)
        self.weights: dict[str, Array] = {name: np.asarray(array, kind) for name, array in graphs.initial.items()}
        self.losses: list[float] = []
        self.first_gradients: dict[str, Array] = {}
        self.buffers: dict[str, Array] = {}
        stored = graphs.slots.items()
        self.moments: dict[str, list[Array]] = {name: [np.asarray(a, kind) for a in held] for name, held in stored}
        self.updates = graphs.updates_done
        self.written: set[str] = set()

    def over(self, batches: Sequence[Sequence[Array]], accumulate: int) -> _Run:
        for number, batch in enumerate(batches):
            self._step(dict(zip(self.graphs.inputs, batch, strict=True)))
            if number == 0:
                self.first_gradients = dict(self.buffers)
            if (number + 1) % accumulate == 0:
                self._update()
        return self

    def statistics(self) -> dict[str, Array]:
        return {name: self.weights[name] for name in sorted(self.written)}

    def evaluate(self, batch: Sequence[Array]) -> float:
        if self.graphs.evaluation is None:
            return float("nan")
        graph = _Graph(self.graphs.evaluation, self.kind)
        fed = dict(zip(self.graphs.inputs, batch, strict=True))
        value = graph.run({**self.weights, **fed})[graph.outputs[0]]
        return float(value.reshape(-1)[0]) if value.size == 1 else float("nan")

    def _step(self, fed: Mapping[str, Array]) -> None:
        values = self.graph.run({**self.weights, **fed})
        self.losses.append(self.loss_of(values))
        gradients = self._gradients(values)
        for name, gradient in gradients.items():
            self.buffers[name] = self.buffers[name] + gradient if name in self.buffers else gradient
        for node in self.graph.nodes:
            if node.op_type == "BatchNormInternal":
                for state, value in zip(node.input[3:5], node.output[1:3], strict=False):
                    if state in self.weights:
                        self.weights[state] = values[value]
                        self.written.add(state)

    def loss_of(self, values: Mapping[str, Array]) -> float:
        for name in self.graph.outputs:
            if name in values and values[name].size == 1 and values[name].dtype.kind == "f" and not self._updates(name):
                return float(values[name].reshape(-1)[0])
        node = next(each for each in self.graph.nodes if each.op_type in _LOSSES)
        name = node.output[0] if len(node.output) > 1 else f"{node.output[0]}.loss"
        return float(values[name].reshape(-1)[0])

    def _updates(self, name: str) -> bool:
        return any(n.op_type in (*_UPDATES, _ACCUMULATE) and name in n.output for n in self.graphs.training.graph.node)

    def _gradients(self, values: Mapping[str, Array]) -> dict[str, Array]:
        owners = {buffer: name for name, buffer in self.graphs.parameters.items()}
        found = {}
        for node in self.graphs.training.graph.node:
            if node.op_type == _ACCUMULATE:
                found[owners[node.input[0]]] = values[node.input[1]]
            elif node.op_type == "SGD":
                found[node.input[0]] = values[node.input[1]]
        return found

    def _update(self) -> None:
        optimizer = self.graphs.optimizer
        for name in self.graphs.parameters:
            weight, gradient = self.weights[name], self.buffers.pop(name)
            rate = self.graphs.rates.get(name, optimizer.lr)
            if optimizer.name == "sgd":
                self.weights[name] = weight - self.kind(rate) * gradient
            elif optimizer.name in ("adamw", "adamw_ort"):
                self.weights[name] = self._adam(name, weight, gradient, optimizer)
            else:
                raise UserError(f"no reference for {optimizer.name} over a given graph", stage="verify")
        self.updates += 1

    def _adam(self, name: str, weight: Array, gradient: Array, optimizer: Any) -> Array:
        first, second = self.moments.get(name) or [np.zeros_like(weight), np.zeros_like(weight)]
        t = self.updates + 1
        first = optimizer.beta1 * first + (1 - optimizer.beta1) * gradient
        second = optimizer.beta2 * second + (1 - optimizer.beta2) * gradient * gradient
        self.moments[name] = [first, second]
        bias1, bias2 = 1 - optimizer.beta1**t, 1 - optimizer.beta2**t
        lr, decay = optimizer.lr, optimizer.lr * optimizer.weight_decay
        if optimizer.name == "adamw":
            weight = weight - decay * weight
            return np.asarray(weight - lr / bias1 * first / (np.sqrt(second / bias2) + optimizer.epsilon), self.kind)
        size = lr * np.sqrt(bias2) / bias1 if optimizer.correct_bias else lr
        moved = weight - size * first / (np.sqrt(second) + optimizer.epsilon)
        return np.asarray(moved - decay * moved, self.kind)
