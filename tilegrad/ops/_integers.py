"""Integer lists as ONNX gives them: a scalar stands for a list of one."""

from __future__ import annotations

from tilegrad.ops.base import NodeView


def integer_list(node: NodeView, name: str) -> tuple[int, ...] | None:
    """An attribute that is a list of integers, None where it is absent."""
    value = node.node.attributes.get(name)
    if value is None:
        return None
    if isinstance(value, int):
        return (value,)
    if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
        return tuple(int(item) for item in value)
    raise node.error(f"{node.node.op}: '{name}' is no list of integers", got=repr(value))


def required_integers(node: NodeView, name: str) -> tuple[int, ...]:
    value = integer_list(node, name)
    if value is None:
        raise node.error(f"{node.node.op} needs the attribute '{name}'")
    return value
