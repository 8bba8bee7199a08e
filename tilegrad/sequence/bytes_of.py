"""Which bytes operands of kernel calls take, for the replay."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tilegrad.ir.listing import Begin, Box, Place, box_size
from tilegrad.ir.nest import Access, Nest, Operand, row_major_strides
from tilegrad.ir.schedule import Launch
from tilegrad.ops import registry
from tilegrad.sequence.contents import NOTHING, View


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


def view_sources(launches: Iterable[Launch]) -> dict[str, str]:
    """A view's bytes are its source's: they are known under the name of what was actually written."""
    found: dict[str, str] = {}
    for node in (launch.node for launch in launches):
        if registry.get(node.op).is_view:
            found[node.outputs[0]] = found.get(node.inputs[0], node.inputs[0])
    return found


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(r.start, r.stop) for r in box)


def distinct(content: View) -> Iterable[int]:
    first = int(content.flat[0]) if content.size else NOTHING
    return (first,) if (content == first).all() else map(int, np.unique(content))
