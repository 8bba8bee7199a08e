"""Gather along one axis (an embedding, when the data is a parameter), and GatherGrad in gather form."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import ClassVar

from tilegrad.ir.graph import Attribute
from tilegrad.ir.nest import Access, Axis, AxisKind, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._axes import normalised_axis
from tilegrad.ops._gather import expect_in_range, expect_indices, indexed, missing_bits
from tilegrad.ops._integers import required_integers
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example

PADDING_INDEX = "padding_index"
"""Attribute of a Gather: a row that it reads and does not train. ONNX has none; a torch module's `padding_idx` is."""


def _extents(node: NodeView, data: tuple[int, ...]) -> tuple[int, int, int]:
    """Elements before the gathered axis, along it and after it."""
    axis = normalised_axis(node, node.attribute("axis", 0), len(data))
    return prod(data[:axis]), data[axis], prod(data[axis + 1 :])


def _operand(name: str, value: str, access: Access, axes: Sequence[Axis]) -> Operand:
    return Operand(name, value, access, tuple(axis.extent for axis in axes), tuple(along(axis.name) for axis in axes))


def _gathered_shape(node: NodeView, data: tuple[int, ...], indices: tuple[int, ...]) -> tuple[int, ...]:
    axis = normalised_axis(node, node.attribute("axis", 0), len(data))
    return (*data[:axis], *indices, *data[axis + 1 :])


class Gather(Operator):
    name = "Gather"
    parameter_inputs = (0,)
    nondifferentiable_inputs = (1,)

    def example(self, draw: Draw) -> Example:
        data = (draw.between(1, 4), draw.between(2, 60), draw.between(1, 60))
        indices = TensorType(draw.one_of(DType.I64, DType.I32), (draw.between(1, 40),))
        return Example((TensorType(draw.dtype(), data), indices), {"axis": 1})

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2)
        expect_indices(node, 1)
        x, indices = node.input(0), node.input(1)
        shape = _gathered_shape(node, x.shape, indices.shape)
        if 0 in x.shape and 0 not in shape:
            raise node.error("Gather from an axis without elements", expected="1 or more", got=str(list(x.shape)))
        expect_in_range(node, 1, _extents(node, x.shape)[1])
        return (TensorType(x.dtype, shape),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        x, indices = node.input(0), node.input(1)
        outer, extent, inner = _extents(node, x.shape)
        o, j, i, r = Axis("o", outer), Axis("j", indices.size), Axis("i", inner), Axis("r", extent, AxisKind.INNER)
        return (
            Nest(
                indexed("gather", x.dtype, indices.dtype),
                (o, j, i, r),
                (
                    _operand("x", node.inputs[0], Access.READ, (o, r, i)),
                    _operand("idx", node.inputs[1], Access.READ, (j,)),
                    _operand("y", node.outputs[0], Access.WRITE, (o, j, i)),
                ),
                missing_bits(x.dtype),
            ),
        )

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        attributes: dict[str, Attribute] = {"shape": node.input(0).shape, "axis": node.attribute("axis", 0)}
        hint = f"{node.inputs[0]}_grad"
        indices = node.inputs[1]
        padding = node.attribute(PADDING_INDEX, -1)
        if padding >= 0:
            dtype, extent = node.input(1).dtype, _extents(node, node.input(0).shape)[1]
            (is_padding,) = build.emit("Equal", [indices, build.constant(padding, dtype)])
            (indices,) = build.emit("Where", [is_padding, build.constant(extent, dtype), indices])
        return (*build.emit("GatherGrad", [None, indices, upstream[0]], attributes, hint=hint), None)


class GatherGrad(Operator):
    """(shape, indices, dY) -> dX. Each row of dX sums the gradients of its copies, in the order of the indices.

    An index out of range is no row's: its gradient goes nowhere.
    """

    name = "GatherGrad"
    static_inputs: ClassVar = {0: "shape"}
    nondifferentiable_inputs = (1,)

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(3)
        expect_indices(node, 1)
        node.expect_dtype(2, DType.F32)
        shape = required_integers(node, "shape")
        node.expect_shape(2, _gathered_shape(node, shape, node.input(1).shape), "gradient of Y")
        return (TensorType(DType.F32, shape),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        indices = node.input(1)
        outer, extent, inner = _extents(node, node.output().shape)
        o, r, i = Axis("o", outer), Axis("r", extent), Axis("i", inner)
        j = Axis("j", indices.size, AxisKind.REDUCTION)
        return (
            Nest(
                f"gather_grad_{indices.dtype.short}",
                (o, r, i, j),
                (
                    _operand("idx", node.inputs[1], Access.READ, (j,)),
                    _operand("dy", node.inputs[2], Access.READ, (o, j, i)),
                    _operand("dx", node.outputs[0], Access.WRITE, (o, r, i)),
                ),
            ),
        )
