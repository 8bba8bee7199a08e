"""And, Or, Xor, Not of bools."""

from __future__ import annotations

from tilegrad.ir.nest import Nest, map_nest
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._elementwise import broadcast_nest
from tilegrad.ops._pointwise import BroadcastOperator
from tilegrad.ops.base import NodeView, Operator


class _Logical(BroadcastOperator):
    dtypes = (DType.BOOL,)

    def broadcast(
        self, node: NodeView, inputs: list[tuple[str, tuple[int, ...]]], output: tuple[str, tuple[int, ...]]
    ) -> Nest:
        return broadcast_nest(node, self.kernel, inputs, output, always_broadcast=True)


class And(_Logical):
    name = "And"
    kernel = "and"


class Or(_Logical):
    name = "Or"
    kernel = "or"


class Xor(_Logical):
    name = "Xor"
    kernel = "xor"


class Not(Operator):
    name = "Not"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        node.expect_dtype(0, DType.BOOL)
        return (node.input(0),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        return (map_nest("not", node.output().size, [("x", node.inputs[0])], [("y", node.outputs[0])]),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0),)
