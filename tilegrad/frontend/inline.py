"""Functions become their bodies: the model's own, and those by which ONNX defines an operator we do not have."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import defs, inliner

from tilegrad.errors import UserError
from tilegrad.frontend.check import ONNX_DOMAINS, opset_of
from tilegrad.frontend.growth import Growth, expect_bounded_functions
from tilegrad.frontend.unsupported import node_label
from tilegrad.ops import registry

_ROUNDS = 4
_LARGEST_DEFINITION_NODES = 100
# Their bodies would only replace an operator by several that we do not have either, or hide what it is.
_KEPT_WHOLE = frozenset(("Dropout", "Bernoulli", "Range", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"))


def inline_local_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    if not model.functions:
        return model
    expect_bounded_functions(model)
    try:
        return inliner.inline_local_functions(model)
    except (RuntimeError, ValueError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise UserError(
            "the model's functions cannot be inlined", stage="import", got=str(error).strip().split("\n")[0]
        ) from error


def expand_defined_operators(model: onnx.ModelProto) -> onnx.ModelProto:
    """Attention, RMSNormalization, Mish and the like, written with operators that we may have."""
    for _ in range(_ROUNDS):
        found = sorted({node.op_type for node in model.graph.node if _is_expandable(node, opset_of(model))})
        if not found:
            break
        _expect_bounded_definitions(model, set(found))
        try:
            expanded = inliner.inline_selected_functions(
                _with_defaults(model, set(found)),
                [("", name) for name in found],
                exclude=False,
                inline_schema_functions=True,
            )
            model = _named_after(expanded, model, set(found))
        except (RuntimeError, ValueError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            break  # what could not be expanded is listed as unsupported later, with its node's name
    return model


def _expect_bounded_definitions(model: onnx.ModelProto, operators: set[str]) -> None:
    """As many nodes as the standard's definition has, or more than any whose definition depends on its operands."""
    total = Growth()
    for position, node in enumerate(model.graph.node):
        if node.op_type in operators and node.domain in ONNX_DOMAINS:
            schema: Any = defs.get_schema(node.op_type, opset_of(model), "")
            count = len(schema.function_body.node) if schema.has_function else _LARGEST_DEFINITION_NODES
            total += Growth(count)
            total.expect_within_bounds(
                "operators that ONNX defines by others", node_label(node, position), f"the definition of {node.op_type}"
            )


def _with_defaults(model: onnx.ModelProto, operators: set[str]) -> onnx.ModelProto:
    """Default attributes written out: the inliner leaves a body's references to absent ones empty."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for node in result.graph.node:
        if node.op_type not in operators or node.domain not in ONNX_DOMAINS:
            continue
        given = {attribute.name for attribute in node.attribute}
        schema = defs.get_schema(node.op_type, opset_of(model), "")
        node.attribute.extend(
            entry.default_value
            for name, entry in schema.attributes.items()
            if name not in given and entry.default_value.name
        )
    return result


def _named_after(expanded: onnx.ModelProto, model: onnx.ModelProto, operators: set[str]) -> onnx.ModelProto:
    """Nodes of a body are called after the node they came from; the inliner leaves them without names."""
    kept = {node.output[0] for node in model.graph.node if node.output and node.op_type not in operators}
    origins = iter([node for node in model.graph.node if node.op_type in operators])
    origin = next(origins, None)
    for node in expanded.graph.node:
        if node.output and node.output[0] in kept:
            continue
        if origin is not None and not node.name:
            node.name = f"{origin.name or origin.output[0]}/{node.op_type}"
        if origin is not None and set(node.output) & set(filter(None, origin.output)):
            origin = next(origins, None)
    return expanded


def _is_expandable(node: onnx.NodeProto, opset: int) -> bool:
    if node.domain not in ONNX_DOMAINS or node.op_type in _KEPT_WHOLE or registry.find(node.op_type) is not None:
        return False
    try:
        schema: Any = defs.get_schema(node.op_type, opset, "")
    except defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)
