"""Which bytes operands of kernel calls take, for the replay."""

from __future__ import annotations

from collections.abc import Iterable

from tilegrad.ir.listing import Begin, Box, Place, box_size
from tilegrad.ir.nest import Access, Nest, Operand, row_major_strides


def placed(nest: Nest, event: Begin, access: Access) -> Iterable[tuple[Operand, Place, int]]:
    """Operands of a kernel call that have bytes."""
    for operand, place in zip(nest.operands, event.places, strict=True):
        size = box_size(place.box) if place is not None and operand.access is access else 0
        if place is not None and size:
            yield operand, place, size * operand.element_bytes


def do_meet(a: Operand, place: Place, b: Operand, other: Place) -> bool:
    """Whether two operands that live as a whole share bytes."""
    stops = []
    for operand, own in ((a, place), (b, other)):
        pairs = zip(own.box, row_major_strides(operand.shape), strict=True)
        stops.append(own.offset + operand.element_bytes * (1 + sum((r.size - 1) * stride for r, stride in pairs)))
    return place.region == other.region and max(place.offset, other.offset) < min(stops)


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(r.start, r.stop) for r in box)
