"""One ONNX node as one of ours."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, defs, helper

from tilegrad.errors import UserError
from tilegrad.frontend.check import CANONICAL_OPSET
from tilegrad.frontend.onnx_values import dtype_of, element_type_name, to_array
from tilegrad.frontend.unsupported import operator_name
from tilegrad.ir.graph import Attribute, Node
from tilegrad.ir.types import Constant
from tilegrad.ops.base import Operator, static_attribute

# Attributes about types and provenance that have no meaning once a graph is typed.
_IGNORED = {
    "Cast": ("saturate", "round_mode"),
    "LayerNormalization": ("stash_type",),
    "GroupNormalization": ("stash_type",),
}


def to_node(
    node: onnx.NodeProto, name: str, operator: Operator, constants: Mapping[str, Any], opaque: set[str]
) -> Node:
    """Static operands become attributes, defaults are left out, absent optional operands at the end are dropped."""
    attributes = _attributes(node, name)
    inputs = list(node.input)
    for position, attribute in operator.static_inputs.items():
        if position >= len(inputs) or not inputs[position]:
            continue
        value = constants.get(inputs[position])
        if not isinstance(value, np.ndarray) or inputs[position] in opaque:
            raise UserError(
                f"{node.op_type}: input {position} ('{inputs[position]}') must be a constant",
                stage="import",
                node=name,
                expected=f"a constant '{attribute}'",
                got="a value that is computed from the model's inputs",
                hint="export the model with fixed shapes",
            )
        attributes[attribute] = static_attribute(value)
        inputs[position] = ""
    outputs = list(node.output)
    if node.op_type == "SoftmaxCrossEntropyLoss" and len([o for o in outputs if o]) == 1:
        outputs = [outputs[0], f"{outputs[0]}.log_prob"]
    return Node(name, operator_name(node), _trimmed(inputs), _trimmed(outputs), attributes)


def _trimmed(names: list[str]) -> tuple[str, ...]:
    while names and not names[-1]:
        names.pop()
    return tuple(names)


def _attributes(node: onnx.NodeProto, name: str) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {}
    for attribute in node.attribute:
        if attribute.name in _IGNORED.get(node.op_type, ()) or _is_default(node, attribute):
            continue
        if node.op_type == "Cast" and attribute.name == "to":
            dtype = dtype_of(attribute.i)
            if dtype is None:
                raise UserError(
                    f"Cast to {element_type_name(attribute.i)}",
                    stage="import",
                    node=name,
                    expected="f32, an integer type or bool",
                    got=element_type_name(attribute.i),
                )
            found["to"] = dtype.short
            continue
        found[attribute.name] = _value(attribute, node, name)
    return found


def _value(attribute: onnx.AttributeProto, node: onnx.NodeProto, name: str) -> Attribute:
    try:
        match attribute.type:
            case AttributeProto.INT:
                return int(attribute.i)
            case AttributeProto.FLOAT:
                return float(attribute.f)
            case AttributeProto.STRING:
                return attribute.s.decode()
            case AttributeProto.INTS:
                return tuple(int(value) for value in attribute.ints)
            case AttributeProto.FLOATS:
                return tuple(float(value) for value in attribute.floats)
            case AttributeProto.STRINGS:
                return tuple(value.decode() for value in attribute.strings)
            case AttributeProto.TENSOR:
                return Constant(to_array(attribute.t, f"attribute '{attribute.name}'"))
    except UnicodeDecodeError:
        pass
    raise UserError(
        f"{node.op_type}: attribute '{attribute.name}' cannot be used",
        stage="import",
        node=name,
        expected="a number, a text, a list of them or a tensor",
        got=AttributeProto.AttributeType.Name(attribute.type).lower(),
    )


@cache
def _defaults(op: str) -> dict[str, onnx.AttributeProto]:
    try:
        schema = defs.get_schema(op, CANONICAL_OPSET, "")
    except defs.SchemaError:
        return {}
    return {name: entry.default_value for name, entry in schema.attributes.items() if entry.default_value.name}


def _is_default(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> bool:
    default = _defaults(node.op_type).get(attribute.name)
    return default is not None and bool(
        helper.get_attribute_value(default) == helper.get_attribute_value(attribute) and default.type == attribute.type
    )
