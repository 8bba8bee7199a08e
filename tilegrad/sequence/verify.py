"""Proof that a schedule is right, by code that knows nothing of how tilings are chosen.

Each nest's events are replayed against what the operator declared: its axes, and each operand's index map, whose
positions are enumerated here rather than computed from their ends. What a kernel reads must have been brought and
waited for, what it writes must leave completely, once, behind its last contribution, and nothing may be in two uses at
a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from tilegrad.analysis.lifetimes import temporaries
from tilegrad.errors import InternalError
from tilegrad.ir.nest import Access, Axis, AxisKind, Index, Nest, Operand, Range, Tile, row_major_strides
from tilegrad.ir.schedule import Schedule, Slot, Tiling
from tilegrad.ir.types import TensorType
from tilegrad.sequence.events import (
    MOST_REQUESTS,
    Box,
    Compute,
    Event,
    Fork,
    Part,
    Start,
    Wait,
    nest_events,
    sizes_of,
)
from tilegrad.targets.base import Target


class ScheduleError(InternalError):
    """A schedule that would give wrong results."""


def verify_schedule(schedule: Schedule) -> Schedule:
    """Verifies every nest in tiles; those that differ only in their values' names once."""
    known: set[object] = set()
    if not schedule.is_tiled:
        return schedule
    for entry in schedule.entries.values():
        scratch = {name: tensor_type for name, (_, tensor_type) in temporaries(entry.graph).items()}
        types = {**scratch, **entry.graph.types}
        for launch in entry.launches:
            tilings = launch.tilings or (None,) * len(launch.nests)
            if len(tilings) != len(launch.nests):
                raise ScheduleError("not every nest has a tiling", stage="schedule", node=launch.node.name)
            for nest, tiling in zip(launch.nests, tilings, strict=True):
                if tiling is None:
                    raise ScheduleError(
                        f"tg_{nest.kernel} computes from {schedule.target.home}, the others do not",
                        stage="schedule",
                        node=launch.node.name,
                    )
                element_bytes = _element_bytes(nest, types, launch.node.name)
                key = (_structure(nest), tuple(element_bytes.items()), id(tiling))
                if key not in known:
                    known.add(key)
                    verify_nest(nest, tiling, element_bytes, schedule.target, launch.node.name)
    return schedule


def _structure(nest: Nest) -> object:
    operands = tuple((o.name, o.value is None, o.access, o.shape, o.index) for o in nest.operands)
    return (nest.kernel, nest.axes, operands)


def _element_bytes(nest: Nest, types: Mapping[str, TensorType], node: str) -> dict[str, int]:
    result = {}
    for operand in nest.operands:
        if operand.value is None:
            continue
        tensor_type = types[operand.value]
        if prod(operand.shape) != tensor_type.size:
            raise ScheduleError(
                f"tg_{nest.kernel}, operand '{operand.name}': the view is not the tensor '{operand.value}'",
                stage="schedule",
                node=node,
                expected=f"{tensor_type.size} elements",
                got=f"{prod(operand.shape)} elements",
            )
        result[operand.name] = tensor_type.dtype.size_bytes
    return result


def verify_nest(
    nest: Nest,
    tiling: Tiling,
    element_bytes: Mapping[str, int],
    target: Target,
    node: str,
    events: Iterable[Event] | None = None,
) -> None:
    """`events` are the runtime's unless given. Raises a ScheduleError that names node, tile and operand."""
    _Layout(nest, tiling, target, node).check()
    if events is None:
        longest_bytes = target.engine(target.home, target.compute).longest_bytes
        events = nest_events(nest, tiling, element_bytes, longest_bytes)
    _Replay(nest, tiling, element_bytes, target, node).run(events)


def verify_in_place(
    nest: Nest, tiling: Tiling, element_bytes: Mapping[str, int], target: Target, node: str, pair: tuple[str, str]
) -> None:
    """That `pair`, an operand read and one written, may be at one address: nothing is read where it was overwritten."""
    operands = {operand.name: operand for operand in nest.operands}
    reader, writer = (operands[name] for name in pair)
    overwritten = np.zeros(prod(writer.shape), dtype=bool)
    arriving: dict[int, list[Box]] = {}
    longest_bytes = target.engine(target.home, target.compute).longest_bytes
    for event in nest_events(nest, tiling, element_bytes, longest_bytes):
        if isinstance(event, Wait):
            arriving.pop(event.request, None)
        elif isinstance(event, Start) and event.operand == reader.name:
            arriving.setdefault(event.request, []).append(event.box)
            _expect_intact(overwritten, reader, event.box, nest, node, event.tile)
        elif isinstance(event, Start) and event.operand == writer.name:
            overwritten.reshape(writer.shape)[_slices(event.box)] = True
            for box in (box for boxes in arriving.values() for box in boxes):
                _expect_intact(overwritten, reader, box, nest, node, event.tile)


def _expect_intact(
    overwritten: npt.NDArray[np.bool_], reader: Operand, box: Box, nest: Nest, node: str, tile: int
) -> None:
    if overwritten.reshape(reader.shape)[_slices(box)].any():
        raise ScheduleError(
            f"tg_{nest.kernel}, tile {tile}, operand '{reader.name}': read where the result is written in place",
            stage="schedule",
            node=node,
        )


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(r.start, r.stop) for r in box)


class _Layout:
    """What can be said without running: loops and slots."""

    def __init__(self, nest: Nest, tiling: Tiling, target: Target, node: str) -> None:
        self.nest = nest
        self.tiling = tiling
        self.memory = target.memory(target.compute)
        self.node = node

    def error(self, message: str) -> ScheduleError:
        return ScheduleError(f"tg_{self.nest.kernel}: {message}", stage="schedule", node=self.node)

    def check(self) -> None:
        axes = {axis.name: axis for axis in self.nest.axes}
        names = [loop.axis for loop in self.tiling.loops]
        for loop in self.tiling.loops:
            axis = axes.get(loop.axis)
            if axis is None or axis.extent != loop.extent or names.count(loop.axis) > 1:
                raise self.error(f"the loop over '{loop.axis}' is not over an axis of the nest")
            if axis.kind is AxisKind.INNER or not 1 <= loop.tile <= loop.extent:
                raise self.error(f"axis '{loop.axis}' of {loop.extent} cannot be cut into tiles of {loop.tile}")
        self._check_slots()

    def _check_slots(self) -> None:
        capacity, alignment = self.memory.capacity_bytes, self.memory.alignment_bytes
        if capacity is not None and self.tiling.scratch_bytes > capacity:
            raise self.error(f"{self.tiling.scratch_bytes} bytes of {self.memory.name}, which has {capacity}")
        end, previous = 0, ""
        for name, slot in sorted(self.tiling.slots.items(), key=lambda item: item[1].offset_bytes):
            if slot.offset_bytes % alignment or slot.slot_bytes % alignment:
                raise self.error(f"operand '{name}': its slots are not aligned to {alignment} bytes")
            if slot.count not in (1, 2) or slot.offset_bytes < 0 or slot.slot_bytes < 0:
                raise self.error(f"operand '{name}': its slots cannot be: {slot}")
            if slot.slot_bytes and slot.offset_bytes < end:
                raise self.error(f"operand '{name}': its slots overlap those of '{previous}'")
            if slot.slot_bytes:
                end, previous = slot.offset_bytes + slot.count * slot.slot_bytes, name
        if end > self.tiling.scratch_bytes:
            raise self.error(f"operand '{previous}': its slots pass the tiling's {self.tiling.scratch_bytes} bytes")


@dataclass(frozen=True, slots=True)
class _Held:
    """What a slot holds: a box that was brought, or one produced so far, up to a point of the reduction."""

    box: Box
    is_produced: bool
    is_complete: bool = False
    reduced_to: tuple[int, ...] = ()


class _Positions:
    """The positions of an operand's dimension that a tile needs, by going through them all."""

    def __init__(self) -> None:
        self.known: dict[object, tuple[Range, bool]] = {}

    def find(self, index: Index, extent: int, tile: Tile) -> tuple[Range, bool]:
        """From the first to behind the last, and whether all between are needed too."""
        key = (index, extent, tuple((tile[axis].start, tile[axis].stop) for axis, _ in index.terms))
        if key not in self.known:
            self.known[key] = self._enumerate(index, extent, tile)
        return self.known[key]

    @staticmethod
    def _enumerate(index: Index, extent: int, tile: Tile) -> tuple[Range, bool]:
        numerators = np.array([index.offset], dtype=np.int64)
        for axis, coefficient in index.terms:
            steps = coefficient * np.arange(tile[axis].start, tile[axis].stop, dtype=np.int64)
            numerators = np.unique(np.add.outer(numerators, steps))
        positions = numerators[numerators % index.divisor == 0] // index.divisor
        positions = positions[(positions >= 0) & (positions < extent)]
        if not len(positions):
            return Range(0, 0), True
        needed = Range(int(positions[0]), int(positions[-1]) + 1)
        return needed, needed.size == len(positions)


class _Replay:
    """Goes through the events of one nest with what each slot holds and which transfers are under way."""

    def __init__(self, nest: Nest, tiling: Tiling, element_bytes: Mapping[str, int], target: Target, node: str) -> None:
        self.nest = nest
        self.tiling = tiling
        self.element_bytes = element_bytes
        self.longest_bytes = target.engine(target.home, target.compute).longest_bytes
        self.node = node
        self.operands = {operand.name: operand for operand in nest.operands if operand.value is not None}
        self.sums = {name: _summed_axes(nest, operand) for name, operand in self.operands.items()}
        self.positions = _Positions()
        self.held: dict[tuple[str, int], _Held] = {}
        self.under_way: dict[int, list[Start]] = {}
        self.busy: dict[tuple[str, int], Start] = {}
        self.used_requests: set[int] = set()
        self.stored = {
            name: np.zeros(operand.shape, dtype=bool)
            for name, operand in self.operands.items()
            if operand.access is Access.WRITE
        }
        self.computed: dict[tuple[tuple[int, int], ...], int] = {}
        self.known_transfers: set[object] = set()
        self.running: Compute | None = None

    def error(self, tile: int, operand: str | None, message: str) -> ScheduleError:
        where = "" if operand is None else f", operand '{operand}'"
        return ScheduleError(f"tg_{self.nest.kernel}, tile {tile}{where}: {message}", stage="schedule", node=self.node)

    def run(self, events: Iterable[Event]) -> None:
        tile = 0
        for event in events:
            if isinstance(event, Start):
                self.start(event)
            elif isinstance(event, Wait):
                self.wait(event)
            elif isinstance(event, Fork):
                self.fork(event.kernel)
            else:
                tile = event.number
                self.compute(event)
        self.finish(tile)

    def start(self, event: Start) -> None:
        operand = self.operands.get(event.operand)
        if operand is None:
            raise self.error(event.tile, event.operand, "there is no such operand")
        slot = self.tiling.slots.get(event.operand)
        if slot is None or not 0 <= event.slot < slot.count:
            raise self.error(event.tile, event.operand, f"it has no slot {event.slot}")
        opened = self.under_way.get(event.request)
        if event.request in self.used_requests or (opened is not None and opened[0].inward is not event.inward):
            raise self.error(event.tile, event.operand, f"request {event.request} is used twice")
        if event.inward is (operand.access is Access.WRITE):
            raise self.error(event.tile, event.operand, "the transfer goes the wrong way")
        place = (event.operand, event.slot)
        if place in self.busy:
            other = self.busy[place]
            raise self.error(
                event.tile, event.operand, f"slot {event.slot} is in use by the transfer of tile {other.tile}"
            )
        self.check_transfer(event, operand, slot)
        self.under_way.setdefault(event.request, []).append(event)
        self.busy[place] = event
        if len(self.under_way) > MOST_REQUESTS:
            raise self.error(event.tile, event.operand, f"more than {MOST_REQUESTS} transfers are under way")
        if event.inward:
            self.held.pop(place, None)
        else:
            self.leave(event)

    def leave(self, event: Start) -> None:
        held = self.held.get((event.operand, event.slot))
        if held is None or held.box != event.box:
            raise self.error(event.tile, event.operand, f"slot {event.slot} does not hold the result that leaves")
        if not held.is_complete:
            raise self.error(event.tile, event.operand, "the result leaves before its last reduction tile")
        part = self.stored[event.operand][_slices(event.box)]
        if part.any():
            raise self.error(event.tile, event.operand, "a result leaves twice")
        part[...] = True

    def check_transfer(self, event: Start, operand: Operand, slot: Slot) -> None:
        """That the parts move the box, all of it, and nothing else, within the engine's limits."""
        for r, extent in zip(event.box, operand.shape, strict=True):
            if not 0 <= r.start < r.stop <= extent:
                raise self.error(event.tile, event.operand, f"the box {_text(event.box)} passes the tensor's end")
        size = self.element_bytes[event.operand]
        strides = row_major_strides(operand.shape)
        begin = size * sum(r.start * stride for r, stride in zip(event.box, strides, strict=True))
        total = size * prod(operand.shape)
        if event.far_start != begin:
            raise self.error(event.tile, event.operand, "the transfer does not start where the box does")
        key = (event.operand, sizes_of(event.box), event.parts)
        if key in self.known_transfers:
            return
        for part in event.parts:
            if part.size_bytes > self.longest_bytes:
                raise self.error(
                    event.tile,
                    event.operand,
                    f"a transfer of {part.size_bytes} bytes, the engine takes {self.longest_bytes}",
                )
            if part.far_offset < 0 or begin + part.far_stop > total:
                raise self.error(event.tile, event.operand, "a transfer passes the tensor's end")
            if part.scratch_offset < 0 or part.scratch_offset + part.size_bytes > slot.slot_bytes:
                raise self.error(event.tile, event.operand, "a transfer passes the end of its slot")
        if not _moves_box(event.parts, sizes_of(event.box), strides, size):
            raise self.error(event.tile, event.operand, f"the transfer is not that of the box {_text(event.box)}")
        self.known_transfers.add(key)

    def wait(self, event: Wait) -> None:
        starts = self.under_way.pop(event.request, None)
        if starts is None:
            raise self.error(event.tile, None, f"waits for request {event.request}, which is not under way")
        self.used_requests.add(event.request)
        for start in starts:
            place = (start.operand, start.slot)
            del self.busy[place]
            if start.inward:
                self.held[place] = _Held(start.box, is_produced=False)
            else:
                del self.held[place]

    def fork(self, event: Compute) -> None:
        """Operands are there, and results have room, before the first core begins."""
        if self.running is not None:
            raise self.error(event.number, None, f"begins while tile {self.running.number} computes")
        self.running = event
        for name in self.operands:
            if prod(sizes_of(event.boxes[name])):
                self.expect_settled(event, name)

    def expect_settled(self, event: Compute, name: str) -> None:
        place = (name, event.slots[name])
        is_read = self.operands[name].access is Access.READ
        if place in self.busy:
            what = "has not arrived" if is_read else "is still leaving"
            raise self.error(event.number, name, f"the kernel runs while slot {place[1]} {what}")
        if is_read and place not in self.held:
            raise self.error(event.number, name, f"was not brought into slot {place[1]}")

    def compute(self, event: Compute) -> None:
        if self.running is None or self.running.number != event.number:
            raise self.error(event.number, None, "ends, but it did not begin")
        self.running = None
        self.check_tile(event)
        for name, operand in self.operands.items():
            box = event.boxes[name]
            self.check_box(event, operand, box)
            if not prod(sizes_of(box)):
                continue
            place = (name, event.slots[name])
            held = self.held.get(place)
            self.expect_settled(event, name)
            if operand.access is Access.READ:
                assert held is not None
                if held.box != box:
                    raise self.error(
                        event.number, name, f"slot {place[1]} holds {_text(held.box)}, the kernel needs {_text(box)}"
                    )
                continue
            self.check_result(event, name, box, held)
            last = tuple(event.tile[axis.name].stop - 1 for axis in self.sums[name])
            is_last = all(event.tile[axis.name].stop == axis.extent for axis in self.sums[name])
            self.held[place] = _Held(box, is_produced=True, is_complete=is_last, reduced_to=last)

    def check_tile(self, event: Compute) -> None:
        for axis in self.nest.axes:
            r = event.tile[axis.name]
            if r.start < 0 or r.stop > axis.extent or (axis.kind is AxisKind.INNER and r.size != axis.extent):
                raise self.error(event.number, None, f"the range of axis '{axis.name}' cannot be: {r}")
        key = tuple((event.tile[axis.name].start, event.tile[axis.name].stop) for axis in self.nest.axes)
        if key in self.computed:
            raise self.error(event.number, None, f"computes what tile {self.computed[key]} did")
        self.computed[key] = event.number

    def check_box(self, event: Compute, operand: Operand, box: Box) -> None:
        """That the box has all that the kernel needs, and for results nothing that it does not write."""
        slot = self.tiling.slots[operand.name]
        if prod(sizes_of(box)) * self.element_bytes[operand.name] > slot.slot_bytes:
            raise self.error(event.number, operand.name, f"the box {_text(box)} passes the end of its slot")
        for d in range(len(operand.shape)):
            needed, is_dense = self.needed(operand, d, event.tile)
            is_enough = not needed.size or (box[d].start <= needed.start and needed.stop <= box[d].stop)
            if operand.access is Access.WRITE and needed.size:
                is_enough = is_dense and box[d] == needed
            if not is_enough:
                raise self.error(
                    event.number,
                    operand.name,
                    f"the box has {box[d].start} to {box[d].stop} of dimension {d}, "
                    f"the kernel's are {needed.start} to {needed.stop}",
                )

    def needed(self, operand: Operand, d: int, tile: Tile) -> tuple[Range, bool]:
        if operand.index is None:
            return Range(0, operand.shape[d]), True
        return self.positions.find(operand.index[d], operand.shape[d], tile)

    def check_result(self, event: Compute, name: str, box: Box, held: _Held | None) -> None:
        first = tuple(event.tile[axis.name].start for axis in self.sums[name])
        if self.stored[name][_slices(box)].any():
            raise self.error(event.number, name, "the result left before this tile added to it")
        if not any(first):
            if held is not None:
                raise self.error(event.number, name, f"slot {event.slots[name]} is reused before its result left")
        elif held is None or held.box != box:
            raise self.error(event.number, name, f"slot {event.slots[name]} does not hold the sum to continue")
        elif not held.reduced_to < first:
            raise self.error(event.number, name, "the reduction's tiles are out of order")

    def finish(self, tile: int) -> None:
        for starts in self.under_way.values():
            raise self.error(starts[0].tile, starts[0].operand, "its transfer is never waited for")
        for (name, slot), held in self.held.items():
            if held.is_produced:
                raise self.error(tile, name, f"the result in slot {slot} never leaves")
        volume = sum(prod(stop - start for start, stop in key) for key in self.computed)
        if volume != prod(axis.extent for axis in self.nest.axes):
            raise self.error(tile, None, "the tiles are not the whole nest")
        everything = {axis.name: Range(0, axis.extent) for axis in self.nest.axes}
        for name, stored in self.stored.items():
            operand = self.operands[name]
            box = tuple(self.needed(operand, d, everything)[0] for d in range(len(operand.shape)))
            if not stored[_slices(box)].all():
                raise self.error(tile, name, "a part of the result never leaves")


def _summed_axes(nest: Nest, operand: Operand) -> tuple[Axis, ...]:
    """The axes over which a result is summed: reduction axes that do not lead to other elements of it."""
    own = {axis for index in operand.index or () for axis, _ in index.terms}
    return tuple(axis for axis in nest.axes if axis.kind is AxisKind.REDUCTION and axis.name not in own)


def _moves_box(parts: tuple[Part, ...], sizes: tuple[int, ...], strides: tuple[int, ...], element_bytes: int) -> bool:
    """Whether parts bring the elements of a box, in order, to where a dense box has them."""
    far: list[npt.NDArray[np.int64]] = []
    scratch = 0
    for part in parts:
        if part.scratch_offset != scratch or part.row_bytes % element_bytes:
            return False
        scratch += part.size_bytes
        row = np.arange(0, part.row_bytes, element_bytes, dtype=np.int64)
        rows = np.arange(part.rows, dtype=np.int64) * part.far_stride + part.far_offset
        far.append(np.add.outer(rows, row).reshape(-1))
    wanted = np.zeros(1, dtype=np.int64)
    for size, stride in zip(sizes, strides, strict=True):
        wanted = np.add.outer(wanted, np.arange(size, dtype=np.int64) * stride * element_bytes).reshape(-1)
    return bool(np.array_equal(np.concatenate(far) if far else np.zeros(0, dtype=np.int64), wanted))


def _text(box: Box) -> str:
    return "[" + ", ".join(f"{r.start}:{r.stop}" for r in box) + "]"
