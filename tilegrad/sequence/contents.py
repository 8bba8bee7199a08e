"""Memories while a listing is replayed: which content lies at which bytes, and who is still reading them.

Content is a number for each unit of a few bytes: which unit of which value it is. A view of a tensor has the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tilegrad.ir.listing import Box, Part
from tilegrad.ir.nest import row_major_strides

NOTHING, UNDER_WAY = -1, -2
"""Bytes that nobody wrote, and bytes that a transfer or a kernel is about to write."""

View = npt.NDArray[np.int64]
Readers = npt.NDArray[np.int32]

_UNIT_BITS = 32


def first_unit(value: int) -> int:
    """The content of the first unit of the value with this number; the others follow it."""
    return value << _UNIT_BITS


def whose(content: int) -> int:
    return content >> _UNIT_BITS


def contents_of(value: int, shape: tuple[int, ...], box: Box, units: int) -> View:
    """Of a dense box of the value with this number, whose elements are so many units each."""
    start = sum(r.start * stride for r, stride in zip(box, row_major_strides(shape), strict=True))
    sizes = tuple(r.size for r in box)
    found: View = units_of_box((*shape, units), (*sizes, units)) + (first_unit(value) + start * units)
    return found


@lru_cache(maxsize=16)
def units_of_box(shape: tuple[int, ...], sizes: tuple[int, ...]) -> View:
    """Of a box of this size where its tensor begins: which of the tensor's, in the order of the box."""
    found: View = np.zeros(1, dtype=np.int64)
    for size, stride in zip(sizes, row_major_strides(shape), strict=True):
        found = np.add.outer(found, np.arange(size, dtype=np.int64) * stride).reshape(-1)
    return found


@dataclass(frozen=True)
class Result:
    """What a kernel made in scratchpad, up to a point of its sums; while these go on, its content is nothing yet."""

    nest: int
    operand: str
    box: Box
    size_bytes: int
    reduced_to: tuple[int, ...]


class Memory:
    """`content` has a number for every `unit` bytes, `readers` how many transfers and kernels are reading them.
    `results`, by their offsets, are those that lie in scratchpad and have not left."""

    def __init__(self, size_bytes: int, unit: int) -> None:
        self.unit = unit
        self.size_bytes = size_bytes
        self.content = np.full(-(-size_bytes // unit), NOTHING, dtype=np.int64)
        self.readers = np.zeros(len(self.content), dtype=np.int32)
        self.results: dict[int, Result] = {}
        self.reach = 0  # behind the last unit that somebody asked for since nothing was there

    def clear(self, kept: Sequence[tuple[int, int]] = ()) -> None:
        """Nothing is there any more, nor on its way there, but between these bytes."""
        spans = [(start // self.unit, stop // self.unit) for start, stop in kept]
        saved = [self.content[start:stop].copy() for start, stop in spans]
        self.content[: self.reach] = NOTHING
        self.results = {}
        self.reach = max((stop for _, stop in spans), default=0)
        for (start, stop), content in zip(spans, saved, strict=True):
            self.content[start:stop] = content

    def views(self, offset: int, sizes: Sequence[int], strides: Sequence[int]) -> tuple[View, Readers] | None:
        """Content and readers of a strided box of bytes, the innermost size dense; None where it passes an end."""
        last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        if offset < 0 or last + 1 > self.size_bytes:
            return None
        shape = (*sizes[:-1], sizes[-1] // self.unit)
        units = (*(stride // self.unit for stride in strides[:-1]), 1)
        start = offset // self.unit
        self.reach = max(self.reach, last // self.unit + 1)
        content: View = np.ndarray(shape, np.int64, self.content.data, 8 * start, tuple(8 * step for step in units))
        readers: Readers = np.ndarray(shape, np.int32, self.readers.data, 4 * start, tuple(4 * step for step in units))
        return content, readers

    def span(self, offset: int, size_bytes: int) -> tuple[View, Readers] | None:
        if offset < 0 or offset + size_bytes > self.size_bytes:
            return None
        start = offset // self.unit
        stop = start + size_bytes // self.unit
        self.reach = max(self.reach, stop)
        return self.content[start:stop], self.readers[start:stop]

    def part(self, base: int, part: Part) -> tuple[View, Readers] | None:
        """The outer side of a transfer's part."""
        return self.views(base + part.far_offset, (part.rows, part.row_bytes), (part.far_stride, 1))
