"""Axis attributes: one reading of negative, repeated and out-of-range axes for every operator that has them."""

from __future__ import annotations

from tilegrad.ops.base import NodeView


def normalised_axis(node: NodeView, axis: int, rank: int) -> int:
    """The axis counted from the front; out of range is the user's error."""
    if not -rank <= axis < rank:
        raise node.error(
            f"{node.node.op}: axis {axis} does not exist",
            expected=f"{-rank} to {rank - 1} for rank {rank}",
            got=str(axis),
        )
    return axis % rank


def normalised_axes(node: NodeView, axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Ascending axes counted from the front, each at most once."""
    result = sorted(normalised_axis(node, axis, rank) for axis in axes)
    if len(set(result)) != len(result):
        raise node.error(f"{node.node.op}: an axis is named twice", expected="distinct axes", got=str(list(axes)))
    return tuple(result)
