"""Which bytes boxes touch, exactly: boxes of one tensor may lie between each other without meeting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tilegrad.ir.nest import Operand, Tile, operand_box, row_major_strides

Span = tuple[str, int, int]  # region, first byte, behind the last one

SETTLED_BYTES = 1024
"""The most that the conductor waits for while others compute: it takes their time, not the next nest's."""


@dataclass(frozen=True, eq=False)
class Bytes:
    """Of a region: runs of `run_bytes` that start at `starts`, ascending."""

    region: str
    starts: npt.NDArray[np.int64]
    run_bytes: int

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Rows, and the bytes of one: all that a transfer depends on."""
        return len(self.starts), self.run_bytes

    @cached_property
    def span(self) -> tuple[int, int]:
        return int(self.starts[0]), int(self.starts[-1]) + self.run_bytes

    def meets(self, other: Bytes) -> bool:
        if self.region != other.region or not self.run_bytes or not other.run_bytes:
            return False
        (start, stop), (other_start, other_stop) = self.span, other.span
        if stop <= other_start or other_stop <= start:
            return False
        # The run of the other that begins last before the end of one of ours.
        before = np.searchsorted(other.starts, self.starts + self.run_bytes) - 1
        return bool((other.starts[before] + other.run_bytes > self.starts)[before >= 0].any())


def one_run(region: str, start: int, stop: int) -> Bytes:
    return Bytes(region, np.array([start], dtype=np.int64), stop - start)


def box_bytes(operand: Operand, tile: Tile, region: str, offset: int) -> Bytes | None:
    """What a tile touches of an operand that begins at `offset`; None for nothing.

    Dimensions that are dense from the inside are one run; the others are enumerated.
    """
    box, strides = operand_box(operand, tile), row_major_strides(operand.shape)
    if not all(r.size for r in box):
        return None
    run, d = 1, len(box)
    while d and strides[d - 1] == run:
        d -= 1
        run *= box[d].size
    starts = np.array([sum(r.start * s for r, s in zip(box, strides, strict=True))], dtype=np.int64)
    for r, stride in zip(box[:d], strides[:d], strict=True):
        starts = np.add.outer(starts, np.arange(r.size, dtype=np.int64) * stride).reshape(-1)
    size = operand.element_bytes
    return Bytes(region, offset + starts * size, run * size)


def overlaps(a: Iterable[Span], b: Iterable[Span]) -> bool:
    others = list(b)
    return any(r == s and start < last and first < stop for r, start, stop in a for s, first, last in others)


def meet(a: Iterable[Bytes], b: Sequence[Bytes]) -> bool:
    return any(one.meets(other) for one in a for other in b)
