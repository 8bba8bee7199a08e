"""What the simulator did, compared with the listing, event by event."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TypeVar

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
    Queue,
    Signal,
    Store,
    Transfer,
    Wait,
    box_size,
    describe,
)
from tilegrad.ir.nest import Operand, row_major_strides

Line = list[str]
_Of = TypeVar("_Of")


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
        expected = in_order(_Lines(listing.entries[entry]).lines())
        found = in_order((trace_line(words), None) for words in lines)
        for i, ((line, _), (wanted, event)) in enumerate(zip(found, expected, strict=False)):
            if line != wanted:
                raise _difference(entry, i, describe(event), wanted, line)
        if len(found) != len(expected):
            raise _difference(entry, min(len(found), len(expected)), "the end", str(len(expected)), str(len(found)))


def in_order(lines: Iterable[tuple[str, _Of]]) -> list[tuple[str, _Of]]:
    """Blocks of a launch run in any order: here they follow each other by their numbers, behind the nests that they are
    of, and those that had nothing to do are left out."""
    found: list[tuple[str, _Of]] = []
    blocks: dict[int, list[tuple[str, _Of]]] = {}
    own = found
    for line in lines:
        kind, _, number = line[0].partition(" ")
        if kind == "b":
            own = blocks.setdefault(int(number), [line])
        elif kind == "n":
            found.append(line)
        elif kind == "r":
            found += [one for _, block in sorted(blocks.items()) if len(block) > 1 for one in block]
            found.append(line)
            blocks, own = {}, found
        else:
            own.append(line)
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


class _Lines:
    """An entry's events as the simulator's trace has them."""

    def __init__(self, listing: EntryListing) -> None:
        self.listing = listing
        self.requests: dict[Queue, dict[int, int]] = defaultdict(dict)  # the numbers of transfers under way
        self.far = {event.queue for event in listing.events if isinstance(event, Move)}

    def lines(self) -> Iterator[tuple[str, Event]]:
        """With a line for each block of a launch before what it does."""
        block: int | None = None
        is_launched = False
        for event in self.listing.events:
            if isinstance(event, Enter | Barrier):
                block = None
                is_launched = isinstance(event, Enter) and self.listing.nests[event.nest].blocks > 0
            elif is_launched and event.queue.block != block:
                block = event.queue.block
                yield f"b {block}", event
            for line in self._of(event):
                yield line, event

    def _open(self, event: Transfer) -> int:
        """The lowest number that is free, as the runtime counts."""
        numbers = self.requests[event.queue]
        numbers[event.transfer] = number = next(i for i in count() if i not in numbers.values())
        return number

    def _of(self, event: Event) -> Iterator[str]:
        if isinstance(event, Enter | Barrier | End):
            yield {Enter: "n", Barrier: "r", End: "j"}[type(event)]
        elif isinstance(event, Begin):
            yield self._begin(event)
        elif isinstance(event, Move):
            number = self._open(event)
            rows = f" {event.rows} {event.l3_stride}" if event.rows > 1 else ""
            yield f"s {number} {int(event.inward)} {event.size_bytes} arena {event.l2_offset} {event.l3_offset}{rows}"
        elif isinstance(event, Wait):
            number = self.requests[event.queue].pop(event.transfer)
            yield f"{'v' if event.queue in self.far else 'w'} {number}"
        elif isinstance(event, Signal | Await):
            word = "t" if isinstance(event, Signal) else "p"
            yield f"{word} {event.pipe} {event.ring} {int(event.ready)} {event.count}"
        elif isinstance(event, Fetch):
            number = self._open(event)
            yield f"o {number} 1"
            for part in event.parts:
                yield f"a {number} {part.row_bytes} 1 0 {part.near_offset} words"
        else:
            yield from self._box(event)

    def _box(self, event: Load | Store) -> Iterator[str]:
        numbers = self.requests[event.queue]
        if event.transfer not in numbers:
            yield f"o {self._open(event)} {int(event.inward)}"
        for part in event.parts:
            sizes = f"{part.row_bytes} {part.rows} {part.far_stride}"
            near, far = event.near + part.near_offset, event.far + part.far_offset
            yield f"a {numbers[event.transfer]} {sizes} {near} {event.region} {far}"

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
