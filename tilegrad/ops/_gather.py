"""What Gather and GatherElements share: index types, and the value an index out of range gives in the C."""

from __future__ import annotations

from tilegrad.ir.types import DType
from tilegrad.ops._copy import sized
from tilegrad.ops.base import NodeView

INDEX_TYPES = (DType.I64, DType.I32)


def expect_indices(node: NodeView, position: int) -> None:
    node.expect_dtype(position, *INDEX_TYPES)


def indexed(kernel: str, data: DType, index: DType) -> str:
    """The kernel's version for these elements and these indices."""
    return f"{sized(kernel, data)}_{index.short}"


def missing_bits(dtype: DType) -> dict[str, int]:
    """An index out of range reads nothing: NaN for floats, 0 otherwise."""
    return {"missing": 0x7FC00000 if dtype is DType.F32 else 0}
