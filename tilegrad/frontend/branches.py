"""An If whose condition is a constant becomes the branch it takes."""

from __future__ import annotations

import numpy as np
import onnx

from tilegrad.frontend.fold import Propagation
from tilegrad.frontend.onnx_values import to_array
from tilegrad.frontend.weights import Arrays

_ROUNDS = 100


def resolve_branches(model: onnx.ModelProto, arrays: Arrays) -> tuple[onnx.ModelProto, Arrays]:
    """Exporters put an If where an operator's meaning depends on a shape, which is static by now."""
    for round_number in range(_ROUNDS):
        if not any(node.op_type == "If" for node in model.graph.node):
            break
        spliced = _splice_first(model, arrays, round_number)
        if spliced is None:
            break
        model, arrays = spliced
    return model, arrays


def _splice_first(model: onnx.ModelProto, arrays: Arrays, round_number: int) -> tuple[onnx.ModelProto, Arrays] | None:
    known = Propagation.start(model, arrays)
    for position, node in enumerate(model.graph.node):
        condition = known.constants.get(node.input[0]) if node.op_type == "If" and node.input else None
        if isinstance(condition, np.ndarray) and condition.size == 1:
            wanted = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
            branch = next((attribute.g for attribute in node.attribute if attribute.name == wanted), None)
            if branch is None or len(branch.output) < len(node.output):
                return None
            return _with_branch(model, arrays, position, branch, f"{node.name or node.output[0]}.{round_number}.")
        known.step(node)
    return None


def _with_branch(
    model: onnx.ModelProto, arrays: Arrays, position: int, branch: onnx.GraphProto, prefix: str
) -> tuple[onnx.ModelProto, Arrays]:
    """The If's nodes replaced by the branch's, whose own names get the prefix."""
    node = model.graph.node[position]
    inside = {tensor.name for tensor in branch.initializer} | {name for n in branch.node for name in n.output if name}
    names = {name: prefix + name for name in inside}
    identities = []
    for inner, outer in zip(branch.output, node.output, strict=False):
        if outer and inner.name in inside and names[inner.name] == prefix + inner.name:
            names[inner.name] = outer
        elif outer:
            identities.append(onnx.helper.make_node("Identity", [names.get(inner.name, inner.name)], [outer]))
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(model.graph.node[:position])
    for inner_node in branch.node:
        result.graph.node.append(_renamed(inner_node, names, prefix))
    result.graph.node.extend(identities)
    result.graph.node.extend(model.graph.node[position + 1 :])
    fresh = {names[t.name]: to_array(t, f"initializer '{t.name}'") for t in branch.initializer}
    return result, {**arrays, **fresh}


def _renamed(node: onnx.NodeProto, names: dict[str, str], prefix: str) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = prefix + node.name if node.name else ""
    for sequence in (copy.input, copy.output):
        for i, name in enumerate(sequence):
            sequence[i] = names.get(name, name)
    for attribute in copy.attribute:
        if attribute.HasField("g"):
            inner = [_renamed(n, names, "") for n in attribute.g.node]
            del attribute.g.node[:]
            attribute.g.node.extend(inner)
            for value in attribute.g.output:
                value.name = names.get(value.name, value.name)
    return copy
