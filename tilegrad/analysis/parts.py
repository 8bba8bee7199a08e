"""Whether a node is a part of another: the same kernel on a range of one parallel axis, and so the same bits.

A tensor's part `k` of `count` is that fraction of its elements, one behind the other: of its first dimension that is
not 1, as channels are where the batch is 1.
"""

from __future__ import annotations

from tilegrad.ir.nest import AxisKind, Nest, Operand, along
from tilegrad.ir.types import TensorType
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView


def part_axis(shape: tuple[int, ...]) -> int | None:
    return next((d for d, extent in enumerate(shape) if extent != 1), None)


def part_type(whole: TensorType, count: int) -> TensorType | None:
    """None where it does not divide, or where a part would not tell which dimension was cut."""
    d = part_axis(whole.shape)
    if d is None or whole.shape[d] % count or whole.shape[d] // count < 2:
        return None
    return TensorType(whole.dtype, (*whole.shape[:d], whole.shape[d] // count, *whole.shape[d + 1 :]))


def whole_type(part: TensorType, count: int) -> TensorType:
    d = part_axis(part.shape)
    assert d is not None
    return TensorType(part.dtype, (*part.shape[:d], part.shape[d] * count, *part.shape[d + 1 :]))


def parts_of(whole: NodeView, part: NodeView, count: int) -> frozenset[int] | None:
    """Positions of the inputs of which a part of a node has a part, as of every output; it has the others whole. None
    unless every nest of `part` is a range of one parallel axis of the same nest of `whole`."""
    operator = registry.get(whole.node.op)
    if operator.is_view or operator.temporaries(whole) or operator.temporaries(part):
        return None
    pairs = list(zip(operator.typed_nests(whole), operator.typed_nests(part), strict=False))
    cut: dict[str, bool] = {}
    for own, other in pairs:
        found = _cut_operands(own, other, count)
        if found is None or any(cut.get(value, is_cut) is not is_cut for value, is_cut in found.items()):
            return None
        cut |= found
    if not pairs or not all(cut.get(name, False) for name in whole.outputs if name):
        return None
    return frozenset(k for k, name in enumerate(whole.inputs) if cut.get(name, False))


def _cut_operands(whole: Nest, part: Nest, count: int) -> dict[str, bool] | None:
    """By value of the whole nest, whether the part has a part of it."""
    same = whole.kernel == part.kernel and whole.constants == part.constants
    same = same and not (whole.origin or part.origin or whole.epilogues or part.epilogues)
    if not same or [(a.name, a.kind) for a in whole.axes] != [(a.name, a.kind) for a in part.axes]:
        return None
    changed = [(a, b) for a, b in zip(whole.axes, part.axes, strict=True) if a.extent != b.extent]
    if len(changed) != 1 or len(whole.operands) != len(part.operands):
        return None
    axis, shorter = changed[0]
    if axis.kind is not AxisKind.PARALLEL or axis.extent != count * shorter.extent:
        return None
    found: dict[str, bool] = {}
    for own, other in zip(whole.operands, part.operands, strict=True):
        if (own.value is None) != (other.value is None):
            return None
        if own.value is None:
            continue
        is_cut = _is_cut(own, other, axis.name, count)
        if is_cut is None or found.get(own.value, is_cut) is not is_cut:
            return None
        found[own.value] = is_cut
    return found


def _is_cut(whole: Operand, part: Operand, axis: str, count: int) -> bool | None:
    """Whether an operand's part is the first dimension's that is not 1; None where it is neither that nor all of it."""
    if (whole.name, whole.access, whole.index, whole.dtype) != (part.name, part.access, part.index, part.dtype):
        return None
    depends = [] if whole.index is None else [d for d, i in enumerate(whole.index) if i.coefficient(axis)]
    if not depends:
        return False if whole.shape == part.shape else None
    d = part_axis(whole.shape)
    assert whole.index is not None and d is not None
    if depends != [d] or whole.index[d] != along(axis):
        return None
    expected = (*whole.shape[:d], whole.shape[d] // count, *whole.shape[d + 1 :])
    return True if part.shape == expected and whole.shape[d] % count == 0 else None
