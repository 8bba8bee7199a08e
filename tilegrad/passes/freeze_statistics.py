"""Policy `frozen`: the inverse deviation of a constant variance is a constant.

A BatchNormalization whose variance does not change needs no square root and no division while the program runs. The
bits are those of the kernel: each operation is IEEE, rounded to float32.
"""

from __future__ import annotations

from dataclasses import replace

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


def freeze_statistics(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """The graph with inverse deviations for variances, and which variance each of these constants stands for."""
    made: dict[tuple[str, float], str] = {}
    constants, types = dict(graph.constants), dict(graph.types)
    nodes: list[Node] = []
    for node in graph.nodes:
        is_frozen = node.op == "BatchNormalization" and not node.attributes.get("training_mode", 0)
        if not is_frozen or node.inputs[4] not in graph.constants:
            nodes.append(node)
            continue
        variance, epsilon = node.inputs[4], float(node.attributes.get("epsilon", 1e-5))  # type: ignore[arg-type]
        if (variance, epsilon) not in made:
            hint = f"{variance}.inverse_deviation"
            name = next(n for i in range(len(types) + 1) if (n := f"{hint}.{i}" if i else hint) not in types)
            constants[name] = Constant(inverse_deviation(constants[variance].array.astype(np.float32), epsilon))
            types[name] = constants[name].type
            made[variance, epsilon] = name
        inputs = (*node.inputs[:4], made[variance, epsilon])
        nodes.append(Node(node.name, "FrozenBatchNormalization", inputs, node.outputs[:1]))
    if not made:
        return graph, {}
    read = {name for node in nodes for name in node.inputs} | set(graph.outputs)
    dropped = {variance for variance, _ in made} - read
    kept = {name: constant for name, constant in constants.items() if name not in dropped}
    types = {name: tensor_type for name, tensor_type in types.items() if name not in dropped}
    frozen = verify_graph(replace(graph, nodes=tuple(nodes), constants=kept, types=types))
    return frozen, {name: variance for (variance, _), name in made.items()}
