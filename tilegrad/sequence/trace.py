"""What the simulator did, compared with the listing, event by event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tilegrad.errors import InternalError
from tilegrad.ir.listing import (
    RING,
    SCRATCH,
    Await,
    Barrier,
    Begin,
    Box,
    End,
    Enter,
    EntryListing,
    Event,
    Fetch,
    ListedNest,
    Listing,
    Load,
    Move,
    Signal,
    Store,
    Wait,
    box_size,
    describe,
)
from tilegrad.ir.nest import Operand, row_major_strides

Line = list[str]


def read_trace(path: Path) -> dict[str, list[Line]]:
    """The events of the first call of each entry."""
    entries: dict[str, list[Line]] = {}
    events: list[Line] | None = None
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if words[0] == "B":
            events = entries.setdefault(words[1], [])
        elif words[0] == "E":
            events = None
        elif events is not None:
            events.append(words)
    return entries


def check_trace(listing: Listing, trace: Mapping[str, Sequence[Line]]) -> None:
    """Raises an InternalError with the first event that is not what was listed."""
    for entry, lines in trace.items():
        expected = list(_Lines(listing.entries[entry]).lines())
        found = [trace_line(words) for words in in_order(lines)]
        for i, (line, (wanted, event)) in enumerate(zip(found, expected, strict=False)):
            if line != wanted:
                raise _difference(entry, i, describe(event), wanted, line)
        if len(found) != len(expected):
            raise _difference(entry, min(len(found), len(expected)), "the end", str(len(expected)), str(len(found)))


def in_order(lines: Sequence[Line]) -> list[Line]:
    """Blocks of a launch run in any order: here they follow each other by their numbers, and those that had nothing to
    do are left out."""
    found: list[Line] = []
    blocks: dict[int, list[Line]] = {}
    own = found
    for words in lines:
        if words[0] == "b":
            own = blocks.setdefault(int(words[1]), [words])
        elif words[0] == "r":
            found += [line for _, block in sorted(blocks.items()) if len(block) > 1 for line in block]
            found.append(words)
            blocks, own = {}, found
        else:
            own.append(words)
    return found


def _difference(entry: str, number: int, event: str, expected: str, got: str) -> InternalError:
    message = f"{entry} did something else than was listed: {event}, line {number} of its trace"
    return InternalError(message, stage="run", expected=expected, got=got)


def trace_line(words: Sequence[str]) -> str:
    """Without the names of functions, and without where in the constants a table is."""
    if words[0] == "n":
        return "n"
    if words[0] == "k":
        return " ".join([words[0], *words[2:]])
    return " ".join(words[:-1] if "words" in words else words)


class _Requests:
    """The lowest number that is free, as the runtime counts."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}

    def open(self, transfer: int) -> int:
        taken = set(self.numbers.values())
        number = next(i for i in range(len(taken) + 1) if i not in taken)
        self.numbers[transfer] = number
        return number


class _Lines:
    """An entry's events as the simulator's trace has them."""

    def __init__(self, listing: EntryListing) -> None:
        self.listing = listing
        self.near, self.far = _Requests(), _Requests()
        self.of_block = {0: self.near}
        self.moving = {(e.queue, e.transfer) for e in listing.events if isinstance(e, Move)}

    def lines(self) -> Iterator[tuple[str, Event]]:
        """Blocks of a launch follow each other by their numbers, behind the nests that they are of."""
        blocks: dict[int, list[Event]] = {}
        launched = False
        for event in self.listing.events:
            if launched and not isinstance(event, Enter | Barrier):
                blocks.setdefault(event.queue.block, []).append(event)
                continue
            if isinstance(event, Enter):
                launched = self.listing.nests[event.nest].blocks > 0
            if isinstance(event, Barrier):
                launched = False
                yield from self._of_blocks(blocks)
                blocks, self.near = {}, self.of_block[0]
            for line in self._of(event):
                yield line, event

    def _of_blocks(self, blocks: Mapping[int, Sequence[Event]]) -> Iterator[tuple[str, Event]]:
        for block, events in sorted(blocks.items()):
            self.near = self.of_block.setdefault(block, _Requests())
            yield f"b {block}", events[0]
            for event in events:
                for line in self._of(event):
                    yield line, event

    def _of(self, event: Event) -> Iterator[str]:
        if isinstance(event, Enter):
            yield "n"
        elif isinstance(event, Barrier):
            yield "r"
        elif isinstance(event, End):
            yield "j"
        elif isinstance(event, Begin):
            yield self._begin(event)
        elif isinstance(event, Move):
            number = self.far.open(event.transfer)
            rows = f" {event.rows} {event.l3_stride}" if event.rows > 1 else ""
            yield f"s {number} {int(event.inward)} {event.size_bytes} arena {event.l2_offset} {event.l3_offset}{rows}"
        elif isinstance(event, Wait):
            is_far = (event.queue, event.transfer) in self.moving
            numbers = (self.far if is_far else self.near).numbers
            yield f"{'v' if is_far else 'w'} {numbers.pop(event.transfer)}"
        elif isinstance(event, Signal | Await):
            word = "t" if isinstance(event, Signal) else "p"
            yield f"{word} {event.pipe} {event.ring} {int(event.ready)} {event.count}"
        elif isinstance(event, Fetch):
            yield f"o {self.near.open(event.transfer)} 1"
            for part in event.parts:
                yield f"a {self.near.numbers[event.transfer]} {part.row_bytes} 1 0 {part.near_offset} words"
        else:
            yield from self._box(event)

    def _box(self, event: Load | Store) -> Iterator[str]:
        if event.transfer not in self.near.numbers:
            yield f"o {self.near.open(event.transfer)} {int(event.inward)}"
        for part in event.parts:
            sizes = f"{part.row_bytes} {part.rows} {part.far_stride}"
            near, far = event.near + part.near_offset, event.far + part.far_offset
            yield f"a {self.near.numbers[event.transfer]} {sizes} {near} {event.region} {far}"

    def _begin(self, event: Begin) -> str:
        spans = []
        listed = self.listing.nests[event.nest]
        for operand, place in zip(listed.nest.operands, event.places, strict=True):
            size_bytes = 0 if place is None else _span_bytes(listed, operand, place.box)
            is_near = place is not None and place.region in (SCRATCH, RING) and size_bytes > 0
            spans.append(f"{place.offset if place is not None and is_near else -1}:{size_bytes}")
        return " ".join(["k", str(event.tile), *spans])


def _span_bytes(listed: ListedNest, operand: Operand, box: Box) -> int:
    """A box is dense in scratchpad, and lies as in its tensor elsewhere."""
    if listed.tiling is not None or not box_size(box):
        return box_size(box) * operand.element_bytes
    strides = row_major_strides(operand.shape)
    return operand.element_bytes * (1 + sum((r.size - 1) * s for r, s in zip(box, strides, strict=True)))
