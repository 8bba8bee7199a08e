"""OuterSGD: (u, v, w, lr) -> w', an SGD step whose gradient is the outer product of two vectors.

That is a dense layer trained on one sample: fused, its gradient never exists as a matrix. The bits are those of Gemm
followed by SGD.
"""

from __future__ import annotations

from tilegrad.ir.nest import FIXED, Access, Axis, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._pointwise import expect_one_element
from tilegrad.ops.base import NodeView, Operator


class OuterSGD(Operator):
    """u and v hold as many elements as w has rows and columns, in any shape."""

    name = "OuterSGD"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(4)
        for position in range(3):
            node.expect_dtype(position, DType.F32)
        expect_one_element(node, 3, DType.F32, "learning rate")
        sizes = (node.input(0).size, node.input(1).size)
        if node.input(2).shape != sizes:
            raise node.error(
                "OuterSGD: the weight is not the shape of the outer product",
                expected=str(list(sizes)),
                got=str(list(node.input(2).shape)),
            )
        return (node.input(2),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        m, n = node.input(2).shape
        matrix = ((m, n), (along("m"), along("n")))
        return (
            Nest(
                "outer_sgd",
                (Axis("m", m), Axis("n", n)),
                (
                    Operand("u", node.inputs[0], Access.READ, (m,), (along("m"),)),
                    Operand("v", node.inputs[1], Access.READ, (n,), (along("n"),)),
                    Operand("w", node.inputs[2], Access.READ, *matrix),
                    Operand("lr", node.inputs[3], Access.READ, (1,), (FIXED,)),
                    Operand("y", node.outputs[0], Access.WRITE, *matrix),
                ),
                counts_macs=True,
            ),
        )

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 2),)
