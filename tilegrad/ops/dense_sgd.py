"""DenseSGD: (dY, X, W, B?, lr) -> (W', B'?, dX?), all of the backward pass of a small dense layer on one sample.

The steps of its weight and its bias and the gradient for the layer below are one call: where a layer is small, calls
and their code take longer than what they compute. With `relu` 1, X is the output of a Relu, and dX the gradient in
front of it. The bits are those of OuterSGD, SGD without decay, Gemm (dX = dY W) and ReluGrad.
"""

from __future__ import annotations

from tilegrad.ir.nest import FIXED, Access, Axis, AxisKind, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._outer import infer_outer
from tilegrad.ops._pointwise import expect_one_element
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.example import Draw, Example, floats


class DenseSGD(Operator):
    name = "DenseSGD"

    def example(self, draw: Draw) -> Example:
        m, n, has_bias, is_last = draw.between(1, 64), draw.between(1, 128), draw.is_so(), draw.is_so()
        bias = floats((m,)) if has_bias else (None,)
        inputs = (*floats((m,), (n,), (m, n)), *bias, *floats(()))
        return Example(inputs, {"relu": draw.one_of(0, 1)}, (True, has_bias, not is_last))

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(5)
        (weight,) = infer_outer(node, self.name, "weight")
        expect_one_element(node, 4, DType.F32, "learning rate")
        below = TensorType(DType.F32, (1, weight.shape[1]))
        if not node.has_input(3):
            return weight, weight, below
        node.expect_dtype(3, DType.F32)
        node.expect_shape(3, weight.shape[:1], "bias")
        return weight, node.input(3), below

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        m, n = node.input(2).shape
        matrix, rows, columns = ((m, n), (along("m"), along("n"))), ((m,), (along("m"),)), ((n,), (along("n"),))
        has_below = node.has_output(2)
        nest = Nest(
            "dense_sgd",
            (Axis("m", m, AxisKind.REDUCTION if has_below else AxisKind.PARALLEL), Axis("n", n, AxisKind.INNER)),
            (
                Operand("u", node.inputs[0], Access.READ, *rows),
                Operand("v", node.inputs[1], Access.READ, *columns),
                Operand("w", node.inputs[2], Access.READ, *matrix),
                Operand("b", node.input_name(3), Access.READ, *rows),
                Operand("lr", node.inputs[4], Access.READ, (1,), (FIXED,)),
                Operand("y", node.outputs[0], Access.WRITE, *matrix),
                Operand("c", node.output_name(1), Access.WRITE, *rows),
                Operand("dx", node.output_name(2), Access.WRITE, *columns),
            ),
            {"relu": int(bool(node.attribute("relu", 0)))},
            counts_macs=True,
            macs_override=(2 if has_below else 1) * m * n,
        )
        return (nest,)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 2), (1, 3)) if node.has_input(3) else ((0, 2),)
