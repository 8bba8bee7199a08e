"""InPlaceAccumulatorV2, as ONNX Runtime defines it: (buffer, gradient, overwrite_flag) -> (updated_flag, buffer).

The flag makes the reset lazy: where it is true the gradient replaces the buffer, whose old content is not read.
"""

from __future__ import annotations

from tilegrad.ir.nest import FIXED, Access, Axis, Nest, Operand, along, map_nest
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._pointwise import expect_one_element
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.example import Draw, Example, floats


class InPlaceAccumulatorV2(Operator):
    name = "InPlaceAccumulatorV2"

    def example(self, draw: Draw) -> Example:
        size = (draw.between(1, 6000),)
        return Example((*floats(size, size), TensorType(DType.BOOL, ())), outputs=(draw.is_so(), True))

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2, 3)
        buffer = node.input(0)
        node.expect_dtype(0, DType.F32)
        node.expect_dtype(1, DType.F32)
        node.expect_shape(1, buffer.shape, "gradient")
        if node.has_input(2):
            expect_one_element(node, 2, DType.BOOL, "overwrite flag")
        return (TensorType(DType.BOOL, (1,)), buffer)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        size = node.input(0).size
        result = []
        if node.has_output(1):
            result.append(
                Nest(
                    "accumulate",
                    (Axis("i", size),),
                    (
                        Operand("buffer", node.inputs[0], Access.READ, (size,), (along("i"),)),
                        Operand("gradient", node.inputs[1], Access.READ, (size,), (along("i"),)),
                        Operand("overwrite", node.input_name(2), Access.READ, (1,), (FIXED,)),
                        Operand("updated", node.outputs[1], Access.WRITE, (size,), (along("i"),)),
                    ),
                    {"alpha": 0.0, "beta": 0.0},
                )
            )
        if node.has_output(0):
            result.append(map_nest("accumulator_flag", 1, [], [("flag", node.outputs[0])]))
        return tuple(result)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((1, 0), (1, 1))
