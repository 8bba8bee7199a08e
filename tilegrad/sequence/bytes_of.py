"""Which bytes operands of kernel calls take, for the replay."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tilegrad.ir.listing import Begin, Box, Place, box_size
from tilegrad.ir.nest import Access, Nest, Operand, row_major_strides
from tilegrad.sequence.contents import NOTHING, View


def placed(nest: Nest, event: Begin, access: Access) -> Iterable[tuple[Operand, Place, int]]:
    """Operands of a kernel call that have bytes."""
    for operand, place in zip(nest.operands, event.places, strict=True):
        size = box_size(place.box) if place is not None and operand.access is access else 0
        if place is not None and size:
            yield operand, place, size * operand.element_bytes


def do_meet(a: Operand, place: Place, b: Operand, other: Place) -> bool:
    """Whether two operands that live as a whole share bytes."""
    starts = [(place, a), (other, b)]
    if place.region != other.region:
        return False
    (first, first_stop), (second, second_stop) = ((p.offset, p.offset + extent_bytes(o, p)) for p, o in starts)
    return first < second_stop and second < first_stop


def extent_bytes(operand: Operand, place: Place) -> int:
    strides = row_major_strides(operand.shape)
    return operand.element_bytes * (1 + sum((r.size - 1) * s for r, s in zip(place.box, strides, strict=True)))


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(r.start, r.stop) for r in box)


def distinct(content: View) -> Iterable[int]:
    first = int(content.flat[0]) if content.size else NOTHING
    return (first,) if (content == first).all() else map(int, np.unique(content))
