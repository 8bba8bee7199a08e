"""Nests over dimensions that do not coincide: pads, crops and the gradients of slices (see runtime/tg_pad.h)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilegrad.ir.nest import Access, Axis, Index, Nest, Operand, along
from tilegrad.ir.types import DType
from tilegrad.ops.base import NodeView

MAX_PAD_LOOPS = 6


@dataclass(frozen=True, slots=True)
class PadDim:
    """Output position i holds input position (turn * i + offset) / every."""

    out_extent: int
    in_extent: int
    offset: int = 0
    turn: int = 1
    every: int = 1

    @property
    def is_same(self) -> bool:
        return self == PadDim(self.out_extent, self.out_extent)


def merge_dims(node: NodeView, dims: Sequence[PadDim]) -> list[PadDim]:
    """A dimension that stays as it is joins the one before it. Too many left are refused."""
    result: list[PadDim] = []
    for dim in dims:
        if result and dim.is_same and result[-1].turn == result[-1].every == 1:
            outer, inner = result.pop(), dim.out_extent
            dim = PadDim(outer.out_extent * inner, outer.in_extent * inner, outer.offset * inner)
        result.append(dim)
    if len(result) > MAX_PAD_LOOPS:
        raise node.error(
            f"{node.node.op}: too many dimensions change",
            expected=f"at most {MAX_PAD_LOOPS}",
            got=str(len(result)),
        )
    return result


def value_bits(value: float, dtype: DType) -> dict[str, int]:
    """A number's bits as the kernel arguments value_low and value_high."""
    bits = int.from_bytes(np.array(value, dtype=dtype.numpy).tobytes(), "little")
    return {"value_low": bits & 0xFFFFFFFF, "value_high": bits >> 32}


def pad_nest(kernel: str, x: str, y: str, dims: Sequence[PadDim], value: float, dtype: DType) -> Nest:
    """`dims` as `merge_dims` gives them."""
    padded = [PadDim(1, 1)] * (MAX_PAD_LOOPS - len(dims)) + list(dims)
    constants: dict[str, int | float] = dict(value_bits(value, dtype))
    for d, dim in enumerate(padded):
        constants |= {f"turn_{d}": dim.turn, f"every_{d}": dim.every}
    return Nest(
        kernel,
        tuple(Axis(f"d{d}", dim.out_extent) for d, dim in enumerate(padded)),
        (
            Operand(
                "x",
                x,
                Access.READ,
                tuple(dim.in_extent for dim in padded),
                tuple(Index(((f"d{d}", dim.turn),), dim.offset, dim.every) for d, dim in enumerate(padded)),
            ),
            Operand(
                "y",
                y,
                Access.WRITE,
                tuple(dim.out_extent for dim in padded),
                tuple(along(f"d{d}") for d in range(MAX_PAD_LOOPS)),
            ),
        ),
        constants,
    )
