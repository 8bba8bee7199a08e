"""OuterAccumulate: (u, v, buffer, overwrite_flag) -> buffer, which accumulates the outer product of two vectors.

That is the weight gradient of a dense layer for one sample. The bits are those of Gemm followed by
InPlaceAccumulatorV2: one rounded product, then one rounded addition, or none where the flag is true.
"""

from __future__ import annotations

from tilegrad.ir.nest import Nest
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._outer import infer_outer, outer_nest
from tilegrad.ops._pointwise import expect_one_element
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.example import Draw, Example, floats


class OuterAccumulate(Operator):
    name = "OuterAccumulate"

    def example(self, draw: Draw) -> Example:
        m, n = draw.between(1, 128), draw.between(1, 200)
        return Example((*floats((m,), (n,), (m, n)), TensorType(DType.BOOL, ())))

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(3, 4)
        if node.has_input(3):
            expect_one_element(node, 3, DType.BOOL, "overwrite flag")
        return infer_outer(node, self.name, "buffer")

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        return (outer_nest(node, "outer_accumulate", "overwrite"),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 2),)
