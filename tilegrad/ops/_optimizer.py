"""What the optimizers share: tensors of the parameter's shape, walked together, and scalars read whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilegrad.ir.nest import FIXED, Access, Axis, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._pointwise import expect_one_element
from tilegrad.ops.base import NodeView
from tilegrad.ops.example import Draw, Example, floats

KEPT = (DType.F32, DType.BF16, DType.FP16)
"""What an optimizer's own state may be kept as; it is computed with as f32."""


def check_update(node: NodeView, tensors: Sequence[str], scalars: Mapping[int, tuple[str, DType]]) -> None:
    """Refuses tensors that are not float or not of the first one's shape, and scalars that are none. Behind weight and
    gradient come slots, all of one type."""
    for position, what in enumerate(tensors):
        node.expect_dtype(position, *([DType.F32] if position < 2 else KEPT if position == 2 else [_slots(node)]))
        node.expect_shape(position, node.input(0).shape, what)
    for position, (what, dtype) in scalars.items():
        expect_one_element(node, position, dtype, what)


def update_example(draw: Draw, slots: int, attributes: Mapping[str, float], *, counts_updates: bool = False) -> Example:
    """Weight, gradient and slots, kept as any type, the learning rate, and perhaps the number of updates."""
    shape = (draw.between(1, 6000),)
    kept = TensorType(draw.one_of(DType.F32, DType.F32, DType.BF16, DType.FP16), shape)
    counter = (TensorType(DType.I64, ()),) if counts_updates else ()
    return Example((*floats(shape, shape), *(kept,) * slots, *floats(()), *counter), attributes)


def _slots(node: NodeView) -> DType:
    return node.input(2).dtype


def kernel_for(node: NodeView, kernel: str) -> str:
    """The version of a kernel for what the slots are kept as."""
    return kernel if _slots(node) is DType.F32 else f"{kernel}_{_slots(node)}"


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
