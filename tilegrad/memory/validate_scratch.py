"""Proof that nests do not disturb each other in scratchpad and L2, by code that knows nothing of how they were placed.

Each entry is replayed with the bytes that everything touches. Inside a nest, the schedule's verifier has shown that
slots are used rightly; here it is shown that tables and slots of neighbours stay apart while they are needed, and that
an operand that is requested before its nest begins is not one that an earlier nest still has to write.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from tilegrad.ir.nest import Access, Nest, Operand, operand_box
from tilegrad.ir.plan import NestPlace, Plan
from tilegrad.ir.schedule import Tiling
from tilegrad.memory.lifetimes import temporaries
from tilegrad.memory.plan_events import StartMove
from tilegrad.memory.scratch_events import Done, Enter, Fetch, Fetched, OfNest, entry_events
from tilegrad.memory.validate import PlanError
from tilegrad.scheduling.events import MOST_REQUESTS, Compute, Fork, Start, Wait
from tilegrad.scheduling.footprint import tiles

SCRATCH = "L1"


@dataclass(frozen=True, slots=True)
class _Bytes:
    region: str
    start: int
    stop: int

    def meets(self, other: _Bytes) -> bool:
        return self.region == other.region and self.start < other.stop and other.start < self.stop


@dataclass(frozen=True, slots=True)
class _Runs:
    """Bytes of L2 that a transfer touches: runs in ascending order."""

    region: str
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]

    def meets(self, other: _Runs) -> bool:
        if self.region != other.region or not len(self.starts) or not len(other.starts):
            return False
        firsts = np.searchsorted(other.stops, self.starts, side="right")  # first run that does not end before ours
        reached = np.append(other.starts, np.iinfo(np.int64).max)[firsts]
        return bool((reached < self.stops).any())


@dataclass(frozen=True, slots=True)
class _Transfer:
    nest: int
    near: _Bytes
    far: _Runs
    inward: bool
    what: str


_NOWHERE = _Runs("words", np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def validate_scratch(plan: Plan) -> Plan:
    """Raises a PlanError that names the node and the operand."""
    for entry in plan.entries:
        if plan.entries[entry].places:
            _Replay(plan, entry).run()
    return plan


class _Replay:
    def __init__(self, plan: Plan, entry: str) -> None:
        self.plan = plan
        self.entry = entry
        self.places = plan.entries[entry].places
        self.launches = plan.schedule.entries[entry].launches
        graph = plan.schedule.entries[entry].graph
        types = {name: tensor_type for name, (_, tensor_type) in temporaries(graph).items()} | dict(graph.types)
        self.size_of = {name: tensor_type.dtype.size_bytes for name, tensor_type in types.items()}
        self.tables: dict[int, _Bytes] = {}  # requested, and needed until their nest is done
        self.readable: set[int] = set()
        self.kept: dict[tuple[int, str, int], _Bytes] = {}  # what a slot of a nest holds or is to hold
        self.computing = -1
        self.computed: list[tuple[int, str, int]] = []  # by its last tile
        self.under_way: dict[int, list[_Transfer]] = {}
        self.early: list[_Transfer] = []  # loads of nests that had not begun, until these end
        self.begun = -1
        self.capacity = plan.memory[SCRATCH].used_bytes

    def error(self, nest: int, message: str) -> PlanError:
        place = self.places[nest]
        node = self.launches[place.launch].node.name
        kernel = self.launches[place.launch].nests[place.nest].kernel
        return PlanError(f"plan of {self.entry}: tg_{kernel}: {message}", stage="memory", node=node)

    def nest_of(self, number: int) -> tuple[NestPlace, Nest, Tiling]:
        place = self.places[number]
        launch = self.launches[place.launch]
        tiling = launch.tilings[place.nest]
        assert tiling is not None
        return place, launch.nests[place.nest], tiling

    def run(self) -> None:
        for event in entry_events(self.plan, self.entry):
            if isinstance(event, Fetch):
                self.fetch(event.nest, event.request)
            elif isinstance(event, Fetched):
                self.under_way.pop(event.request)
                self.readable.add(event.nest)
            elif isinstance(event, Enter):
                self.enter(event.nest)
            elif isinstance(event, Done):
                self.done(event.nest)
            elif isinstance(event, StartMove):
                self.move(event.move)
            elif isinstance(event, OfNest) and isinstance(event.event, Start):
                self.start(event.nest, event.event)
            elif isinstance(event, OfNest) and isinstance(event.event, Wait):
                self.wait(event.event)
            elif isinstance(event, OfNest) and isinstance(event.event, Fork):
                self.compute(event.nest, event.event.kernel)
        if self.under_way:
            raise self.error(self.begun, "a transfer is under way when the entry ends")

    def fetch(self, number: int, request: int) -> None:
        self.tables = {nest: table for nest, table in self.tables.items() if nest >= self.begun}
        place, nest, _ = self.nest_of(number)
        span = _Bytes(SCRATCH, place.table_offset, place.table_offset + place.table_bytes)
        if 4 * (len(place.table) + len(nest.operands)) > place.table_bytes:
            raise self.error(number, "its table is longer than its place")
        self.expect_free(number, span, "its table")
        self.tables[number] = span
        self.under_way[request] = [_Transfer(number, span, _NOWHERE, True, "its table")]

    def expect_free(self, number: int, span: _Bytes, what: str, key: tuple[int, str, int] | None = None) -> None:
        """That nothing else needs these bytes of scratchpad. `key` is the slot whose content is replaced."""
        if span.start < 0 or span.stop > self.capacity:
            raise self.error(number, f"{what} lies beyond {SCRATCH}")
        for other, table in self.tables.items():
            if table.meets(span):
                raise self.error(number, f"{what} lies where the table of nest {other} is")
        for (other, operand, slot), held in self.kept.items():
            if (other, operand, slot) != key and held.meets(span):
                raise self.error(number, f"{what} lies where slot {slot} of '{operand}' of nest {other} is")
        for transfer in (one for transfers in self.under_way.values() for one in transfers):
            if transfer.near.meets(span):
                raise self.error(number, f"{what} lies where {transfer.what} of nest {transfer.nest} is on its way")

    def enter(self, number: int) -> None:
        if number not in self.readable:
            raise self.error(number, "begins without its table")
        self.begun = number
        self.early = [load for load in self.early if load.nest >= number]
        self.check_taken(number)

    def check_taken(self, number: int) -> None:
        """What is read where the nest before made it is, for every tile, all of one of that one's results."""
        place, nest, _ = self.nest_of(number)
        if not place.taken:
            return
        if not place.at_once:
            raise self.error(number, "takes what may have gone")
        _, nest_before, _ = self.nest_of(number - 1)
        made: dict[int, _Bytes | None] = {}
        for result in (o for o in nest_before.operands if o.value is not None and o.access is Access.WRITE):
            made[self.slot(number - 1, result.name, 0).start] = self.whole_home(number - 1, result)
        for operand in (o for o in nest.operands if o.name in place.taken):
            home = self.whole_home(number, operand)
            if home is None or made.get(place.taken[operand.name]) != home:
                raise self.error(number, f"'{operand.name}' is not what the nest before leaves where it is taken")

    def whole_home(self, number: int, operand: Operand) -> _Bytes | None:
        """Where a tensor lives, if every tile has all of it in the same slot."""
        _, nest, tiling = self.nest_of(number)
        assert operand.value is not None
        if tiling.slots[operand.name].count > 1:
            return None
        for tile, _ in tiles(nest, tiling.loops):
            box = operand_box(operand, tile)
            if any((r.start, r.size) != (0, extent) for r, extent in zip(box, operand.shape, strict=True)):
                return None
        address = self.plan.address(self.entry, operand.value, self.places[number].launch)
        stop = address.offset + prod(operand.shape) * self.size_of[operand.value]
        return _Bytes(address.region, address.offset, stop)

    def done(self, number: int) -> None:
        """Results on their way are still guarded as transfers. Those that the next nest sends are kept until it does,
        with the table that says where to, and those that it reads until it ends."""
        is_next_at_once = number + 1 < len(self.places) and self.places[number + 1].at_once
        handed_over = self.computed if is_next_at_once else []
        self.kept = {key: held for key, held in self.kept.items() if key[0] > number or key in handed_over}
        if not is_next_at_once:
            del self.tables[number]

    def slot(self, number: int, name: str, slot: int) -> _Bytes:
        place, _, tiling = self.nest_of(number)
        at = place.slots_offset + tiling.slots[name].offset_bytes + slot * tiling.slots[name].slot_bytes
        return _Bytes(SCRATCH, at, at + tiling.slots[name].slot_bytes)

    def home(self, number: int, operand: Operand, event: Start) -> _Runs:
        assert operand.value is not None
        address = self.plan.address(self.entry, operand.value, self.places[number].launch)
        at = address.offset + event.far_start
        rows = [at + part.far_offset + np.arange(part.rows, dtype=np.int64) * part.far_stride for part in event.parts]
        starts = np.concatenate(rows)
        stops = np.concatenate([row + part.row_bytes for row, part in zip(rows, event.parts, strict=True)])
        order = np.argsort(starts, kind="stable")
        return _Runs(address.region, starts[order], stops[order])

    def start(self, number: int, event: Start) -> None:
        _, nest, _ = self.nest_of(number)
        operand = next(o for o in nest.operands if o.name == event.operand)
        what = f"'{event.operand}'"
        if number not in self.readable:
            raise self.error(number, f"{what} is requested before its table is there")
        near, far = self.slot(number, event.operand, event.slot), self.home(number, operand, event)
        transfer = _Transfer(number, near, far, event.inward, what)
        for other in (one for transfers in self.under_way.values() for one in transfers):
            if other.nest != number and far.meets(other.far) and not (event.inward and other.inward):
                raise self.error(number, f"{what} meets {other.what} of nest {other.nest} on its way in L2")
        if event.inward and self.computing < number == self.begun and self.places[number].at_once:
            raise self.error(number, f"{what} is requested when it should be there: the nest begins at once")
        if event.inward:
            self.expect_free(number, near, what, (number, event.operand, event.slot))
            self.kept[number, event.operand, event.slot] = near
            if number > self.begun:
                self.early.append(transfer)
        else:
            if number < self.begun and near.start not in self.places[self.begun].taken.values():
                del self.kept[number, event.operand, event.slot]
            for load in self.early:
                if load.nest > number and load.far.meets(far):
                    raise self.error(load.nest, f"{load.what} was requested before {what} of nest {number} was stored")
        self.under_way.setdefault(event.request, []).append(transfer)
        if len(self.under_way) > MOST_REQUESTS:
            raise self.error(number, f"more than {MOST_REQUESTS} transfers are under way")

    def wait(self, event: Wait) -> None:
        self.under_way.pop(event.request)

    def compute(self, number: int, event: Compute) -> None:
        _, nest, _ = self.nest_of(number)
        self.computing = number
        self.computed = []
        for operand in nest.operands:
            if operand.value is None or operand.access is Access.READ:
                continue
            if prod(r.size for r in event.boxes[operand.name]):
                key = (number, operand.name, event.slots[operand.name])
                self.expect_free(number, self.slot(*key), f"'{operand.name}'", key)
                self.kept[key] = self.slot(*key)
                self.computed.append(key)

    def move(self, number: int) -> None:
        """A tensor on its way to L3 must be complete in L2; what comes in is nobody's before it is waited for."""
        move = self.plan.entries[self.entry].staging[number]
        first, stop = (np.array([at], dtype=np.int64) for at in (move.l2_offset, move.l2_offset + move.size_bytes))
        span = _Runs("arena", first, stop)
        under_way = [one for transfers in self.under_way.values() for one in transfers]
        early = [load for load in self.early if load.nest > self.begun]
        for transfer in under_way if not move.inward else [*under_way, *early]:
            if transfer.far.meets(span) and (move.inward or not transfer.inward):
                raise self.error(transfer.nest, f"{transfer.what} meets '{move.tensor}' on its way to or from L3")
