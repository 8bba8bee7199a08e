"""Store16 and Load16: a float value kept in two bytes for the backward pass, and the float that was kept.

The pass `store` makes these operators (passes/store.py), behind differentiation: they have no gradient.
"""

from __future__ import annotations

from tilegrad.ir.nest import Nest, map_nest
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.example import Draw, Example, floats

HALVES = {dtype.short: dtype for dtype in DType if dtype.is_half}


class Store16(Operator):
    """The attribute `to` is the short name of the element type: "bf16" or "fp16"."""

    name = "Store16"

    def example(self, draw: Draw) -> Example:
        return Example(floats((draw.between(1, 6000),)), {"to": draw.one_of(*HALVES)})

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        node.expect_dtype(0, DType.F32)
        dtype = HALVES.get(str(node.required("to")))
        if dtype is None:
            raise node.error(
                "Store16 to an unknown element type", expected=" or ".join(HALVES), got=str(node.required("to"))
            )
        return (TensorType(dtype, node.input(0).shape),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        kernel = f"store_{node.output().dtype}"
        return (map_nest(kernel, node.output().size, [("x", node.inputs[0])], [("y", node.outputs[0])]),)


class Load16(Operator):
    name = "Load16"

    def example(self, draw: Draw) -> Example:
        return Example((TensorType(draw.one_of(*HALVES.values()), (draw.between(1, 6000),)),))

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        node.expect_dtype(0, *HALVES.values())
        return (TensorType(DType.F32, node.input(0).shape),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        kernel = f"load_{node.input(0).dtype}"
        return (map_nest(kernel, node.output().size, [("x", node.inputs[0])], [("y", node.outputs[0])]),)
