"""GatherElements: each output element takes one element along the axis, and GatherElementsGrad in gather form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tilegrad.ir.graph import Attribute
from tilegrad.ir.nest import Access, Axis, AxisKind, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._axes import normalised_axis
from tilegrad.ops._gather import expect_in_range, expect_indices, indexed, missing_bits
from tilegrad.ops._integers import required_integers
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example

_SIDE_LOOPS = 2


@dataclass(frozen=True)
class _Loops:
    """(extent in the indices, extent in the data) of the loops before the axis, along it, and after it."""

    before: tuple[tuple[int, int], ...]
    axis: tuple[int, int]
    after: tuple[tuple[int, int], ...]

    def named(self) -> list[tuple[str, str, int, int]]:
        """(axis of the indices, axis of the data, extents) in order."""
        sides = [
            [(f"{side}{i}", f"{side}{i}", *pair) for i, pair in enumerate(loops)]
            for side, loops in (("p", self.before), ("q", self.after))
        ]
        return [*sides[0], ("j", "r", *self.axis), *sides[1]]


def _side(node: NodeView, pairs: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """A dimension taken whole joins the one before it."""
    result: list[tuple[int, int]] = []
    for index_extent, extent in pairs:
        if result and index_extent == extent:
            outer = result.pop()
            result.append((outer[0] * extent, outer[1] * extent))
        else:
            result.append((index_extent, extent))
    if len(result) > _SIDE_LOOPS:
        raise node.error(
            f"{node.node.op}: too many dimensions are taken in part",
            expected=f"at most {_SIDE_LOOPS} on either side of the axis",
            got=str(len(result)),
        )
    return ((1, 1),) * (_SIDE_LOOPS - len(result)) + tuple(result)


def _loops(node: NodeView, data: tuple[int, ...], indices: tuple[int, ...]) -> _Loops:
    if len(data) != len(indices) or not data:
        raise node.error(
            f"{node.node.op}: data and indices differ in rank",
            expected=f"indices of rank {max(len(data), 1)}",
            got=f"{list(data)} and {list(indices)}",
        )
    axis = normalised_axis(node, node.attribute("axis", 0), len(data))
    pairs = list(zip(indices, data, strict=True))
    if any(taken > extent for d, (taken, extent) in enumerate(pairs) if d != axis):
        raise node.error(
            f"{node.node.op}: the indices reach beyond the data",
            expected=f"at most {list(data)} except along axis {axis}",
            got=str(list(indices)),
        )
    if data[axis] == 0 and 0 not in indices:
        raise node.error(f"{node.node.op} from an axis without elements", expected="1 or more", got="0")
    return _Loops(_side(node, pairs[:axis]), pairs[axis], _side(node, pairs[axis + 1 :]))


class GatherElements(Operator):
    name = "GatherElements"
    nondifferentiable_inputs = (1,)

    def example(self, draw: Draw) -> Example:
        data = (draw.between(1, 12), draw.between(2, 30), draw.between(1, 20))
        indices = TensorType(draw.one_of(DType.I64, DType.I32), (data[0], draw.between(1, 20), data[2]))
        return Example((TensorType(draw.dtype(), data), indices), {"axis": 1})

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2)
        expect_indices(node, 1)
        x, indices = node.input(0), node.input(1)
        expect_in_range(node, 1, _loops(node, x.shape, indices.shape).axis[1])
        return (TensorType(x.dtype, indices.shape),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        x, indices = node.input(0), node.input(1)
        loops = _loops(node, x.shape, indices.shape).named()
        taken = tuple(extent for _, _, extent, _ in loops)
        by_index = tuple(along(name) for name, _, _, _ in loops)
        return (
            Nest(
                indexed("gather_elements", x.dtype, indices.dtype),
                (
                    *(Axis(name, extent) for name, _, extent, _ in loops),
                    *(Axis(name, extent, AxisKind.INNER) for _, name, _, extent in loops if name == "r"),
                ),
                (
                    Operand(
                        "x",
                        node.inputs[0],
                        Access.READ,
                        tuple(extent for _, _, _, extent in loops),
                        tuple(along(name) for _, name, _, _ in loops),
                    ),
                    Operand("idx", node.inputs[1], Access.READ, taken, by_index),
                    Operand("y", node.outputs[0], Access.WRITE, taken, by_index),
                ),
                missing_bits(x.dtype),
            ),
        )

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        attributes: dict[str, Attribute] = {"shape": node.input(0).shape, "axis": node.attribute("axis", 0)}
        return (*build.emit("GatherElementsGrad", [upstream[0], None, node.inputs[1]], attributes), None)


class GatherElementsGrad(Operator):
    """(dY, shape, indices) -> dX: each element sums the gradients of its copies, in the order of the indices."""

    name = "GatherElementsGrad"
    static_inputs: ClassVar = {1: "shape"}
    nondifferentiable_inputs = (2,)

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(3)
        node.expect_dtype(0, DType.F32)
        expect_indices(node, 2)
        node.expect_shape(0, node.input(2).shape, "gradient of Y")
        shape = required_integers(node, "shape")
        _loops(node, shape, node.input(2).shape)
        return (TensorType(DType.F32, shape),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        indices = node.input(2)
        loops = _loops(node, node.output().shape, indices.shape).named()
        taken = tuple(extent for _, _, extent, _ in loops)
        by_index = tuple(along(name) for name, _, _, _ in loops)
        return (
            Nest(
                f"gather_elements_grad_{indices.dtype.short}",
                (
                    *(Axis(name, extent) for _, name, _, extent in loops),
                    *(Axis(name, extent, AxisKind.REDUCTION) for name, _, extent, _ in loops if name == "j"),
                ),
                (
                    Operand("dy", node.inputs[0], Access.READ, taken, by_index),
                    Operand("idx", node.inputs[2], Access.READ, taken, by_index),
                    Operand(
                        "dx",
                        node.outputs[0],
                        Access.WRITE,
                        tuple(extent for _, _, _, extent in loops),
                        tuple(along(name) for _, name, _, _ in loops),
                    ),
                ),
            ),
        )
