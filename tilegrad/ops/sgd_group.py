"""SGDGroup: (w0, g0, w1, g1, w2, g2, lr) -> (w0', w1', w2'), SGD on two or three tensors of as many elements each.

Biases and scales are small: what one call costs is more than what it computes. The third pair may be absent. The bits
are those of SGD without decay.
"""

from __future__ import annotations

from tilegrad.ir.nest import FIXED, Access, Axis, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._pointwise import expect_one_element
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.example import Draw, Example, floats

MOST_TENSORS = 3
_RATE = 2 * MOST_TENSORS


class SGDGroup(Operator):
    name = "SGDGroup"

    def example(self, draw: Draw) -> Example:
        size, pairs = (draw.between(1, 1024),), draw.one_of(2, 3)
        absent = (None,) * (6 - 2 * pairs)
        return Example((*floats(*(size,) * (2 * pairs)), *absent, *floats(())), outputs=(True,) * pairs)

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(_RATE + 1)
        expect_one_element(node, _RATE, DType.F32, "learning rate")
        weights = [i for i in range(0, _RATE, 2) if node.has_input(i)]
        for i in weights:
            node.expect_dtype(i, DType.F32)
            node.expect_shape(i + 1, node.input(i).shape, "gradient")
            if node.input(i).size != node.input(0).size:
                raise node.error(
                    "SGDGroup: the tensors have different sizes",
                    expected=f"{node.input(0).size} elements each",
                    got=f"{node.input(i).size}",
                )
        return tuple(node.input(i) for i in weights)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        size = node.input(0).size

        def operand(name: str, value: str | None, access: Access) -> Operand:
            return Operand(name, value, access, (size,), (along("i"),))

        pairs = [
            operand(f"{letter}{i // 2}", node.input_name(i + k), Access.READ)
            for i in range(0, _RATE, 2)
            for k, letter in enumerate("wg")
        ]
        rate = Operand("lr", node.inputs[_RATE], Access.READ, (1,), (FIXED,))
        results = [
            operand(f"y{i}", node.outputs[i] if i < len(node.outputs) else None, Access.WRITE)
            for i in range(MOST_TENSORS)
        ]
        return (Nest("sgd_group", (Axis("i", size),), (*pairs, rate, *results)),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return tuple((i, 2 * i + k) for i in range(len(node.outputs)) for k in (0, 1))
