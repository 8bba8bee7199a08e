"""Memories while a listing is replayed: which content lies at which bytes, and who is still reading them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilegrad.ir.listing import Box, Part, Place
from tilegrad.ir.nest import Operand, row_major_strides

NOTHING, UNDER_WAY = -1, -2
"""Bytes that nobody wrote, and bytes that a transfer or a kernel is about to write."""

View = npt.NDArray[np.int64]
Readers = npt.NDArray[np.int32]

PART = 32
"""A part of a tensor says of each unit which of the tensor's it is, in the bits below this one; above, whose."""


def part_base(value: int) -> int:
    return (value + 1) << PART


def whose(content: int) -> int:
    return content if content < 1 << PART else (content >> PART) - 1


def unit_positions(shape: Sequence[int], box: Box, element_bytes: int, unit: int) -> View:
    """Of a dense box, unit by unit: which of the whole tensor's."""
    found: View = np.zeros(1, dtype=np.int64)
    per_element = element_bytes // unit
    for r, step in zip(box, row_major_strides(tuple(shape)), strict=True):
        found = np.add.outer(found, np.arange(r.start, r.stop, dtype=np.int64) * step).reshape(-1)
    return np.add.outer(found * per_element, np.arange(per_element, dtype=np.int64)).reshape(-1)


@dataclass
class Held:
    """What bytes of scratchpad hold: a table, or a box of a value. Results are produced up to a point of their
    reduction, and leave when they are complete."""

    nest: int
    what: str
    value: int = NOTHING
    shape: tuple[int, ...] = ()
    box: Box = ()
    is_result: bool = False
    is_complete: bool = True
    has_left: bool = True
    reduced_to: tuple[int, ...] = ()
    at: int = 0  # where it begins

    @property
    def is_whole(self) -> bool:
        """A whole tensor is the same bytes in every view of it."""
        return all((r.start, r.size) == (0, extent) for r, extent in zip(self.box, self.shape, strict=True))

    def has_run(self, operand: Operand, place: Place) -> bool:
        """Whether a box is one run of elements of this, which is whole, and its place is where that is."""
        positions = unit_positions(operand.shape, place.box, 1, 1)
        is_run = np.array_equal(positions, positions[0] + np.arange(len(positions)))
        return is_run and place.offset == self.at + operand.element_bytes * int(positions[0])


class Memory:
    """`content` has a number for every `unit` bytes, `readers` how many transfers and kernels are reading them."""

    def __init__(self, name: str, size_bytes: int, unit: int) -> None:
        self.name = name
        self.unit = unit
        self.size_bytes = size_bytes
        self.content = np.full(-(-size_bytes // unit), NOTHING, dtype=np.int64)
        self.readers = np.zeros(len(self.content), dtype=np.int32)
        self.reach = 0  # behind the last unit that somebody asked for since nothing was there

    def clear(self, kept: Sequence[tuple[int, int]] = ()) -> None:
        """Nothing is there any more, nor on its way there, but between these bytes."""
        spans = [(start // self.unit, stop // self.unit) for start, stop in kept]
        saved = [self.content[start:stop].copy() for start, stop in spans]
        self.content[: self.reach] = NOTHING
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
