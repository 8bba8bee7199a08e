"""What Gather and GatherElements share: index types, and the value an index out of range gives in the C."""

from __future__ import annotations

import numpy as np

from tilegrad.ir.types import DType
from tilegrad.ops._copy import sized
from tilegrad.ops.base import NodeView

INDEX_TYPES = (DType.I64, DType.I32)


def expect_indices(node: NodeView, position: int) -> None:
    node.expect_dtype(position, *INDEX_TYPES)


def expect_in_range(node: NodeView, position: int, extent: int) -> None:
    """Indices that are known now: one out of range would read nothing, in every run."""
    known = node.constants.get(node.inputs[position])
    if known is None:
        return
    indices = known.array.astype(np.int64)
    wrong = np.argwhere((indices < -extent) | (indices >= extent))
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        raise node.error(
            f"{node.node.op}: an index ('{node.inputs[position]}') is out of range",
            expected=f"{-extent} to {extent - 1}",
            got=f"{indices[at]}" + (f" at {list(at)}" if at else ""),
        )


def indexed(kernel: str, data: DType, index: DType) -> str:
    """The kernel's version for these elements and these indices."""
    return f"{sized(kernel, data)}_{index.short}"


def missing_bits(dtype: DType) -> dict[str, int]:
    """An index out of range reads nothing: NaN for floats, 0 otherwise."""
    return {"missing": 0x7FC00000 if dtype is DType.F32 else 0}
