"""An ONNX model's loss in float64, cheap to evaluate again after a small change of one parameter.

The forward pass is ONNX's own reference evaluator on a copy of the model in which every float is a double, or PyTorch's
float64 operators where PyTorch is installed (much faster for convolutions). The loss is plain NumPy. Only the nodes
downstream of what changed are evaluated again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import onnx
import onnx.inliner
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from tilegrad.errors import UserError
from tilegrad.losses import parse
from tilegrad.verify import torch_reference
from tilegrad.verify.reference import Array, BatchNormPolicy, DropoutMask
from tilegrad.verify.statistics import with_running_statistics

EvaluatorName = Literal["auto", "torch", "onnx"]
Edges = Sequence[tuple[tuple[str, ...], tuple[str, ...]]]
_NARROW_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


class Float64Model:
    """`loss(batch, overrides)` with any initializer replaced; `evaluator` names what runs the forward pass."""

    def __init__(
        self,
        model: onnx.ModelProto,
        loss: str,
        *,
        batchnorm: BatchNormPolicy = "frozen",
        dropout_mask: DropoutMask | None = None,
        minibatch: int = 0,
        evaluator: EvaluatorName = "auto",
    ) -> None:
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        initializers = {proto.name for proto in model.graph.initializer}
        inputs = [value for value in model.graph.input if value.name not in initializers]
        self.loss_name = loss
        floats = (*_NARROW_FLOATS, TensorProto.DOUBLE)
        self.inputs = {value.name: value.type.tensor_type.elem_type in floats for value in inputs}
        self.outputs = tuple(value.name for value in model.graph.output)
        self.weights: dict[str, Array] = {
            proto.name: _widened(numpy_helper.to_array(proto)) for proto in model.graph.initializer
        }
        options = _Options(batchnorm == "train", dropout_mask, minibatch)
        self._graph, self.evaluator = _backend(model, options, evaluator)
        self._base: dict[str, Any] = {}
        self._base_inputs: tuple[Array, ...] = ()
        self._readers: dict[str, tuple[int, ...]] = {}

    def loss(self, batch: Sequence[Array], overrides: Mapping[str, Array] | None = None) -> float:
        """The mean loss of one mini-batch: the model's inputs in order, then the targets."""
        count = len(self.inputs)
        return float(parse(self.loss_name).value(self.results(batch[:count], overrides), batch[count:]))

    def logits(self, *inputs: Array) -> Array:
        """The model's first output, in float64."""
        return self.results(inputs)[self.outputs[0]]

    def results(self, inputs: Sequence[Array], overrides: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """All of the model's outputs, in float64."""
        base = self._base_values(tuple(inputs))
        if not overrides:
            return {name: self._graph.leave(base[name]) for name in self.outputs}
        values = dict(base)
        for name, array in overrides.items():
            if name not in self.weights:
                raise UserError(f"the model has no initializer '{name}'", stage="verify")
            values[name] = self._graph.enter(np.asarray(array, dtype=np.float64).reshape(self.weights[name].shape))
        for index in self._downstream(tuple(sorted(overrides))):
            self._graph.run(index, values)
        return {name: self._graph.leave(values[name]) for name in self.outputs}

    def _base_values(self, inputs: tuple[Array, ...]) -> dict[str, Any]:
        """Every value of the unchanged model, kept until other inputs come."""
        if len(inputs) != len(self.inputs):
            raise UserError(
                "a mini-batch has not the model's inputs",
                stage="verify",
                expected=", ".join(self.inputs),
                got=f"{len(inputs)} arrays",
            )
        same = len(self._base_inputs) == len(inputs) and bool(self._base)
        if not (same and all(old is new for old, new in zip(self._base_inputs, inputs, strict=True))):
            values = {name: self._graph.enter(array) for name, array in self.weights.items()}
            for (name, is_float), x in zip(self.inputs.items(), inputs, strict=True):
                values[name] = self._graph.enter(np.asarray(x, dtype=np.float64) if is_float else np.asarray(x))
            for index in range(len(self._graph.edges)):
                self._graph.run(index, values)
            self._base, self._base_inputs = values, inputs
        return self._base

    def _downstream(self, names: tuple[str, ...]) -> tuple[int, ...]:
        key = "\0".join(names)
        if key not in self._readers:
            reached, found = set(names), []
            for index, (inputs, outputs) in enumerate(self._graph.edges):
                if reached.intersection(inputs):
                    reached.update(outputs)
                    found.append(index)
            self._readers[key] = tuple(found)
        return self._readers[key]


@dataclass(frozen=True)
class _Options:
    batch_statistics: bool
    dropout_mask: DropoutMask | None
    minibatch: int


class _Graph(Protocol):
    """A graph one node at a time, over whatever type of value its evaluator works on."""

    edges: Edges

    def enter(self, array: Array) -> Any: ...

    def leave(self, value: Any) -> Array: ...

    def run(self, index: int, values: dict[str, Any]) -> None: ...


def _backend(model: onnx.ModelProto, options: _Options, wanted: EvaluatorName) -> tuple[_Graph, str]:
    if wanted == "torch" or (wanted == "auto" and torch_reference.available()):
        from tilegrad.verify.torch_executor import UnsupportedByReferenceError

        try:
            return _TorchGraph(model, options), torch_reference.name()
        except UnsupportedByReferenceError:
            if wanted == "torch":
                raise
    return _OnnxGraph(model, options), f"ONNX reference evaluator {onnx.__version__} float64"


class _TorchGraph:
    def __init__(self, model: onnx.ModelProto, options: _Options) -> None:
        from tilegrad.verify.torch_executor import TorchModel
        from tilegrad.verify.torch_ops import Mode

        self._model = TorchModel(model, "float64")
        self._mode = Mode(options.batch_statistics, options.dropout_mask, options.minibatch)
        self.edges: Edges = [(step.inputs, step.outputs) for step in self._model.steps]

    def enter(self, array: Array) -> Any:
        import torch

        return torch.tensor(array)

    def leave(self, value: Any) -> Array:
        return np.array(value.numpy())

    def run(self, index: int, values: dict[str, Any]) -> None:
        from tilegrad.verify.torch_executor import one_thread

        with one_thread():
            self._model.run_step(index, values, self._mode)


class _OnnxGraph:
    def __init__(self, model: onnx.ModelProto, options: _Options) -> None:
        foreign = {f"{n.domain}.{n.op_type}" for n in model.graph.node if n.domain not in ("", "ai.onnx")}
        if foreign:
            raise UserError(
                f"no reference can execute {', '.join(sorted(foreign))}",
                stage="verify",
                hint="--no-verify (verify=False), and check against the same model in standard operators",
            )
        replaced = list(REPLACED_OPERATORS)
        if options.batch_statistics:
            initializers = {proto.name for proto in model.graph.initializer}
            replaced.append(_batch_normalization(with_running_statistics(model.graph.node, initializers)))
        evaluator = ReferenceEvaluator(to_double(model), new_ops=replaced)
        self._options = options
        self._nodes = evaluator.rt_nodes_
        self.edges: Edges = [(tuple(node.input), tuple(node.output)) for node in self._nodes]

    def enter(self, array: Array) -> Any:
        return array

    def leave(self, value: Any) -> Array:
        return np.asarray(value)

    def run(self, index: int, values: dict[str, Any]) -> None:
        node = self._nodes[index]
        arguments = [values[name] if name else None for name in node.input]
        if node.onnx_node.op_type == "Dropout":
            results = self._dropout(node.onnx_node, arguments)
        else:
            results = node.run(*arguments)
        for name, value in zip(node.output, results, strict=False):
            if name:
                values[name] = value

    def _dropout(self, node: onnx.NodeProto, arguments: list[Any]) -> tuple[Array, Array]:
        x, options = arguments[0], self._options
        mask = None
        if options.dropout_mask is not None:
            mask = options.dropout_mask(node.name or node.output[0], x.shape, options.minibatch)
        if mask is None:
            return x, np.ones(x.shape, dtype=bool)
        ratio = next((attribute.f for attribute in node.attribute if attribute.name == "ratio"), 0.5)
        if len(arguments) > 1 and arguments[1] is not None:
            ratio = float(arguments[1])
        keep = np.asarray(mask).reshape(x.shape) != 0
        return np.where(keep, x / (1.0 - ratio) if ratio < 1.0 else x, 0.0), keep


_erf = np.vectorize(math.erf, otypes=[np.float64])


class _Erf(OpRun):
    """ONNX's own answers in float32 whatever it is given."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (_erf(x),)


class _Gelu(OpRun):
    """ONNX's own goes through its float32 Erf and float32 constants."""

    op_domain = ""

    def _run(self, x: Array, approximate: str = "none") -> tuple[Array]:
        if approximate == "tanh":
            return (0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))),)
        return (0.5 * x * (1.0 + _erf(x / math.sqrt(2.0))),)


class _GroupNormalization(OpRun):
    """ONNX's own goes through float32, its default `stash_type`."""

    op_domain = ""

    def _run(
        self, x: Array, scale: Array, bias: Array, num_groups: int = 1, epsilon: float = 1e-5, **_: Any
    ) -> tuple[Array]:
        grouped = x.reshape(x.shape[0], num_groups, -1)
        centred = grouped - grouped.mean(axis=2, keepdims=True)
        normal = centred / np.sqrt(np.square(centred).mean(axis=2, keepdims=True) + epsilon)
        repeats, shape = x.shape[1] // scale.size, (-1, *[1] * (x.ndim - 2))
        wide, offset = (np.repeat(values, repeats).reshape(shape) for values in (scale, bias))
        return (normal.reshape(x.shape) * wide + offset,)


def _batch_normalization(running: frozenset[str]) -> type[OpRun]:
    """Policy `train`: nodes with running statistics normalise by the mini-batch's own mean and population variance, as
    both ONNX and PyTorch do in training. `running` are these nodes' outputs; others take the statistics they are given.
    """

    class BatchNormalization(OpRun):
        op_domain = ""

        def _run(
            self, x: Array, scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float = 1e-5, **rest: Any
        ) -> tuple[Array]:
            axes, shape = (0, *range(2, x.ndim)), (-1, *[1] * (x.ndim - 2))
            center, spread = mean.reshape(shape), variance.reshape(shape)
            if self.onnx_node.output[0] in running or rest.get("training_mode"):
                center = x.mean(axis=axes, keepdims=True)
                spread = np.square(x - center).mean(axis=axes, keepdims=True)
            normal = (x - center) / np.sqrt(spread + epsilon)
            return (normal * scale.reshape(shape) + bias.reshape(shape),)

    return BatchNormalization


for _operator in (_Erf, _Gelu, _GroupNormalization):
    _operator.__name__ = _operator.__name__.removeprefix("_")  # the evaluator finds operators by class name

REPLACED_OPERATORS: list[type[OpRun]] = [_Erf, _Gelu, _GroupNormalization]
"""Operators of ONNX's evaluator that do not keep to float64 by themselves."""


def _widened(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" or str(array.dtype) == "bfloat16" else array


def to_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every float tensor, constant, cast and declared type is a double."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for proto in wide.graph.initializer:
        _widen_tensor(proto)
    for value in (*wide.graph.input, *wide.graph.output):
        if value.type.tensor_type.elem_type in _NARROW_FLOATS:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    del wide.graph.value_info[:]
    for node in wide.graph.node:
        for attribute in node.attribute:
            _widen_attribute(node, attribute)
    return wide


def _widen_attribute(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> None:
    if attribute.type == onnx.AttributeProto.TENSOR:
        _widen_tensor(attribute.t)
    elif attribute.name in ("to", "dtype", "stash_type") and attribute.i in _NARROW_FLOATS:
        attribute.i = TensorProto.DOUBLE
    elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
        held = attribute.f if attribute.name == "value_float" else list(attribute.floats)
        attribute.CopyFrom(onnx.helper.make_attribute("value", numpy_helper.from_array(np.array(held, np.float64))))


def _widen_tensor(proto: TensorProto) -> None:
    if proto.data_type in _NARROW_FLOATS:
        proto.CopyFrom(numpy_helper.from_array(_widened(numpy_helper.to_array(proto)), proto.name))


def with_unit_variance(model: onnx.ModelProto, x: Array) -> onnx.ModelProto:
    """A copy whose running variances are scaled so that every BatchNormalization puts out a variance of 1 for `x`.

    Running statistics that were never fitted let gradients vanish with depth, and differences of a float64 loss resolve
    no gradient 1e-12 times the largest. What generated code computes can as well be checked at these constants.
    """
    initializers = {proto.name: proto for proto in model.graph.initializer}
    graph, _ = _backend(model, _Options(False, None, 0), "auto")
    values = {name: graph.enter(_widened(numpy_helper.to_array(proto))) for name, proto in initializers.items()}
    fed = next(value.name for value in model.graph.input if value.name not in initializers)
    values[fed] = graph.enter(np.asarray(x, dtype=np.float64) if np.asarray(x).dtype.kind == "f" else np.asarray(x))
    fitted: dict[str, Array] = {}
    normalisations = {tuple(node.output): node for node in model.graph.node if node.op_type == "BatchNormalization"}
    for index, (_, outputs) in enumerate(graph.edges):
        if outputs in normalisations:
            variance = normalisations[outputs].input[4]
            graph.run(index, values)
            spread = float(graph.leave(values[outputs[0]]).var())
            if variance in initializers and spread > 0.0:
                fitted[variance] = (graph.leave(values[variance]) * spread).astype(np.float32)
                values[variance] = graph.enter(_widened(fitted[variance]))
        graph.run(index, values)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for proto in copy.graph.initializer:
        if proto.name in fitted:
            proto.CopyFrom(numpy_helper.from_array(fitted[proto.name], proto.name))
    return copy

