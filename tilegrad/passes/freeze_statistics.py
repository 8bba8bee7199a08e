"""Policy `frozen`: the inverse deviation of a constant variance is a constant.

A BatchNormalization whose variance does not change needs no square root and no division while the program runs. The
bits are those of the kernel: each operation is IEEE, rounded to float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import Constant


def inverse_deviation(variance: npt.NDArray[np.float32], epsilon: float) -> npt.NDArray[np.float32]:
    """`tg_inverse_deviation` of runtime/tg_normalize.h."""
    one = np.float32(1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(one / np.sqrt(variance + np.float32(epsilon)), dtype=np.float32)


@dataclass(frozen=True)
class FreezeStatistics:
    """A graph pass, before differentiation: the graph with inverse deviations for variances. Valid in, valid out."""

    def apply(self, graph: Graph) -> Graph:
        made = _inverse_deviations(graph)
        if not made:
            return graph
        constants, types = dict(graph.constants), dict(graph.types)
        for (variance, epsilon), name in made.items():
            constants[name] = Constant(inverse_deviation(constants[variance].array.astype(np.float32), epsilon))
            types[name] = constants[name].type
        nodes = tuple(_frozen(node, made) if _is_frozen(graph, node) else node for node in graph.nodes)
        read = {name for node in nodes for name in node.inputs} | set(graph.outputs)
        dropped = {variance for variance, _ in made} - read
        kept = {name: constant for name, constant in constants.items() if name not in dropped}
        types = {name: tensor_type for name, tensor_type in types.items() if name not in dropped}
        return verify_graph(replace(graph, nodes=nodes, constants=kept, types=types))


def frozen_variances(graph: Graph) -> dict[str, str]:
    """The variance that each constant stands for which `FreezeStatistics` makes of this graph's."""
    return {name: variance for (variance, _), name in _inverse_deviations(graph).items()}


def _inverse_deviations(graph: Graph) -> dict[tuple[str, float], str]:
    """What is made of each variance and epsilon, by a name that the model does not use."""
    made: dict[tuple[str, float], str] = {}
    taken = set(graph.types)
    for node in graph.nodes:
        if not _is_frozen(graph, node) or _statistic(node) in made:
            continue
        hint = f"{node.inputs[4]}.inverse_deviation"
        name = next(n for i in range(len(taken) + 1) if (n := f"{hint}.{i}" if i else hint) not in taken)
        made[_statistic(node)] = name
        taken.add(name)
    return made


def _is_frozen(graph: Graph, node: Node) -> bool:
    is_inferring = node.op == "BatchNormalization" and not node.attributes.get("training_mode", 0)
    return is_inferring and node.inputs[4] in graph.constants


def _statistic(node: Node) -> tuple[str, float]:
    """The variance and the epsilon that is added to it."""
    return node.inputs[4], float(node.attributes.get("epsilon", 1e-5))  # type: ignore[arg-type]


def _frozen(node: Node, made: Mapping[tuple[str, float], str]) -> Node:
    inputs = (*node.inputs[:4], made[_statistic(node)])
    return Node(node.name, "FrozenBatchNormalization", inputs, node.outputs[:1])
