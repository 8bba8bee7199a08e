"""OuterSGD: (u, v, w, lr) -> w', an SGD step whose gradient is the outer product of two vectors.

That is a dense layer trained on one sample: fused, its gradient never exists as a matrix. The bits are those of Gemm
followed by SGD.
"""

from __future__ import annotations

from tilegrad.ir.nest import Nest
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._outer import infer_outer, outer_nest
from tilegrad.ops._pointwise import expect_one_element
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.example import Draw, Example, floats


class OuterSGD(Operator):
    name = "OuterSGD"

    def example(self, draw: Draw) -> Example:
        m, n = draw.between(1, 128), draw.between(1, 200)
        return Example(floats((m,), (n,), (m, n), ()))

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(4)
        expect_one_element(node, 3, DType.F32, "learning rate")
        return infer_outer(node, self.name, "weight")

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        return (outer_nest(node, "outer_sgd", "lr"),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 2),)
