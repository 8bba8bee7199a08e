"""Which BatchNormalizations have running statistics: what a recipe's policy is about.

Statistics that the graph computes (`track_running_stats=False`, a standardised weight) are part of the model: they stay
as they are under every policy, and are differentiated through.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import onnx

# What hands a stored tensor on without computing.
_HANDS_ON = frozenset(("Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze"))


def with_running_statistics(nodes: Iterable[onnx.NodeProto], initializers: Container[str]) -> frozenset[str]:
    """The first outputs of the BatchNormalizations whose mean and variance are stored, not computed."""
    nodes = list(nodes)
    producers = {output: node for node in nodes for output in node.output}

    def is_stored(value: str) -> bool:
        while (node := producers.get(value)) is not None and node.op_type in _HANDS_ON:
            value = node.input[0]
        return value in initializers or (node is not None and node.op_type == "Constant")

    return frozenset(
        node.output[0]
        for node in nodes
        if node.op_type == "BatchNormalization" and all(is_stored(name) for name in node.input[3:5])
    )
