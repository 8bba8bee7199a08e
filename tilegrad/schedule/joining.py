"""Neighbours of an entry that pipes join: who may, who was asked for, and who gains by it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from tilegrad.analysis.lifetimes import analyse
from tilegrad.errors import DoesNotFit, UserError
from tilegrad.ir.blocks import Width
from tilegrad.ir.nest import Nest, Operand
from tilegrad.ir.pipes import MOST_MEMBERS, Pipe
from tilegrad.ir.schedule import EntrySchedule, Launch
from tilegrad.ops import registry
from tilegrad.schedule.pipes import PAYS, Joined, Link, Pipes
from tilegrad.schedule.splitting import home_of, may_split

Names = tuple[str, str] | tuple[str, str, int]
MOST_JOINED = 3
"""Operators of a group that is chosen by cost."""


class Refused(Exception):
    """Why neighbours cannot be joined: what that takes, and what there is instead."""


@dataclass(frozen=True)
class _Group:
    """Launches that could be joined, and what that takes instead of `apart` cycles."""

    launches: tuple[int, ...]
    links: tuple[Link, ...]
    joined: Joined
    apart: float


class Joining:
    """One entry. `width` is what was asked for, if any was, `most` the number that it is of."""

    def __init__(self, entry: EntrySchedule, pipes: Pipes, width: Width | None, most: int) -> None:
        self.entry = entry
        self.pipes = pipes
        self.width = width
        self.most = most
        self.busy = [i for i, launch in enumerate(entry.launches) if launch.nests]
        nests = [nest for launch in entry.launches for nest in launch.nests]
        self.reads = Counter(operand.value for nest in nests for operand in nest.reads)
        self.writes = Counter(operand.value for nest in nests for operand in nest.results)
        graph, target = entry.graph, pipes.options.target
        self.alignment = target.memory(target.home).alignment_bytes
        self.owner = analyse(graph, self.alignment).owner
        viewed = {node.inputs[0] for node in graph.nodes if registry.get(node.op).is_view}
        self.kept = {*graph.inputs, *graph.outputs, *graph.state, *(value for value, _ in graph.writes), *viewed}

    def chosen(self) -> EntrySchedule:
        """By cost: of neighbours that overlap, those that save most together."""
        best: list[tuple[float, tuple[_Group, ...]]] = [(0.0, ())]
        for stop in range(1, len(self.busy) + 1):
            options = [best[-1]]
            for count in range(2, min(MOST_JOINED, stop) + 1):
                try:
                    group = self.group(self.busy[stop - count : stop])
                except Refused:
                    continue
                saved, others = best[stop - count]
                if group.joined.cycles <= PAYS * group.apart:
                    options.append((saved + group.apart - group.joined.cycles, (*others, group)))
            best.append(max(options, key=lambda one: one[0]))
        return self.with_groups(best[-1][1])

    def asked(self, names: Sequence[Names], refusals: dict[Names, UserError | None]) -> EntrySchedule:
        """Those that were asked for by the names of their nodes. One that some entry has is not refused for another,
        where the value is read again. Those with an operator in common run at once, and what is between them."""
        nodes = [self.entry.launches[i].node.name for i in self.busy]
        spans: list[tuple[int, int, list[Names]]] = []  # in `busy`
        for pair in names:
            numbers = [[k for k, node in enumerate(nodes) if node == name] for name in pair[:2]]
            if not numbers[0] or not numbers[1]:
                continue
            first, last, pairs = numbers[0][-1], numbers[1][0], [pair]
            for other in [one for one in spans if one[0] <= last and first <= one[1]]:
                spans.remove(other)
                first, last, pairs = min(first, other[0]), max(last, other[1]), [*other[2], *pairs]
            spans.append((first, last, pairs))
        found: list[_Group] = []
        for first, last, pairs in sorted(spans, key=lambda one: one[0]):
            try:
                if not 1 <= last - first < MOST_MEMBERS:
                    raise Refused("one right behind the other", "other operators between them")
                found.append(self.group(self.busy[first : last + 1], pairs))
                refusals |= dict.fromkeys(pairs)
            except Refused as refused:
                for pair in pairs:
                    refusals.setdefault(pair, self._refusal(pair, refused))
        return self.with_groups(found)

    def _refusal(self, pair: Names, refused: Refused) -> UserError:
        return UserError(
            f"there can be no pipe from '{pair[0]}' to '{pair[1]}' in {self.entry.graph.name}",
            stage="schedule",
            node=pair[1],
            expected=refused.args[0],
            got=refused.args[1],
        )

    def group(self, numbers: Sequence[int], asked: Sequence[Names] | None = None) -> _Group:
        launches = [self.entry.launches[i] for i in numbers]
        if any(len(launch.nests) > 1 for launch in launches[1:-1]) or any(launch.part for launch in launches):
            raise Refused("operators of one part", "one of several")
        at = [len(launch.nests) - 1 if k == 0 else 0 for k, launch in enumerate(launches)]
        nests = [launch.nests[k] for launch, k in zip(launches, at, strict=True)]
        links = self._links(nests)
        ends = [(launches[link.producer].node.name, launches[link.consumer].node.name) for link in links]
        if any(pair[:2] not in ends for pair in asked or ()):
            raise Refused("one value that the first makes and the second reads once", "0")
        depths = {pair[:2]: pair[2] for pair in asked or () if len(pair) > 2}
        self._expect_engines(nests)
        try:  # what is apart where anything may take over bytes is so where these do not
            self._expect_apart(self.owner, launches, nests, links)
        except Refused:
            values = frozenset(one.value or "" for nest in nests for one in nest.reads)
            self._expect_apart(analyse(self.entry.graph, self.alignment, values).owner, launches, nests, links)
        limit = self.pipes.options.target.clusters if self.width is None else self.width.at(self.most)
        nodes = [(launch.node, nest) for launch, nest in zip(launches, nests, strict=True)]
        joined = self.pipes.join(nodes, links, limit, [depths.get(names) for names in ends])
        if joined is None:
            reason = self.pipes.reason(nodes, links, limit) if asked is not None else ""
            if isinstance(reason, DoesNotFit):
                raise reason
            raise Refused("boxes that are one to one, whole sums of the first and whole tiles of the second", reason)
        tilings = [launch.tilings[k] for launch, k in zip(launches, at, strict=True)]
        apart = sum(tiling.estimate.cycles for tiling in tilings if tiling is not None)
        if self.width is not None:  # other estimates are for all the blocks there are
            lanes = [launch.lane_count(k) for launch, k in zip(launches, at, strict=True)]
            sides = zip(nests, tilings, lanes, strict=True)
            apart = sum(self.pipes.apart(nest, t, own, limit) for nest, t, own in sides if t is not None)
        return _Group(tuple(numbers), tuple(links), joined, apart)

    def _links(self, nests: Sequence[Nest]) -> list[Link]:
        """Every value that goes from one to another, and nowhere else: all have at least one."""
        found: list[Link] = []
        for producer, first in enumerate(nests):
            made = {operand.value: operand for operand in first.results if operand.value is not None}
            for consumer, second in enumerate(nests[producer + 1 :], producer + 1):
                read = [operand for operand in second.reads if operand.value in made]
                found += [Link(producer, consumer, made[one.value or ""], one) for one in read]
        reached = {0}
        for _ in nests:
            reached |= {
                k for one in found for k in (one.producer, one.consumer) if {one.producer, one.consumer} & reached
            }
        if len(reached) < len(nests):
            raise Refused("one value that the first makes and the second reads once", "0")
        for value in (link.made.value or "" for link in found):
            if value in self.kept or self.reads[value] != 1 or self.writes[value] != 1:
                is_outside = self.reads[value] == 1
                got = "it is seen from outside, or under another name" if is_outside else "others read it, too"
                raise Refused(f"that nobody else reads '{value}'", got)
        return found

    def _expect_engines(self, nests: Sequence[Nest]) -> None:
        engines = [self.pipes.engine(nest) for nest in nests]
        if len(set(self.pipes.options.target.places_of([(engine, 1) for engine in engines]))) == 1:
            raise Refused("two engines", f"both run on {engines[0].name}")

    def _expect_apart(
        self, owner: Mapping[str, str], launches: Sequence[Launch], nests: Sequence[Nest], links: Sequence[Link]
    ) -> None:
        """None writes what another uses, but for what passes through, and all can be split."""
        through = {link.made.value for link in links}

        def places(some: Sequence[Operand]) -> set[str]:
            return {home_of(operand, owner) for operand in some if operand.value not in through}

        if any(places(one.results) & places(other.present) for one, other in permutations(nests, 2)):
            raise Refused("that neither writes what the other uses", "they share memory")
        if not all(may_split(nest, owner) for nest in nests) or not all(launch.widths for launch in launches):
            raise Refused("operators whose tiles do not depend on each other", "one in place of what others read")

    def with_groups(self, groups: Sequence[_Group]) -> EntrySchedule:
        launches = list(self.entry.launches)
        found: list[Pipe] = []
        for group in groups:
            joined = group.joined
            width = self.width or Width(joined.blocks)
            for k, i in enumerate(group.launches):
                one = launches[i]
                at = len(one.nests) - 1 if k == 0 else 0
                tilings, widths, lanes = list(one.tilings), list(one.widths), list(one.lanes or (1,) * len(one.nests))
                tilings[at], widths[at], lanes[at] = joined.tilings[k], width, joined.lanes[k]
                launches[i] = replace(one, tilings=tuple(tilings), widths=tuple(widths), lanes=tuple(lanes))
            for link, pipe in zip(group.links, joined.pipes, strict=True):
                ends = {"producer": group.launches[link.producer], "consumer": group.launches[link.consumer]}
                value, blocks = link.made.value or "", width.at(self.most)
                found.append(replace(pipe, number=len(found), value=value, blocks=blocks, **ends))
        return replace(self.entry, launches=tuple(launches), pipes=tuple(found))


def expect_all(names: Sequence[Names], refusals: Mapping[Names, UserError | None]) -> None:
    """Every pipe that was asked for is there."""
    for pair in names:
        if pair not in refusals:
            raise UserError(
                f"there are no nodes '{pair[0]}' and '{pair[1]}' to join",
                stage="schedule",
                expected="the names of two nodes that compute, as `tilegrad inspect --tiles` shows them",
                got=" -> ".join(pair[:2]),
            )
        refusal = refusals[pair]
        if refusal is not None:
            raise refusal
