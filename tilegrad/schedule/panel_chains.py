"""Panels of several operators that take turns: what one makes of a tensor, the next one reads before it leaves L2.

Without that, a tensor that does not fit into L2 goes to L3 and comes back between any two operators that work on it. In
a chain, operators are cut along one axis each, so that their panels have the same bytes of every tensor that one of
them writes and another one uses. Then the first panels of all run, then the second ones, and so on. Which operators are
chained, and how they are cut, is decided by the cycles of transfers that this saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilegrad.analysis.lifetimes import align
from tilegrad.ir.graph import Node
from tilegrad.ir.nest import Nest
from tilegrad.ir.schedule import Launch, Loop, Rows
from tilegrad.schedule.panels import (
    DOUBLE_SHARE,
    SINGLE_SHARE,
    Cut,
    Panels,
    Unit,
    axis_sizes,
    group_bytes,
    transfer_cycles,
)
from tilegrad.targets.base import L2, L3

# How many operators a chain has at most, how many it may pass by, and how many sizes of panels are tried.
MOST_LINKS, MOST_PASSED, MOST_SIZES = 8, 3, 6


def expand(panels: Panels, nodes: Iterable[tuple[Node, tuple[Nest, ...]]], kept: frozenset[str]) -> list[Launch]:
    """The launches of an entry. `kept` are the tensors that outlive it."""
    units = [unit for node, nests in nodes for unit in panels.units(node, nests)]
    panels.check()
    return _Chains(panels, units, kept).launches()


@dataclass(frozen=True)
class _Link:
    """A unit, how it is cut, and what its first panel has of the tensors that it streams."""

    number: int
    unit: Unit
    loop: Loop
    rows: Mapping[str, Rows]


class _Chains:
    def __init__(self, panels: Panels, units: Sequence[Unit], kept: frozenset[str]) -> None:
        self.panels = panels
        self.units = units
        self.kept = kept
        engine = panels.target.engine(L3, L2)
        self.inward, self.outward = engine.inward, engine.outward
        self.users: dict[str, list[int]] = {}
        for number, unit in enumerate(units):
            for name in unit.groups:
                self.users.setdefault(name, []).append(number)

    def launches(self) -> list[Launch]:
        found: list[Launch] = []
        waiting = list(range(len(self.units)))
        chains = 0
        while waiting:
            links = self._best(waiting)
            if not links:
                found += self.panels.launches(self.units[waiting.pop(0)])
                continue
            units = [self._cut(link) for link in links]
            turns = zip(*(self.panels.launches(unit, chains) for unit in units), strict=True)
            found += [launch for turn in turns for launch in turn]
            chains += 1
            done = {link.number for link in links}
            waiting = [number for number in waiting if number not in done]
        return found

    def _cut(self, link: _Link) -> Unit:
        names = frozenset(operand.name for name in link.rows for operand in link.unit.groups[name])
        return replace(link.unit, cut=Cut((link.loop,), names))

    def _best(self, waiting: Sequence[int]) -> Sequence[_Link]:
        """The chain that begins with the first of those that wait, and gains most; none where none gains."""
        first = self.units[waiting[0]]
        near = [self.units[number] for number in waiting[1 : 2 + MOST_PASSED]]
        best: Sequence[_Link] = ()
        most = 0.0
        if not any((first.cut or other.cut) and first.written & other.groups.keys() for other in near):
            return best
        for axis in first.axes:
            tried = 0
            extent = first.nests[0].axis(axis).extent
            for size in axis_sizes(extent)[1:]:
                link = self._linked(waiting[0], Loop(axis, extent, size), frozenset())
                grown = list(self._grown(link, waiting))
                for gain, links in grown:
                    if gain > most and self._matches(links):
                        best, most = links, gain
                tried += bool(grown)
                if tried == MOST_SIZES:
                    break
        return best

    def _grown(self, first: _Link, waiting: Sequence[int]) -> Iterator[tuple[float, Sequence[_Link]]]:
        """Chains from a first link on, each one longer than the one before, and what each gains."""
        links, passed = [first], list[int]()
        for number in waiting[1:]:
            unit = self.units[number]
            if not unit.nests:
                continue
            link = None
            if not any(unit.conflicts(self.units[other]) for other in passed):
                link = self._next(links, number)
            if link is None:
                passed.append(number)
                if len(passed) > MOST_PASSED:
                    return
                continue
            links.append(link)
            if not self._fits(links):
                return
            yield self._gain(links), tuple(links)
            if len(links) == MOST_LINKS:
                return

    def _linked(self, number: int, loop: Loop, linked: frozenset[str]) -> _Link:
        unit = self.units[number]
        rows = {
            name: found
            for name in unit.groups
            if (name in linked or name not in unit.search.small) and (found := unit.rows(name, loop, 0)) is not None
        }
        return _Link(number, unit, loop, rows)

    def _next(self, links: Sequence[_Link], number: int) -> _Link | None:
        """The unit as the next link, cut so that its panels have what those before write; None where none does."""
        unit = self.units[number]
        for link in reversed(links):
            for name in sorted(link.unit.written & unit.read & link.rows.keys()):
                for axis in unit.axes:
                    loop = _like(unit, name, axis, link.rows[name], link.loop.count)
                    if loop is None:
                        continue
                    found = self._linked(number, loop, frozenset(link.rows))
                    if all(_agree(one, found) for one in links):
                        return found
        return None

    def _matches(self, links: Sequence[_Link]) -> bool:
        """Whether every panel, not only the first, has the same of what is shared."""
        for k in range(1, links[0].loop.count):
            seen: dict[str, Rows] = {}
            for link in links:
                for name in link.rows:
                    rows = link.unit.rows(name, link.loop, k)
                    if rows is None or seen.setdefault(name, rows) != rows:
                        return False
        return True

    def _parts(self, links: Sequence[_Link]) -> dict[str, tuple[Rows, bool, bool]]:
        """Of each streamed tensor: what a turn has of it, whether it comes from L3, and whether it goes there."""
        found: dict[str, tuple[Rows, bool, bool]] = {}
        numbers = {link.number for link in links}
        for link in links:
            for name, rows in link.rows.items():
                _, comes, goes = found.get(name, (rows, name in link.unit.read, False))
                found[name] = rows, comes, goes or name in link.unit.written
        for name, (rows, comes, goes) in found.items():
            later = any(user > links[0].number and user not in numbers for user in self.users[name])
            found[name] = rows, comes, goes and (later or name in self.kept)
        return found

    def _fits(self, links: Sequence[_Link]) -> bool:
        parts = self._parts(links)
        whole = {name: group_bytes(link.unit.groups[name]) for link in links for name in link.unit.groups}
        kept = sum(size for name, size in whole.items() if name not in parts)
        once = sum(align(rows.size_bytes, 8) for rows, _, _ in parts.values())
        moving = sum(align(rows.size_bytes, 8) for rows, comes, goes in parts.values() if comes or goes)
        room = self.panels.room_bytes
        if not self.panels.is_double:
            return kept + once <= SINGLE_SHARE * room
        return kept + once + moving <= DOUBLE_SHARE * room

    def _gain(self, links: Sequence[_Link]) -> float:
        """Cycles that the chain saves against its units one by one."""
        count = links[0].loop.count
        together = sum(link.unit.search.launch_cycles((link.loop,)) for link in links)
        for rows, comes, goes in self._parts(links).values():
            together += count * comes * transfer_cycles(self.inward, rows.size_bytes, rows.count)
            together += count * goes * transfer_cycles(self.outward, rows.size_bytes, rows.count)
        alone = sum(link.unit.cycles for link in links)
        for k, link in enumerate(links):
            if link.unit.cut is not None:
                continue
            # It has whole tensors, which neighbours that are cut leave in L3, and fetch from there.
            for name in link.rows:
                size_bytes = group_bytes(link.unit.groups[name])
                made = any(name in one.rows and one.unit.cut and name in one.unit.written for one in links[:k])
                used = any(name in one.rows and one.unit.cut for one in links[k + 1 :])
                alone += (made and name in link.unit.read) * transfer_cycles(self.inward, size_bytes)
                alone += (used and name in link.unit.written) * transfer_cycles(self.outward, size_bytes)
        return alone - together


def _agree(one: _Link, other: _Link) -> bool:
    """Whether what one of the two writes and both use is the same part in both."""
    shared = one.unit.groups.keys() & other.unit.groups.keys()
    if one.loop.count != other.loop.count:
        return False
    return all(
        name in one.rows and one.rows[name] == other.rows.get(name)
        for name in shared
        if name in one.unit.written or name in other.unit.written
    )


def _like(unit: Unit, name: str, axis: str, wanted: Rows, count: int) -> Loop | None:
    """A cut along an axis whose first panel has these rows of a tensor, and that has as many panels."""
    extent = unit.nests[0].axis(axis).extent
    one = unit.rows(name, Loop(axis, extent, 1), 0)
    if one is None or not one.size_bytes or wanted.size_bytes % one.size_bytes:
        return None
    loop = Loop(axis, extent, wanted.size_bytes // one.size_bytes)
    if loop.tile > extent or loop.count != count or unit.rows(name, loop, 0) != wanted:
        return None
    return loop
