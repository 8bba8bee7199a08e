"""Proof that the launches of an operator in panels are that operator: from its own declaration, panel by panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilegrad.ir.nest import AxisKind, Index, Nest, Operand, Tile
from tilegrad.ir.schedule import EntrySchedule, Launch, Panel
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.sequence.needs import Needs


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


def _wrong_part(launch: Launch, nests: Sequence[Nest], panels: Mapping[str, Panel], needs: Needs) -> str | None:
    part = launch.part
    if part is None or len(launch.nests) != 1 or not 0 <= part.nest < len(nests):
        return "it is no part of its operator"
    nest, whole = launch.nests[0], nests[part.nest]
    if (nest.kernel, nest.constants) != (whole.kernel, whole.constants) or len(nest.axes) != len(whole.axes):
        return "it is another nest than its operator's"
    for axis, own in zip(whole.axes, nest.axes, strict=True):
        r = part.ranges[axis.name]
        is_cut = r.size != axis.extent
        if (own.name, own.kind, own.extent) != (axis.name, axis.kind, r.size) or r.start < 0 or r.stop > axis.extent:
            return f"its axis '{axis.name}' is not the panel's"
        if is_cut and axis.kind is not AxisKind.PARALLEL:
            return f"its axis '{axis.name}' cannot be cut into panels"
    for name, start, extent in nest.origin:
        if (start, extent) != (part.ranges[name].start, whole.axis(name).extent):
            return f"its axis '{name}' begins elsewhere"
    for operand, of in zip(nest.operands, whole.operands, strict=True):
        wrong = _wrong_operand(operand, of, part.ranges, panels, needs)
        if wrong is not None:
            return wrong
    return None


def _wrong_operand(
    operand: Operand, of: Operand, ranges: Tile, panels: Mapping[str, Panel], needs: Needs
) -> str | None:
    if (operand.name, operand.access, operand.dtype) != (of.name, of.access, of.dtype):
        return f"operand '{operand.name}' is not its operator's '{of.name}'"
    if of.value is None:
        return None if operand.value is None else f"operand '{operand.name}' is not there"
    panel = None if operand.value is None else panels.get(operand.value)
    if panel is None:
        is_same = (operand.value, operand.shape) == (of.value, of.shape)
        starts = [0] * len(of.shape)
    else:
        is_same = (panel.value, panel.shape) == (of.value, of.shape)
        is_same &= operand.shape == tuple(r.size for r in panel.box)
        starts = [r.start for r in panel.box]
    if not is_same:
        return f"operand '{operand.name}' is not a part of '{of.value}'"
    if of.index is None or operand.index is None:
        return None if operand.index is of.index and panel is None else f"operand '{operand.name}' is needed whole"
    for d, (index, own) in enumerate(zip(of.index, operand.index, strict=True)):
        begin = index.offset + sum(c * ranges[axis].start for axis, c in index.terms) - index.divisor * starts[d]
        if own != Index(index.terms, begin, index.divisor):
            return f"dimension {d} of '{operand.name}' is counted from elsewhere"
        needed, _ = needs.needed(of, d, ranges)
        if (
            panel is not None
            and needed.size
            and not (panel.box[d].start <= needed.start and needed.stop <= panel.box[d].stop)
        ):
            has = f"the panel of '{operand.name}' has {panel.box[d].start} to {panel.box[d].stop} of dimension {d}"
            return f"{has}, its nest needs {needed.start} to {needed.stop}"
    return None
