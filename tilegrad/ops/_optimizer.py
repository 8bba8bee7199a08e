"""What the optimizers share: tensors of the parameter's shape, walked together, and scalars read whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilegrad.ir.nest import FIXED, Access, Axis, Nest, Operand, along
from tilegrad.ir.types import DType
from tilegrad.ops._pointwise import expect_one_element
from tilegrad.ops.base import NodeView


def check_update(node: NodeView, tensors: Sequence[str], scalars: Mapping[int, tuple[str, DType]]) -> None:
    """Refuses tensors that are not float or not of the first one's shape, and scalars that are none."""
    for position, what in enumerate(tensors):
        node.expect_dtype(position, DType.F32)
        node.expect_shape(position, node.input(0).shape, what)
    for position, (what, dtype) in scalars.items():
        expect_one_element(node, position, dtype, what)


def update_nest(
    node: NodeView,
    kernel: str,
    tensors: Sequence[str],
    scalars: Sequence[str],
    results: Sequence[str],
    constants: Mapping[str, float],
) -> Nest:
    """The node's inputs are `tensors`, then `scalars`; its outputs are `results`: the kernel's pointer names."""
    size = node.input(0).size
    operands = [
        Operand(pointer, value, Access.READ, (size,), (along("i"),))
        for pointer, value in zip(tensors, node.inputs, strict=False)
    ]
    operands += [
        Operand(pointer, value, Access.READ, (1,), (FIXED,))
        for pointer, value in zip(scalars, node.inputs[len(tensors) :], strict=True)
    ]
    operands += [
        Operand(pointer, node.output_name(position), Access.WRITE, (size,), (along("i"),))
        for position, pointer in enumerate(results)
    ]
    return Nest(kernel, (Axis("i", size),), tuple(operands), constants)
