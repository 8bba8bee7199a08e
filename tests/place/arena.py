"""Executes an entry as a plan says: every value lies in one of two byte arrays, at its planned offset."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tests.support.kernels import call_kernel, run_graph
from tilegrad.analysis.lifetimes import temporaries
from tilegrad.ir.nest import whole
from tilegrad.ir.plan import Plan
from tilegrad.ir.types import TensorType
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView

Values = Mapping[str, np.ndarray]


def run_planned(plan: Plan, entry: str, feeds: Values, cores: int = 2) -> dict[str, bytes]:
    """Bytes of the entry's outputs (by name) and of all state afterwards (by "state:" and name)."""
    graph = plan.schedule.entries[entry].graph
    state_types = {tensor.name: tensor.type for tensor in plan.schedule.program.state}
    scratch = {name: tensor_type for name, (_, tensor_type) in temporaries(graph).items()}
    types = {**state_types, **scratch, **graph.types}
    memory = {
        "state": np.full(plan.state_bytes, 0xA5, np.uint8),
        "arena": np.full(plan.arena_bytes, 0xA5, np.uint8),
    }

    def at(value: str, tensor_type: TensorType) -> np.ndarray:
        address = plan.address(entry, value)
        piece = memory[address.region][address.offset : address.offset + tensor_type.size_bytes]
        return piece.view(tensor_type.dtype.numpy).reshape(tensor_type.shape)

    for name in (*state_types, *graph.inputs):
        at(name, types[name])[...] = feeds[name]
    for node in graph.nodes:
        if registry.get(node.op).is_view:
            continue
        for nest in registry.get(node.op).nests(NodeView(node, graph.types)):
            arrays = {
                operand.name: None
                if operand.value is None
                else at(operand.value, types[operand.value]).reshape(operand.shape)
                for operand in nest.operands
            }
            for core in range(cores):
                call_kernel(node.op, nest, whole(nest), arrays, core, cores)
    result = {name: at(name, types[name]).tobytes() for name in graph.outputs}
    for name, tensor_type in state_types.items():
        offset = plan.state_addresses[name].offset
        result[f"state:{name}"] = memory["state"][offset : offset + tensor_type.size_bytes].tobytes()
    return result


def run_apart(plan: Plan, entry: str, feeds: Values) -> dict[str, bytes]:
    """The same, with an array of its own for every value."""
    graph = plan.schedule.entries[entry].graph
    values = run_graph(graph, {name: feeds[name] for name in (*graph.inputs, *graph.state)})
    result = {name: values[name].tobytes() for name in graph.outputs}
    becomes = {state: value for value, state in graph.writes}
    for tensor in plan.schedule.program.state:
        result[f"state:{tensor.name}"] = {**feeds, **values}[becomes.get(tensor.name, tensor.name)].tobytes()
    return result


def random_feeds(plan: Plan, entry: str, seed: int) -> dict[str, np.ndarray]:
    graph = plan.schedule.entries[entry].graph
    types = {tensor.name: tensor.type for tensor in plan.schedule.program.state}
    types |= {name: graph.types[name] for name in graph.inputs}
    draw = np.random.default_rng(seed)
    return {name: draw.standard_normal(t.shape).astype(t.dtype.numpy) for name, t in types.items()}
