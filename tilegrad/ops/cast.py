"""Cast between float, integers and bool."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ir.nest import Nest, map_nest
from tilegrad.ir.types import COMPUTED, DType, TensorType
from tilegrad.ops._elementwise import type_code
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example


class Cast(Operator):
    """The attribute `to` is the short name of the element type ("f32", "i64", …)."""

    name = "Cast"
    summary = "floats out of an integer's range saturate, NaN becomes 0; integers keep their low bits"

    def example(self, draw: Draw) -> Example:
        kinds = (DType.F32, DType.F32, DType.I32, DType.I64, DType.U8, DType.BOOL)
        return Example((TensorType(draw.one_of(*kinds), (draw.between(1, 4000),)),), {"to": draw.one_of(*kinds).short})

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        wanted = node.required("to")
        dtype = next((dtype for dtype in COMPUTED if dtype.short == wanted), None)
        if dtype is None:
            known = " or ".join(map(str, COMPUTED))
            raise node.error("Cast to an unknown element type", expected=known, got=str(wanted))
        return (TensorType(dtype, node.input(0).shape),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        constants = {"from_type": type_code(node.input(0).dtype), "to_type": type_code(node.output().dtype)}
        reads, writes = [("x", node.inputs[0])], [("y", node.outputs[0])]
        return (map_nest("cast", node.output().size, reads, writes, constants),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        """Only floats carry gradients, so this is a cast from float to float."""
        return (upstream[0],)
