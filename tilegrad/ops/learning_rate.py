"""LearningRate: (base rate, updates before this one) -> the rate of this update. See `tilegrad/recipe/rates.py`."""

from __future__ import annotations

from tilegrad.ir.nest import FIXED, Access, Axis, Nest, Operand
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._pointwise import expect_one_element, float_attribute
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.example import Draw, Example

KINDS = ("constant", "step", "cosine")


class LearningRate(Operator):
    """Attributes: kind (0 constant, 1 step, 2 cosine), warmup, period (updates), factor (of a step), floor."""

    name = "LearningRate"

    def example(self, draw: Draw) -> Example:
        options = {"kind": draw.one_of(0, 1, 2), "warmup": draw.one_of(0, 5), "period": 7, "factor": 0.5, "floor": 0.1}
        return Example((), options)

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2)
        expect_one_element(node, 0, DType.F32, "learning rate")
        expect_one_element(node, 1, DType.I64, "update counter")
        kind, period = self._count(node, "kind"), self._count(node, "period")
        if kind >= len(KINDS) or (kind > 0 and period < 1):
            raise node.error(f"{self.name}: no such schedule", got=f"kind {kind}, period {period}")
        return (TensorType(DType.F32, ()),)

    def _count(self, node: NodeView, name: str) -> int:
        value = node.attribute(name, 0)
        if not 0 <= value < 2**31:
            raise node.error(f"{self.name}: bad attribute '{name}'", expected="0 or more", got=str(value))
        return int(value)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        floor = float_attribute(node, "floor", 0.0)
        constants = {
            **{name: self._count(node, name) for name in ("kind", "warmup", "period")},
            "factor": float_attribute(node, "factor", 1.0),
            "floor": floor,
            "rest": 1.0 - floor,
        }
        operands = (
            Operand("base", node.inputs[0], Access.READ, (1,), (FIXED,)),
            Operand("step", node.inputs[1], Access.READ, (1,), (FIXED,)),
            Operand("rate", node.outputs[0], Access.WRITE, (1,), (FIXED,)),
        )
        return (Nest("learning_rate", (Axis("i", 1),), operands, constants),)
