"""Panels of several operators that take turns: what one makes of a tensor, the next one reads before it leaves L2.

Without that, a tensor that does not fit into L2 goes to L3 and comes back between any two operators that work on it. In
a chain, operators are cut along one axis each, so that their panels have the same bytes of every tensor that one of
them writes and another one uses. Then the first panels of all run, then the second ones, and so on. Which operators are
chained, and how they are cut, is decided by the cycles of transfers that this saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tilegrad.analysis.footprint import tile_at
from tilegrad.analysis.lifetimes import align
from tilegrad.ir.graph import Node
from tilegrad.ir.nest import Access, AxisKind, Nest, Operand
from tilegrad.ir.schedule import Launch, Loop, Panel, Rows
from tilegrad.schedule.panels import (
    DOUBLE_SHARE,
    LAUNCH_CYCLES,
    SINGLE_SHARE,
    Cut,
    Panels,
    Search,
    Unit,
    axis_sizes,
    panel_box,
)
from tilegrad.targets.base import L2, L3, DmaTiming

# How many operators a chain has at most, how many it may pass by, and how many sizes of panels are tried.
MOST_LINKS, MOST_PASSED, MOST_SIZES = 8, 3, 6


def expand(panels: Panels, nodes: Iterable[tuple[Node, tuple[Nest, ...]]], kept: frozenset[str]) -> list[Launch]:
    """The launches of an entry. `kept` are the tensors that outlive it."""
    units = [unit for node, nests in nodes for unit in panels.units(node, nests)]
    panels.check()
    if not any(unit.cut is not None for unit in units):
        return [launch for unit in units for launch in panels.launches(unit)]
    return _Chains(panels, [_Member(panels, unit) for unit in units], kept).launches()


class _Member:
    """A unit, and what a chain has to know of it."""

    def __init__(self, panels: Panels, unit: Unit) -> None:
        self.panels = panels
        self.unit = unit
        self.groups: dict[str, list[Operand]] = {}
        for operand in (operand for nest in unit.nests for operand in nest.present):
            self.groups.setdefault(panels.owner_of(operand), []).append(operand)
        self.read = {name for name, own in self.groups.items() if any(o.access is Access.READ for o in own)}
        self.written = {name for name, own in self.groups.items() if any(o.access is Access.WRITE for o in own)}

    @property
    def nest(self) -> Nest:
        return self.unit.nests[0]

    @cached_property
    def axes(self) -> list[str]:
        """Along which it may be cut."""
        if len(self.unit.nests) != 1:
            return []
        return [axis.name for axis in self.nest.axes if axis.kind is AxisKind.PARALLEL and axis.extent > 1]

    @cached_property
    def search(self) -> Search:
        return Search(self.panels, self.nest)

    @cached_property
    def small(self) -> set[str]:
        return {self.panels.owner_of(group[0]) for group in self.search.small}

    def size_bytes(self, name: str) -> int:
        return align(max(operand.size_bytes for operand in self.groups[name]), 8)

    def conflicts(self, other: _Member) -> bool:
        """Whether the two have to run in their order."""
        return bool(self.written & other.groups.keys() or other.written & self.groups.keys())

    def rows(self, name: str, loop: Loop, k: int) -> Rows | None:
        """What panel `k` has of a tensor; None where that is not one part, or all of it."""
        ranges = tile_at(self.nest, (loop,), (k,))
        found = {
            Panel("", operand.shape, panel_box(operand, ranges), operand.dtype).rows
            for operand in self.groups[name]
            if operand.index is not None
        }
        moves = [
            operand.index is not None and any(axis == loop.axis for one in operand.index for axis, _ in one.terms)
            for operand in self.groups[name]
        ]
        return found.pop() if all(moves) and len(found) == 1 else None

    def sizes(self, loops: Sequence[Loop]) -> dict[str, int]:
        return {axis.name: axis.extent for axis in self.nest.axes} | {loop.axis: loop.tile for loop in loops}

    @cached_property
    def alone_cycles(self) -> float:
        """Where it is cut for itself, or is not."""
        loops = () if self.unit.cut is None else self.unit.cut.loops
        return self.search.cost(loops, self.sizes(loops))

    def chained_cycles(self, loop: Loop) -> float:
        """Where it is cut along an axis, without transfers."""
        return loop.count * (LAUNCH_CYCLES + self.search.compute_cycles(self.sizes((loop,))))


@dataclass(frozen=True)
class _Link:
    """A member, how it is cut, and what its first panel has of the tensors that it streams."""

    number: int
    member: _Member
    loop: Loop
    rows: Mapping[str, Rows]


@dataclass(frozen=True)
class _Found:
    gain: float
    links: tuple[_Link, ...]


class _Chains:
    def __init__(self, panels: Panels, members: Sequence[_Member], kept: frozenset[str]) -> None:
        self.panels = panels
        self.members = members
        self.kept = kept
        engine = panels.target.engine(L3, L2)
        self.inward, self.outward = engine.inward, engine.outward
        self.users: dict[str, list[int]] = {}
        for number, member in enumerate(members):
            for name in member.groups:
                self.users.setdefault(name, []).append(number)

    def launches(self) -> list[Launch]:
        found: list[Launch] = []
        waiting = list(range(len(self.members)))
        chains = 0
        while waiting:
            best = self._best(waiting)
            if best is None:
                found += self.panels.launches(self.members[waiting.pop(0)].unit)
                continue
            units = [self._cut(link) for link in best.links]
            turns = zip(*(self.panels.launches(unit, chains) for unit in units), strict=True)
            found += [launch for turn in turns for launch in turn]
            chains += 1
            done = {link.number for link in best.links}
            waiting = [number for number in waiting if number not in done]
        return found

    def _cut(self, link: _Link) -> Unit:
        names = frozenset(operand.name for name in link.rows for operand in link.member.groups[name])
        return replace(link.member.unit, cut=Cut((link.loop,), names))

    def _best(self, waiting: Sequence[int]) -> _Found | None:
        """The chain that begins with the first of those that wait, and gains most; none where none gains."""
        first = self.members[waiting[0]]
        near = [self.members[number] for number in waiting[1 : 2 + MOST_PASSED]]
        if not first.axes or not any(
            (first.unit.cut or other.unit.cut) and first.written & other.groups.keys() for other in near
        ):
            return None
        best: _Found | None = None
        for axis in first.axes:
            tried = 0
            for loop in _loops(first.nest, axis):
                link = self._linked(waiting[0], loop, frozenset())
                grown = list(self._grown(link, waiting))
                for found in grown:
                    if found.gain > (0.0 if best is None else best.gain) and self._matches(found.links):
                        best = found
                tried += bool(grown)
                if tried == MOST_SIZES:
                    break
        return best

    def _grown(self, first: _Link, waiting: Sequence[int]) -> Iterator[_Found]:
        """Chains from a first link on, each one longer than the one before."""
        links, passed = [first], list[int]()
        for number in waiting[1:]:
            member = self.members[number]
            if not member.unit.nests:
                continue
            link = None
            if not any(member.conflicts(self.members[other]) for other in passed):
                link = self._next(links, number)
            if link is None:
                passed.append(number)
                if len(passed) > MOST_PASSED:
                    return
                continue
            links.append(link)
            if not self._fits(links):
                return
            yield _Found(self._gain(links), tuple(links))
            if len(links) == MOST_LINKS:
                return

    def _linked(self, number: int, loop: Loop, linked: frozenset[str]) -> _Link:
        member = self.members[number]
        rows = {
            name: found
            for name in member.groups
            if (name in linked or name not in member.small) and (found := member.rows(name, loop, 0)) is not None
        }
        return _Link(number, member, loop, rows)

    def _next(self, links: Sequence[_Link], number: int) -> _Link | None:
        """The member as the next link, cut so that its panels have what those before write; None where none does."""
        member = self.members[number]
        for link in reversed(links):
            for name in sorted(link.member.written & member.read & link.rows.keys()):
                for axis in member.axes:
                    loop = _like(member, name, axis, link.rows[name], link.loop.count)
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
                    rows = link.member.rows(name, link.loop, k)
                    if rows is None or seen.setdefault(name, rows) != rows:
                        return False
        return True

    def _parts(self, links: Sequence[_Link]) -> dict[str, tuple[Rows, bool, bool]]:
        """Of each streamed tensor: what a turn has of it, whether it comes from L3, and whether it goes there."""
        found: dict[str, tuple[Rows, bool, bool]] = {}
        numbers = {link.number for link in links}
        for link in links:
            for name, rows in link.rows.items():
                _, comes, goes = found.get(name, (rows, name in link.member.read, False))
                found[name] = rows, comes, goes or name in link.member.written
        for name, (rows, comes, goes) in found.items():
            later = any(user > links[0].number and user not in numbers for user in self.users[name])
            found[name] = rows, comes, goes and (later or name in self.kept)
        return found

    def _fits(self, links: Sequence[_Link]) -> bool:
        parts = self._parts(links)
        whole = {name: link.member.size_bytes(name) for link in links for name in link.member.groups}
        kept = sum(size for name, size in whole.items() if name not in parts)
        once = sum(align(rows.size_bytes, 8) for rows, _, _ in parts.values())
        moving = sum(align(rows.size_bytes, 8) for rows, comes, goes in parts.values() if comes or goes)
        room = self.panels.room_bytes
        if not self.panels.is_double:
            return kept + once <= SINGLE_SHARE * room
        return kept + once + moving <= DOUBLE_SHARE * room

    def _gain(self, links: Sequence[_Link]) -> float:
        """Cycles that the chain saves against its members one by one."""
        count = links[0].loop.count
        together = sum(link.member.chained_cycles(link.loop) for link in links)
        for rows, comes, goes in self._parts(links).values():
            together += count * comes * _cycles(self.inward, rows.count, rows.size_bytes)
            together += count * goes * _cycles(self.outward, rows.count, rows.size_bytes)
        alone = sum(link.member.alone_cycles for link in links)
        for k, link in enumerate(links):
            if link.member.unit.cut is not None:
                continue
            # It has whole tensors, which neighbours that are cut leave in L3, and fetch from there.
            for name in link.rows:
                size_bytes = link.member.size_bytes(name)
                made = any(name in one.rows and one.member.unit.cut and name in one.member.written for one in links[:k])
                used = any(name in one.rows and one.member.unit.cut for one in links[k + 1 :])
                alone += (made and name in link.member.read) * _cycles(self.inward, 1, size_bytes)
                alone += (used and name in link.member.written) * _cycles(self.outward, 1, size_bytes)
        return alone - together


def _agree(one: _Link, other: _Link) -> bool:
    """Whether what one of the two writes and both use is the same part in both."""
    shared = one.member.groups.keys() & other.member.groups.keys()
    if one.loop.count != other.loop.count:
        return False
    return all(
        name in one.rows and one.rows[name] == other.rows.get(name)
        for name in shared
        if name in one.member.written or name in other.member.written
    )


def _like(member: _Member, name: str, axis: str, wanted: Rows, count: int) -> Loop | None:
    """A cut along an axis whose first panel has these rows of a tensor, and that has as many panels."""
    extent = member.nest.axis(axis).extent
    one = member.rows(name, Loop(axis, extent, 1), 0)
    if one is None or not one.size_bytes or wanted.size_bytes % one.size_bytes:
        return None
    loop = Loop(axis, extent, wanted.size_bytes // one.size_bytes)
    if loop.tile > extent or loop.count != count or member.rows(name, loop, 0) != wanted:
        return None
    return loop


def _loops(nest: Nest, axis: str) -> list[Loop]:
    extent = nest.axis(axis).extent
    sizes = [size for size in axis_sizes(extent) if size < extent]
    return [Loop(axis, extent, size) for size in sizes]


def _cycles(timing: DmaTiming, commands: int, size_bytes: int) -> float:
    return commands * timing.setup_cycles + size_bytes * timing.cycles_per_byte
