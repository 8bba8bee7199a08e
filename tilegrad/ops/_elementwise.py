"""Nests for operators that compute each output element from the elements at the same (broadcast) position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilegrad.ir.nest import FIXED, Access, Axis, Index, Nest, Operand, along, map_nest
from tilegrad.ir.types import DType
from tilegrad.ops.base import NodeView

MAX_BROADCAST_AXES = 6
_INPUT_NAMES = ("a", "b", "c")
_TYPE_CODES = {dtype: code for code, dtype in enumerate(DType)}


def type_code(dtype: DType) -> int:
    """What `enum tg_type` of runtime/tg_element.h calls this element type."""
    return _TYPE_CODES[dtype]


def broadcast_shapes(node: NodeView, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """NumPy's rule; a mismatch is the user's error, naming both shapes."""
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = []
    for extents in zip(*padded, strict=True):
        wide = {extent for extent in extents if extent != 1}
        if len(wide) > 1:
            raise node.error(
                f"{node.node.op}: shapes do not broadcast",
                expected="equal dimensions, or 1, counted from the last",
                got=" and ".join(str(list(shape)) for shape in shapes),
            )
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def _merge_axes(
    node: NodeView, shapes: Sequence[tuple[int, ...]], out_shape: tuple[int, ...]
) -> tuple[list[int], list[list[bool]]]:
    """Neighbouring axes that every operand walks alike become one.

    Returns the merged extents and, for each, which operands have it (the others are broadcast along it).
    """
    rank = len(out_shape)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    extents: list[int] = []
    present: list[list[bool]] = []
    for d in range(rank):
        if out_shape[d] == 1:
            continue
        pattern = [shape[d] != 1 for shape in padded]
        if present and present[-1] == pattern:
            extents[-1] *= out_shape[d]
        else:
            extents.append(out_shape[d])
            present.append(pattern)
    if len(extents) > MAX_BROADCAST_AXES:
        raise node.error(
            f"{node.node.op}: the broadcast alternates too often",
            expected=f"at most {MAX_BROADCAST_AXES} runs of dimensions broadcast alike",
            got=f"{len(extents)} in {' and '.join(str(list(shape)) for shape in shapes)}",
            hint="Expand one operand first",
        )
    return extents, present


def broadcast_nest(
    node: NodeView,
    kernel: str,
    inputs: Sequence[tuple[str, tuple[int, ...]]],
    output: tuple[str, tuple[int, ...]],
    constants: Mapping[str, float] | None = None,
    *,
    always_broadcast: bool = False,
) -> Nest:
    """Inputs (value, shape) become the pointers a, b, c; the output is y.

    Where no operand is broadcast this is `map_nest` on KERNEL; otherwise the kernel is KERNEL_broadcast, which takes
    `tg_broadcast_args`. An operator's C file has both, unless it asks for `always_broadcast`, which is KERNEL itself
    taking `tg_broadcast_args`.
    """
    out_value, out_shape = output
    if not always_broadcast and all(prod(shape) == prod(out_shape) for _, shape in inputs):
        reads = [(name, value) for name, (value, _) in zip(_INPUT_NAMES, inputs, strict=False)]
        return map_nest(kernel, prod(out_shape), reads, [("y", out_value)], constants)
    extents, present = _merge_axes(node, [shape for _, shape in inputs], out_shape)
    missing = MAX_BROADCAST_AXES - len(extents)
    extents = [1] * missing + extents
    present = [[False] * len(inputs)] * missing + present
    axes = tuple(Axis(f"d{i}", extent) for i, extent in enumerate(extents))
    operands = []
    for position, (value, _) in enumerate(inputs):
        own = [present[d][position] for d in range(MAX_BROADCAST_AXES)]
        shape = tuple(extent if mine else 1 for extent, mine in zip(extents, own, strict=True))
        index: tuple[Index, ...] = tuple(along(f"d{d}") if mine else FIXED for d, mine in enumerate(own))
        operands.append(Operand(_INPUT_NAMES[position], value, Access.READ, shape, index))
    operands.append(Operand("y", out_value, Access.WRITE, tuple(extents), tuple(along(axis.name) for axis in axes)))
    unused = {f"{name}_by_d{d}": 0 for name in _INPUT_NAMES[len(inputs) :] for d in range(MAX_BROADCAST_AXES)}
    if not always_broadcast:
        kernel = f"{kernel}_broadcast"
    return Nest(kernel, axes, tuple(operands), {"alpha": 0.0, "beta": 0.0, "type": 0, **unused, **(constants or {})})
