"""An If whose condition is a constant becomes the branch it takes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx

from tilegrad.frontend.fold import Propagation
from tilegrad.frontend.growth import Growth
from tilegrad.frontend.onnx_values import to_array
from tilegrad.frontend.unsupported import node_label
from tilegrad.frontend.weights import Arrays


@dataclass
class _Spliced:
    """What a branch becomes in the place of its If."""

    nodes: list[onnx.NodeProto]
    arrays: Arrays = field(default_factory=dict)


def resolve_branches(model: onnx.ModelProto, arrays: Arrays) -> tuple[onnx.ModelProto, Arrays]:
    """Exporters put an If where an operator's meaning depends on a shape, which is static by now.

    One pass in execution order: a branch's nodes come next, and may hold further Ifs.
    """
    if not any(node.op_type == "If" for node in model.graph.node):
        return model, arrays
    known = Propagation.start(model, arrays)
    arrays = dict(arrays)
    pending = list(reversed(model.graph.node))
    kept: list[onnx.NodeProto] = []
    total, count = Growth(), 0
    while pending:
        node = pending.pop()
        branch = _branch_taken(node, known)
        if branch is None:
            known.step(node)
            kept.append(node)
            continue
        label = node_label(node, len(kept))
        total += Growth(len(branch.node), branch.ByteSize())
        total.expect_within_bounds("the branches of constant Ifs", label, f"'{label}'")
        spliced = _splice(node, branch, f"{node.name or node.output[0]}.{count}.")
        count += 1
        pending += reversed(spliced.nodes)
        arrays |= spliced.arrays
        known.learn(spliced.arrays)
    if not count:
        return model, arrays
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(kept)
    return result, arrays


def _branch_taken(node: onnx.NodeProto, known: Propagation) -> onnx.GraphProto | None:
    condition = known.constants.get(node.input[0]) if node.op_type == "If" and node.input else None
    if not isinstance(condition, np.ndarray) or condition.size != 1 or not any(node.output):
        return None
    wanted = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
    branch = next((attribute.g for attribute in node.attribute if attribute.name == wanted), None)
    return None if branch is None or len(branch.output) < len(node.output) else branch


def _splice(node: onnx.NodeProto, branch: onnx.GraphProto, prefix: str) -> _Spliced:
    """The branch's nodes with the prefix before their own names, and the If's outputs as theirs."""
    inside = {tensor.name for tensor in branch.initializer} | {name for n in branch.node for name in n.output if name}
    names = {name: prefix + name for name in inside}
    identities = []
    for inner, outer in zip(branch.output, node.output, strict=False):
        if outer and inner.name in inside and names[inner.name] == prefix + inner.name:
            names[inner.name] = outer
        elif outer:
            identities.append(onnx.helper.make_node("Identity", [names.get(inner.name, inner.name)], [outer]))
    nodes = [*(_renamed(inner, names, prefix) for inner in branch.node), *identities]
    return _Spliced(nodes, {names[t.name]: to_array(t, f"initializer '{t.name}'") for t in branch.initializer})


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
