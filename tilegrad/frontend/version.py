"""Converts any opset we read to the canonical one, mostly with ONNX's own converter."""

from __future__ import annotations

import onnx
from onnx import checker, helper, shape_inference, version_converter

from tilegrad.errors import UserError
from tilegrad.frontend.check import CANONICAL_OPSET, ONNX_DOMAINS, opset_of
from tilegrad.frontend.onnx_values import static_shape
from tilegrad.frontend.unsupported import refuse_unsupported
from tilegrad.ops import registry

IR_VERSION = 11
"""The first that may carry the canonical opset."""

GROUP_SCALE_BEFORE_OPSET = 21
"""Until then GroupNormalization had a scale per group; ONNX's converter lets such a node through as it is."""


def to_canonical_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    version = opset_of(model)
    if version < GROUP_SCALE_BEFORE_OPSET:
        model = _scale_per_channel(model)
    if version != CANONICAL_OPSET:
        model = _convert(model, version)
    model.ir_version = max(model.ir_version, IR_VERSION)
    return model


def _convert(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    try:
        return version_converter.convert_version(model, CANONICAL_OPSET)
    except (RuntimeError, ValueError, checker.ValidationError, shape_inference.InferenceError) as error:
        if any(registry.find(n.op_type) is None and n.op_type not in _VANISHING for n in model.graph.node):
            refuse_unsupported(model)
        raise UserError(
            f"the model cannot be converted from ONNX opset {version} to {CANONICAL_OPSET}",
            stage="import",
            got=" ".join(str(error).split())[:300],
            hint="export it again with opset_version=17 or later",
        ) from error


_VANISHING = frozenset(("Constant", "Shape", "Size", "ConstantOfShape", "Range", "Equal", "Mod", "If"))


def _scale_per_channel(model: onnx.ModelProto) -> onnx.ModelProto:
    """Repeats each group's scale and bias for its channels; the initializers stay what they are."""
    grouped = [n for n in model.graph.node if n.op_type == "GroupNormalization" and n.domain in ONNX_DOMAINS]
    if not grouped:
        return model
    types = infer_leniently(model)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    for node in model.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        shape = static_shape(types[node.input[0]]) if node.input and node.input[0] in types else None
        if node in grouped and shape is not None and len(shape) > 1 and len(node.input) == 3:
            groups = next((attribute.i for attribute in node.attribute if attribute.name == "num_groups"), 1)
            if groups < 1 or shape[1] % groups:
                raise UserError(
                    "GroupNormalization: the channels do not divide into the groups",
                    stage="import",
                    node=node.name or None,
                    expected=f"a multiple of {groups}",
                    got=f"{shape[1]} channels",
                )
            for position in (1, 2):
                helpers, copy.input[position] = _repeat(node, position, groups, shape[1])
                result.graph.node.extend(helpers)
        result.graph.node.append(copy)
    return result


def _repeat(node: onnx.NodeProto, position: int, groups: int, channels: int) -> tuple[list[onnx.NodeProto], str]:
    source = node.input[position]
    stem = f"{node.output[0]}.{('scale', 'bias')[position - 1]}"

    def ints(name: str, values: list[int]) -> onnx.NodeProto:
        return helper.make_node("Constant", [], [name], value_ints=values)

    nodes = [
        ints(f"{stem}.column", [groups, 1]),
        ints(f"{stem}.grid", [groups, channels // groups]),
        ints(f"{stem}.flat", [channels]),
        helper.make_node("Reshape", [source, f"{stem}.column"], [f"{stem}.a"], name=f"{stem}/Reshape"),
        helper.make_node("Expand", [f"{stem}.a", f"{stem}.grid"], [f"{stem}.b"], name=f"{stem}/Expand"),
        helper.make_node("Reshape", [f"{stem}.b", f"{stem}.flat"], [f"{stem}.c"], name=f"{stem}/Reshape_1"),
    ]
    return nodes, f"{stem}.c"


def infer_leniently(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """The types ONNX can tell without an error; what is wrong is found later, node by node."""
    try:
        inferred = shape_inference.infer_shapes(model, data_prop=True)
    except (RuntimeError, ValueError, checker.ValidationError, shape_inference.InferenceError):
        inferred = model
    graph = inferred.graph
    return {value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)}
