"""ONNX Runtime's training operators, and the closest peer's forms of them, as ours: one rule for each that differs.

Whatever is not named here is one of our operators already, or is refused with all others of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import helper

from tilegrad.errors import UserError
from tilegrad.ir.graph import Node
from tilegrad.ir.types import TensorType

ALONG_AXIS_SINCE_OPSET = 13
"""Before that, Softmax was over all dimensions from its axis on."""

LOSSES = ("SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossInternal", "NegativeLogLikelihoodLoss")
LOSS_GRADIENTS = ("SoftmaxCrossEntropyLossGrad", "SoftmaxCrossEntropyLossInternalGrad")


class Context(Protocol):
    """What a rule may ask of the graph it is applied to, and do to it."""

    opset: int

    def type_of(self, value: str) -> TensorType: ...

    def array_of(self, value: str, what: str) -> np.ndarray[Any, Any]:
        """A constant's content; `what` says what it is, where it is none."""
        ...

    def producer(self, value: str) -> onnx.NodeProto | None: ...

    def readers(self, value: str) -> Sequence[onnx.NodeProto]: ...

    def nodes_of(self, op: str) -> Sequence[onnx.NodeProto]: ...

    def constant(self, array: Any, hint: str) -> str: ...

    def fresh(self, hint: str) -> str: ...

    def note(self, text: str) -> None:
        """Something that a user should know."""
        ...

    def make(self, op: str, inputs: Sequence[str], outputs: Sequence[str], attributes: Mapping[str, Any]) -> Node: ...

    def define(self, value: str, array: Any) -> None:
        """The value is this constant."""
        ...


Rule = Callable[[Context, onnx.NodeProto], "list[Node] | None"]
RULES: dict[str, Rule] = {}
"""A rule that returns None leaves the node to our operator of that name."""


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return add


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    found = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        found[attribute.name] = value.decode() if isinstance(value, bytes) else value
    return found


def _present(node: onnx.NodeProto, position: int) -> str:
    return node.input[position] if position < len(node.input) else ""


@_rule("Gemm")
def _gemm(context: Context, node: onnx.NodeProto) -> list[Node] | None:
    """Of matrices as they are; of stacks of matrices a product of each pair."""
    a, b = node.input[:2]
    if context.type_of(a).rank <= 2 and context.type_of(b).rank <= 2:
        return None
    given = attributes_of(node)
    beta, bias = float(given.get("beta", 1.0)), _present(node, 2)
    adds = bool(bias) and beta != 0.0
    product = context.fresh(f"{node.output[0]}.product") if adds else node.output[0]
    flags = {key: int(given[key]) for key in ("transA", "transB") if given.get(key)}
    alpha = float(given.get("alpha", 1.0))
    made = [context.make("FusedMatMul", [a, b], [product], flags | ({"alpha": alpha} if alpha != 1.0 else {}))]
    if adds and beta != 1.0:
        scaled = context.fresh(f"{bias}.scaled")
        made.append(context.make("Mul", [bias, context.constant(np.float32(beta), "beta")], [scaled], {}))
        bias = scaled
    if adds:
        made.append(context.make("Add", [product, bias], [node.output[0]], {}))
    return made


@_rule("Scale")
def _scale(context: Context, node: onnx.NodeProto) -> list[Node]:
    scale = context.array_of(node.input[1], "the scale").reshape(-1)
    op = "Div" if attributes_of(node).get("scale_down") else "Mul"
    factor = context.constant(scale[0].astype(np.float32), f"{node.output[0]}.scale")
    return [context.make(op, [node.input[0], factor], [node.output[0]], {})]


@_rule("BiasGelu", "FastGelu")
def _bias_gelu(context: Context, node: onnx.NodeProto) -> list[Node]:
    how = {"approximate": "tanh"} if node.op_type == "FastGelu" else {}
    made, x = _biased(context, node, node.input[0], _present(node, 1))
    return [*made, context.make("Gelu", [x], [node.output[0]], how)]


@_rule("BiasGeluGrad_dX", "BiasFastGeluGrad_dX", "FastGeluGrad")
def _bias_gelu_gradient(context: Context, node: onnx.NodeProto) -> list[Node]:
    how = {"approximate": "tanh"} if "Fast" in node.op_type else {}
    made, x = _biased(context, node, node.input[1], _present(node, 2))
    return [*made, context.make("GeluGrad", [node.input[0], x], [node.output[0]], how)]


@_rule("GeluGrad")
def _gelu_gradient(context: Context, node: onnx.NodeProto) -> list[Node]:
    """The peer takes a BiasGelu apart into Add and Gelu, and leaves its gradient with what the bias was added to. What
    a Gelu's gradient reads is that Gelu's input."""
    x, how = node.input[1], {k: v for k, v in attributes_of(node).items() if k == "approximate"}
    inputs = [gelu.input[0] for gelu in context.nodes_of("Gelu")]
    if x not in inputs and inputs:
        sums = {total: context.producer(total) for total in inputs}
        found = [total for total, made in sums.items() if made and made.op_type == "Add" and x in made.input]
        if len(found) == 1:
            label = node.name or node.output[0]
            context.note(f"GeluGrad '{label}' reads '{x}', which its Gelu adds a bias to: '{found[0]}' is taken")
            x = found[0]
    return [context.make("GeluGrad", [node.input[0], x], [node.output[0]], how)]


def _biased(context: Context, node: onnx.NodeProto, x: str, bias: str) -> tuple[list[Node], str]:
    if not bias:
        return [], x
    total = context.fresh(f"{node.output[0]}.biased")
    return [context.make("Add", [x, bias], [total], {})], total


@_rule("ReduceSumTraining")
def _reduce_sum(context: Context, node: onnx.NodeProto) -> list[Node]:
    given = attributes_of(node)
    axes = tuple(int(axis) for axis in context.array_of(node.input[1], "the axes").reshape(-1))
    if not axes and given.get("noop_with_empty_axes"):
        return [context.make("Identity", [node.input[0]], [node.output[0]], {})]
    kept = {"keepdims": int(given.get("keepdims", 1))}
    return [context.make("ReduceSum", [node.input[0]], [node.output[0]], kept | ({"axes": axes} if axes else {}))]


@_rule("ConcatTraining")
def _concat(context: Context, node: onnx.NodeProto) -> list[Node]:
    axis = int(attributes_of(node)["axis"])
    if len(node.output) > 1 and node.output[1]:
        lengths = [context.type_of(name).shape[axis] for name in node.input]
        context.define(node.output[1], np.array(lengths, np.int64))
    return [context.make("Concat", list(node.input), [node.output[0]], {"axis": axis})]


@_rule("SoftmaxGrad", "SoftmaxGrad_13", "LogSoftmaxGrad", "LogSoftmaxGrad_13")
def _softmax_gradient(context: Context, node: onnx.NodeProto) -> list[Node]:
    op, _, version = node.op_type.partition("_")
    along_axis = bool(version) or context.opset >= ALONG_AXIS_SINCE_OPSET
    shape = context.type_of(node.input[0]).shape
    axis = int(attributes_of(node).get("axis", -1 if along_axis else 1)) % max(len(shape), 1)
    if along_axis or axis == len(shape) - 1:
        return [context.make(op, list(node.input[:2]), [node.output[0]], {"axis": axis})]
    rows = (prod(shape[:axis]), prod(shape[axis:]))
    flat = [context.fresh(f"{name}.rows") for name in (*node.input[:2], node.output[0])]
    pairs = zip(node.input[:2], flat[:2], strict=True)
    made = [context.make("Reshape", [name], [to], {"shape": rows}) for name, to in pairs]
    made.append(context.make(op, flat[:2], [flat[2]], {"axis": 1}))
    return [*made, context.make("Reshape", [flat[2]], [node.output[0]], {"shape": shape})]


@_rule("LayerNormalizationGrad")
def _layer_norm_gradient(context: Context, node: onnx.NodeProto) -> list[Node] | None:
    """The peer hands on the bias where ONNX Runtime has the saved statistics."""
    if len(node.input) != 4:
        return None
    kept = {key: value for key, value in attributes_of(node).items() if key in ("axis", "epsilon")}
    return [context.make("LayerNormalizationGrad", list(node.input[:3]), list(node.output), kept)]


@_rule("BatchNormInternal")
def _batch_norm(context: Context, node: onnx.NodeProto) -> list[Node]:
    """ONNX's running variance is the population's."""
    given = attributes_of(node)
    kept: dict[str, Any] = {key: given[key] for key in ("epsilon", "momentum") if key in given}
    outputs = [*node.output, *[""] * (5 - len(node.output))]
    for position in (1, 2, 3, 4):
        outputs[position] = outputs[position] or context.fresh(f"{node.output[0]}.statistic{position}")
    return [context.make(node.op_type, list(node.input), outputs, {**kept, "unbiased_running_variance": 0})]


@_rule("BatchNormalizationGrad")
def _batch_norm_gradient(context: Context, node: onnx.NodeProto) -> list[Node]:
    return [context.make(node.op_type, list(node.input), list(node.output), {})]


@_rule("MaxPool")
def _max_pool(context: Context, node: onnx.NodeProto) -> list[Node] | None:
    """Our gradient finds the maxima again: indices that only it reads are not kept."""
    if len(node.output) < 2 or any(reader.op_type != "MaxPoolGrad" for reader in context.readers(node.output[1])):
        return None
    return [context.make("MaxPool", [node.input[0]], [node.output[0]], _window(node))]


def _window(node: onnx.NodeProto) -> dict[str, Any]:
    kept = ("kernel_shape", "strides", "pads", "dilations", "auto_pad", "ceil_mode", "count_include_pad")
    return {key: value for key, value in attributes_of(node).items() if key in kept}


@_rule("MaxPoolGrad")
def _max_pool_gradient(context: Context, node: onnx.NodeProto) -> list[Node] | None:
    if len(node.input) == 3:
        return None
    forward = context.producer(node.input[1])
    if forward is None or forward.op_type != "MaxPool":
        raise UserError(
            "MaxPoolGrad: nothing says what was pooled",
            stage="import",
            node=node.name or node.output[0],
            expected=f"'{node.input[1]}' to be the indices of a MaxPool of the same graph",
            got="no such node" if forward is None else forward.op_type,
        )
    inputs = [node.input[0], forward.input[0], forward.output[0]]
    return [context.make("MaxPoolGrad", inputs, [node.output[0]], _window(forward))]


@_rule("AveragePoolGrad")
def _average_pool_gradient(context: Context, node: onnx.NodeProto) -> list[Node]:
    """The gradient does not say how large the image was: its forward node does."""
    wanted = context.type_of(node.input[0])
    fitting = [
        forward
        for forward in context.nodes_of("AveragePool")
        if context.type_of(forward.output[0]) == wanted and _window(forward) == _window(node)
    ]
    named = [f for f in fitting if node.output[0].startswith(f.input[0]) or node.input[0].startswith(f.output[0])]
    shapes = {context.type_of(forward.input[0]).shape for forward in named or fitting}
    if len(shapes) != 1:
        raise UserError(
            "AveragePoolGrad: its AveragePool is not to be found",
            stage="import",
            node=node.name or node.output[0],
            expected=f"one whose output is {wanted}",
            got=str(len(shapes)),
        )
    return [context.make(node.op_type, [node.input[0]], [node.output[0]], {**_window(node), "shape": shapes.pop()})]


def _ignored(context: Context, node: onnx.NodeProto, position: int) -> dict[str, Any]:
    given = attributes_of(node)
    found: dict[str, Any] = {key: given[key] for key in ("reduction", "ignore_index") if key in given}
    if _present(node, position):
        found["ignore_index"] = int(context.array_of(node.input[position], "ignore_index").reshape(-1)[0])
    return found


@_rule("SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossInternal")
def _loss(context: Context, node: onnx.NodeProto) -> list[Node]:
    """A single output is the log-probabilities where the gradient reads it as such."""
    outputs = list(node.output)
    if len(outputs) == 1 and any(_is_log_prob(reader, outputs[0]) for reader in context.readers(outputs[0])):
        outputs = [context.fresh("loss"), outputs[0]]
    elif len(outputs) == 1:
        outputs.append(context.fresh(f"{outputs[0]}.log_prob"))
    kept = _ignored(context, node, 3)
    inputs = [name for name in node.input[:3] if name]
    return [context.make("SoftmaxCrossEntropyLoss", inputs, outputs, kept)]


def _is_log_prob(reader: onnx.NodeProto, value: str) -> bool:
    place = 0 if len(reader.input) == 2 else 1
    return reader.op_type in LOSS_GRADIENTS and reader.input[place] == value


@_rule(*LOSS_GRADIENTS)
def _loss_gradient(context: Context, node: onnx.NodeProto) -> list[Node]:
    """Without a gradient of the loss that is 1."""
    inputs, kept = list(node.input), _ignored(context, node, 4)
    if len(inputs) == 2:
        labels = context.type_of(inputs[1]).shape if kept.get("reduction") == "none" else ()
        inputs = [context.constant(np.ones(labels, np.float32), "loss_grad"), *inputs]
    bias = _present(node, 5)
    total = context.fresh(f"{node.output[0]}.unbiased") if bias else node.output[0]
    given = [name for name in inputs[:4] if name]
    made = [context.make("SoftmaxCrossEntropyLossGrad", given, [total], kept)]
    return [*made, context.make("Add", [total, bias], [node.output[0]], {})] if bias else made
