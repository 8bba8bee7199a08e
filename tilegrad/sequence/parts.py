"""Proof that the launches of an operator in panels are that operator: from its own declaration, panel by panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from tilegrad.ir.nest import Access, AxisKind, Nest, Operand, Range, Tile
from tilegrad.ir.schedule import EntrySchedule, Launch, Panel
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.sequence.needs import Needs, summed_axes


def wrong_parts(schedule: EntrySchedule, needs: Needs) -> tuple[int, str] | None:
    """The first launch that is not what it says of its operator, and why; None where all are."""
    for numbers in schedule.launches_of_nodes:
        first = numbers[0]
        if len(numbers) == 1 and schedule.launches[first].part is None:
            continue
        node = schedule.launches[first].node
        nests = registry.get(node.op).typed_nests(NodeView(node, schedule.graph.types))
        seen: dict[int, list[Tile]] = {}
        for number in numbers:
            launch = schedule.launches[number]
            wrong = _wrong_part(launch, nests, schedule.panels, needs)
            if wrong is not None:
                return number, wrong
            assert launch.part is not None
            seen.setdefault(launch.part.nest, []).append(launch.part.ranges)
        if sorted(seen) != list(range(len(nests))):
            return first, "the operator's nests are not all there"
        for number, tiles in seen.items():
            if not _cover(nests[number], tiles):
                return first, "the panels are not the whole nest, or one is computed twice"
            if not _sums_in_order(nests[number], tiles):
                return first, "the panels of a sum are not in its order"
    return None


def _cover(nest: Nest, tiles: Sequence[Tile]) -> bool:
    whole = prod(axis.extent for axis in nest.axes)
    if sum(prod(tile[axis.name].size for axis in nest.axes) for tile in tiles) != whole:
        return False
    meets = np.ones((len(tiles), len(tiles)), dtype=bool)
    for axis in nest.axes:
        starts = np.array([tile[axis.name].start for tile in tiles])
        stops = np.array([tile[axis.name].stop for tile in tiles])
        meets &= (starts[:, None] < stops[None, :]) & (starts[None, :] < stops[:, None])
    return not whole or int(meets.sum()) == len(tiles)


def _sums_in_order(nest: Nest, tiles: Sequence[Tile]) -> bool:
    """Steps of a sum come in the order of its axes, of which those inside one that is cut are whole, and those outside
    it single steps. So panels that differ in these alone are in the order of their first steps."""
    sums = [axis for axis in nest.axes if axis.kind is AxisKind.REDUCTION]
    reached: dict[object, tuple[int, ...]] = {}
    for tile in tiles:
        starts = tuple(tile[axis.name].start for axis in sums)
        others = tuple((r.start, r.stop) for axis, r in tile.items() if nest.axis(axis).kind is not AxisKind.REDUCTION)
        if others in reached and reached[others] >= starts:
            return False
        reached[others] = starts
        cut = [k for k, axis in enumerate(sums) if tile[axis.name].size != axis.extent]
        if cut and any(tile[axis.name].size != 1 for axis in sums[: cut[-1]]):
            return False
    return True


def _wrong_part(launch: Launch, nests: Sequence[Nest], panels: Mapping[str, Panel], needs: Needs) -> str | None:
    part = launch.part
    if part is None or len(launch.nests) != 1 or not 0 <= part.nest < len(nests):
        return "it is no part of its operator"
    nest, whole = launch.nests[0], nests[part.nest]
    said, wanted = ((one.kernel, one.constants, one.epilogues) for one in (nest, whole))
    if said != wanted or len(nest.axes) != len(whole.axes):
        return "it is another nest than its operator's"
    for axis, own in zip(whole.axes, nest.axes, strict=True):
        r = part.ranges[axis.name]
        is_cut = r.size != axis.extent
        if own != replace(axis, extent=r.size) or r.start < 0 or r.stop > axis.extent:
            return f"its axis '{axis.name}' is not the panel's"
        if is_cut and axis.kind is AxisKind.INNER:
            return f"its axis '{axis.name}' cannot be cut into panels"
        if is_cut and axis.kind is AxisKind.REDUCTION and (axis.name, r.start, axis.extent) not in nest.origin:
            return f"it does not know that it is a part of the sum over '{axis.name}'"
    for name, start, extent in nest.origin:
        if (start, extent) != (part.ranges[name].start, whole.axis(name).extent):
            return f"its axis '{name}' begins elsewhere"
    if not _goes_on(nest, whole, part.ranges):
        return "it does not go on from the sums that were begun"
    for operand, of in zip(nest.pointers, whole.operands, strict=True):
        wrong = _wrong_operand(operand, of, part.ranges, panels, needs)
        if wrong is not None:
            return wrong
    return None


def _goes_on(nest: Nest, whole: Nest, ranges: Tile) -> bool:
    """Of every result whose sum was begun by a panel before, what is there of it is read, and of no other."""
    begun = {o.name for o in whole.results if any(ranges[axis.name].start for axis in summed_axes(whole, o))}
    wanted = [replace(o, name="", access=Access.READ, continues=o.name) for o in nest.results if o.name in begun]
    return wanted == [replace(o, name="") for o in nest.operands if o.continues is not None]


def _wrong_operand(
    operand: Operand, of: Operand, ranges: Tile, panels: Mapping[str, Panel], needs: Needs
) -> str | None:
    """It is all of its operator's, or a panel of that which has what is needed, counted from where it begins."""
    other = f"operand '{operand.name}' is not a part of its operator's '{of.name}'"
    if of.index is None or of.value is None or operand.value is None:
        return None if operand == of else other
    everything = Panel(operand.value, of.shape, tuple(Range(0, extent) for extent in of.shape), of.dtype)
    panel = panels.get(operand.value, everything)
    if (panel.value, panel.shape) != (of.value, of.shape):
        return other
    index = tuple(
        replace(one, offset=one.offset + sum(c * ranges[axis].start for axis, c in one.terms) - one.divisor * r.start)
        for one, r in zip(of.index, panel.box, strict=True)
    )
    if operand != replace(of, value=operand.value, shape=tuple(r.size for r in panel.box), index=index):
        return other
    for d, r in enumerate(panel.box):
        needed, _ = needs.needed(of, d, ranges)
        if needed.size and not (r.start <= needed.start and needed.stop <= r.stop):
            has = f"the panel of '{operand.name}' has {r.start} to {r.stop} of dimension {d}"
            return f"{has}, its nest needs {needed.start} to {needed.stop}"
    return None
