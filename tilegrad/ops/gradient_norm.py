"""Clipping by the norm of all gradients: SquaredNorm adds one tensor's squares to a running sum, ClipScale makes of the
sum what every gradient is multiplied with.

The sum's order is part of the meaning: blocks of `BLOCK` elements of a tensor in flat order, each summed from +0 by
fma, then the blocks' sums added in order to what the tensors before gave.
"""

from __future__ import annotations

from tilegrad.ir.nest import FIXED, Access, Axis, AxisKind, Index, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._pointwise import expect_one_element, float_attribute
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.example import Draw, Example

BLOCK = 64


class SquaredNorm(Operator):
    """(tensor, sum so far) -> the sum with the tensor's squares added, a scalar."""

    name = "SquaredNorm"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2)
        node.expect_dtype(0, DType.F32)
        expect_one_element(node, 1, DType.F32, "sum so far")
        return (TensorType(DType.F32, ()),)

    def temporaries(self, node: NodeView) -> tuple[TensorType, ...]:
        return (TensorType(DType.F32, (-(-node.input(0).size // BLOCK),)),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        size = node.input(0).size
        blocks = -(-size // BLOCK)
        part = node.temporary(0)
        return (
            Nest(
                "squared_norm",
                (Axis("b", blocks), Axis("j", BLOCK, AxisKind.INNER)),
                (
                    Operand("x", node.inputs[0], Access.READ, (size,), (Index((("b", BLOCK), ("j", 1))),)),
                    Operand("part", part, Access.WRITE, (blocks,), (along("b"),)),
                ),
            ),
            Nest(
                "squared_norm_total",
                (Axis("i", blocks, AxisKind.REDUCTION),),
                (
                    Operand("part", part, Access.READ, (blocks,), (along("i"),)),
                    Operand("before", node.inputs[1], Access.READ, (1,), (FIXED,)),
                    Operand("total", node.outputs[0], Access.WRITE, (1,), (FIXED,)),
                ),
            ),
        )


class ClipScale(Operator):
    """(sum of squares) -> min(1, max_norm / (sqrt(sum) + 1e-6)), as `torch.nn.utils.clip_grad_norm_`."""

    name = "ClipScale"

    def example(self, draw: Draw) -> Example:
        return Example((), {"max_norm": draw.one_of(0.5, 1.0)})

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        expect_one_element(node, 0, DType.F32, "sum of squares")
        if not float_attribute(node, "max_norm", 1.0) > 0.0:
            raise node.error(f"{self.name}: bad attribute 'max_norm'", expected="more than 0")
        return (TensorType(DType.F32, ()),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        operands = (
            Operand("total", node.inputs[0], Access.READ, (1,), (FIXED,)),
            Operand("scale", node.outputs[0], Access.WRITE, (1,), (FIXED,)),
        )
        return (Nest("clip_scale", (Axis("i", 1),), operands, {"max_norm": float_attribute(node, "max_norm", 1.0)}),)
