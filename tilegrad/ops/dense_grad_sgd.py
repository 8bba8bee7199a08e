"""DenseGradSGD: (dY, X, W, lr) -> (W', dX), the backward pass of a dense layer on one sample with its SGD step.

The gradient for the layer below and the step along the outer product both read the weight: fused, it is brought to the
cores once. With `relu` 1, X is the output of a Relu, and dX the gradient in front of it. The bits are those of Gemm
(dX = dY W), ReluGrad and OuterSGD.
"""

from __future__ import annotations

from tilegrad.ir.nest import FIXED, Access, Axis, AxisKind, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._outer import infer_outer
from tilegrad.ops._pointwise import expect_one_element
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.example import Draw, Example, floats


class DenseGradSGD(Operator):
    name = "DenseGradSGD"

    def example(self, draw: Draw) -> Example:
        m, n = draw.between(1, 128), draw.between(1, 200)
        return Example(floats((m,), (n,), (m, n), ()), {"relu": draw.one_of(0, 1)}, (True, True))

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(4)
        expect_one_element(node, 3, DType.F32, "learning rate")
        (weight,) = infer_outer(node, self.name, "weight")
        return weight, TensorType(DType.F32, (1, weight.shape[1]))

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        m, n = node.input(2).shape
        matrix = ((m, n), (along("m"), along("n")))
        nest = Nest(
            "dense_grad_sgd",
            (Axis("m", m, AxisKind.REDUCTION), Axis("n", n)),
            (
                Operand("u", node.inputs[0], Access.READ, (m,), (along("m"),)),
                Operand("v", node.inputs[1], Access.READ, (n,), (along("n"),)),
                Operand("w", node.inputs[2], Access.READ, *matrix),
                Operand("lr", node.inputs[3], Access.READ, (1,), (FIXED,)),
                Operand("y", node.outputs[0], Access.WRITE, *matrix),
                Operand("dx", node.outputs[1], Access.WRITE, (n,), (along("n"),)),
            ),
            {"relu": int(bool(node.attribute("relu", 0)))},
            counts_macs=True,
            macs_override=2 * m * n,
        )
        return (nest,)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 2),)
