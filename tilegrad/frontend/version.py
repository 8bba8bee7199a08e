"""Converts any opset we read to the canonical one, mostly with ONNX's own converter."""

from __future__ import annotations

import onnx
from onnx import checker, defs, helper, shape_inference, version_converter

from tilegrad.errors import UserError
from tilegrad.frontend.check import CANONICAL_OPSET, ONNX_DOMAINS, opset_of
from tilegrad.frontend.fold import lenient_types
from tilegrad.frontend.onnx_values import static_shape
from tilegrad.frontend.unsupported import unsupported_error, unsupported_nodes
from tilegrad.frontend.weights import Arrays

IR_VERSION = 11
"""The first that may carry the canonical opset."""

GROUP_SCALE_BEFORE_OPSET = 21
"""Until then GroupNormalization had a scale per group; ONNX's converter lets such a node through as it is."""

ConversionFailure = (
    *(RuntimeError, ValueError, MemoryError, checker.ValidationError, shape_inference.InferenceError),
    version_converter.ConvertError,
)


def to_canonical_opset(model: onnx.ModelProto, arrays: Arrays) -> onnx.ModelProto:
    version = opset_of(model)
    if version < GROUP_SCALE_BEFORE_OPSET:
        model = _scale_per_channel(model, arrays)
    if version != CANONICAL_OPSET:
        model = _convert(model, arrays, version)
    model.ir_version = max(model.ir_version, IR_VERSION)
    return model


def _convert(model: onnx.ModelProto, arrays: Arrays, version: int) -> onnx.ModelProto:
    """ONNX's converter gives up on the whole model where one node is wrong. Then each node is converted by itself, and
    what is wrong is left for the sweep, which says it better."""
    try:
        return version_converter.convert_version(model, CANONICAL_OPSET)
    except ConversionFailure as error:
        if found := unsupported_nodes(model):
            raise unsupported_error(found, {}) from error
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    types = lenient_types(model, arrays)
    for node in model.graph.node:
        result.graph.node.extend([node] if is_unchanged(node, version) else convert_node(node, types, version))
    for entry in result.opset_import:
        if entry.domain in ONNX_DOMAINS:
            entry.version = CANONICAL_OPSET
    return result


def is_unchanged(node: onnx.NodeProto, version: int) -> bool:
    if node.domain not in ONNX_DOMAINS:
        return True
    try:
        schemas = [defs.get_schema(node.op_type, opset, "") for opset in (version, CANONICAL_OPSET)]
    except defs.SchemaError:
        return True
    return schemas[0].since_version == schemas[1].since_version


def convert_node(node: onnx.NodeProto, types: dict[str, onnx.TypeProto], version: int) -> list[onnx.NodeProto]:
    """The node alone, in a model of its own; unchanged if that cannot be converted either."""
    inputs = dict.fromkeys(filter(None, node.input))
    if any(name not in types for name in inputs):
        return [node]
    graph = helper.make_graph(
        [node],
        "node",
        [helper.make_value_info(name, types[name]) for name in inputs],
        [helper.make_empty_tensor_value_info(name) for name in node.output if name],
    )
    alone = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=IR_VERSION)
    try:
        converted = version_converter.convert_version(alone, CANONICAL_OPSET)
    except ConversionFailure:
        return [node]
    kept = {*inputs, *node.output}
    for fresh in converted.graph.node:
        for names in (fresh.input, fresh.output):
            for position, name in enumerate(names):
                names[position] = name if name in kept or not name else f"{node.output[0]}.{name}"
    return list(converted.graph.node)


def _scale_per_channel(model: onnx.ModelProto, arrays: Arrays) -> onnx.ModelProto:
    """Repeats each group's scale and bias for its channels; the initializers stay what they are."""
    grouped = [n for n in model.graph.node if n.op_type == "GroupNormalization" and n.domain in ONNX_DOMAINS]
    if not grouped:
        return model
    types = lenient_types(model, arrays)
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
