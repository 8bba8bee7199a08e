"""A model's graph with the operators that a program puts together (GELU, LayerNormalization), for runs that round what
is saved: what autograd saves of the parts is not what the whole needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    from tilegrad.ir.program import Program

_FUSED = ("Gelu", "LayerNormalization")


def with_fused_forms(model: onnx.ModelProto, program: Program) -> onnx.ModelProto:
    """The same function. Parts that nobody reads any more are left: nothing comes back to them."""
    made = {name: node for node in model.graph.node for name in node.output}
    whole = {
        node.outputs[0]: node
        for node in program.entries["infer"].nodes
        if node.op in _FUSED and node.outputs[0] in made and made[node.outputs[0]].op_type != node.op
    }
    if not whole:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    known = {tensor.name for tensor in model.graph.initializer}
    for before in model.graph.node:
        node = next((whole[name] for name in before.output if name in whole), None)
        if node is None:
            result.graph.node.append(before)
            continue
        for name in node.inputs:
            state = next((tensor for tensor in program.state if tensor.name == name), None)
            if name and name not in made and name not in known and state is not None and state.initial is not None:
                result.graph.initializer.append(numpy_helper.from_array(state.initial.array, name))
                known.add(name)
        attributes: dict[str, Any] = {key: value for key, value in node.attributes.items() if key != "stash_type"}
        result.graph.node.append(
            helper.make_node(node.op, list(node.inputs), [node.outputs[0]], name=before.name, **attributes)
        )
    return result
