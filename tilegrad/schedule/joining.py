"""Neighbours of an entry that pipes join: who may, who was asked for, and who gains by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilegrad.analysis.lifetimes import analyse
from tilegrad.errors import DoesNotFit, UserError
from tilegrad.ir.blocks import Width
from tilegrad.ir.nest import Nest, Operand
from tilegrad.ir.pipes import Pipe
from tilegrad.ir.schedule import EntrySchedule, Launch
from tilegrad.ops import registry
from tilegrad.schedule.pipes import PAYS, Joined, Pipes, with_tiling
from tilegrad.schedule.splitting import may_split

Names = tuple[str, str] | tuple[str, str, int]


class Refused(Exception):
    """Why two neighbours cannot be joined."""

    def __init__(self, what: str, got: str) -> None:
        super().__init__(what)
        self.what = what
        self.got = got


@dataclass(frozen=True)
class _Pair:
    """Launches that could be joined, and what that takes instead of `apart` cycles."""

    launches: tuple[int, int]
    value: str
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
        self.reads: dict[str, int] = {}
        self.writes: dict[str, int] = {}
        for launch in entry.launches:
            for nest in launch.nests:
                for counts, operands in ((self.reads, nest.reads), (self.writes, nest.results)):
                    for operand in operands:
                        counts[operand.value or ""] = counts.get(operand.value or "", 0) + 1
        graph, target = entry.graph, pipes.options.target
        self.alignment = target.memory(target.home).alignment_bytes
        self.owner = analyse(graph, self.alignment).owner
        viewed = {node.inputs[0] for node in graph.nodes if registry.get(node.op).is_view}
        self.kept = {*graph.inputs, *graph.outputs, *graph.state, *(value for value, _ in graph.writes), *viewed}

    def chosen(self) -> EntrySchedule:
        """By cost: of neighbours that overlap, those that save most together."""
        pairs: dict[int, _Pair] = {}
        for k, (first, second) in enumerate(zip(self.busy, self.busy[1:], strict=False)):
            try:
                pair = self.pair(first, second)
            except Refused:
                continue
            if pair.joined.cycles <= PAYS * pair.apart:
                pairs[k] = pair
        best: list[tuple[float, tuple[_Pair, ...]]] = [(0.0, ()), (0.0, ())]
        for k in range(len(self.busy)):
            options = [best[-1]]
            if k in pairs:
                saved = pairs[k].apart - pairs[k].joined.cycles
                options.append((best[-2][0] + saved, (*best[-2][1], pairs[k])))
            best.append(max(options, key=lambda one: one[0]))
        return self.with_pairs(best[-1][1])

    def asked(self, names: Sequence[Names], refusals: dict[Names, UserError | None]) -> EntrySchedule:
        """Those that were asked for by the names of their nodes. One that some entry has is not refused for another,
        where the value is read again."""
        found: list[_Pair] = []
        for pair in names:
            launches = [[i for i in self.busy if self.entry.launches[i].node.name == name] for name in pair[:2]]
            if not launches[0] or not launches[1]:
                continue
            try:
                first, second = launches[0][-1], launches[1][0]
                if (first, second) not in zip(self.busy, self.busy[1:], strict=False):
                    raise Refused("one right behind the other", "other operators between them")
                if any({first, second} & set(other.launches) for other in found):
                    raise Refused("pipes that have no operator in common", "one that another pipe joins already")
                found.append(self.pair(first, second, asked=pair))
                refusals[pair] = None
            except Refused as refused:
                if pair not in refusals:
                    refusals[pair] = UserError(
                        f"there can be no pipe from '{pair[0]}' to '{pair[1]}' in {self.entry.graph.name}",
                        stage="schedule",
                        node=pair[1],
                        expected=refused.what,
                        got=refused.got,
                    )
        return self.with_pairs(tuple(found))

    def pair(self, first: int, second: int, asked: Names | None = None) -> _Pair:
        launches = [self.entry.launches[i] for i in (first, second)]
        nests = (launches[0].nests[-1], launches[1].nests[0])
        operands = self._operands(*nests)
        self._expect_engines(*nests)
        self._expect_apart(launches, nests, operands)
        limit = self.pipes.options.target.clusters if self.width is None else self._most_blocks(self.width)
        nodes = [(launch.node, nest) for launch, nest in zip(launches, nests, strict=True)]
        joined = self.pipes.join(nodes, operands, limit, asked[2] if asked is not None and len(asked) > 2 else None)
        if joined is None:
            reason = self.pipes.reason(nodes, operands, limit) if asked is not None else ""
            if isinstance(reason, DoesNotFit):
                raise reason
            raise Refused("boxes that are one to one, whole sums of the first and whole tiles of the second", reason)
        tilings = (launches[0].tilings[-1], launches[1].tilings[0])
        apart = sum(tiling.estimate.cycles for tiling in tilings if tiling is not None)
        if self.width is not None:  # other estimates are for all the blocks there are
            lanes = (launches[0].lane_count(len(launches[0].nests) - 1), launches[1].lane_count(0))
            sides = zip(nests, tilings, lanes, strict=True)
            apart = sum(self.pipes.apart(nest, t, own, limit) for nest, t, own in sides if t is not None)
        return _Pair((first, second), operands[0].value or "", joined, apart)

    def _operands(self, first: Nest, second: Nest) -> tuple[Operand, Operand]:
        """The one value that goes from one to the other, and nowhere else."""
        made = {operand.value: operand for operand in first.results}
        read = [operand for operand in second.reads if operand.value in made]
        if len(read) != 1:
            raise Refused("one value that the first makes and the second reads once", f"{len(read)}")
        value = read[0].value or ""
        if value in self.kept or self.reads[value] != 1 or self.writes[value] != 1:
            got = "others read it, too" if self.reads[value] != 1 else "it is seen from outside, or under another name"
            raise Refused(f"that nobody else reads '{value}'", got)
        return made[value], read[0]

    def _expect_engines(self, first: Nest, second: Nest) -> None:
        own, other = self.pipes.engine(first), self.pipes.engine(second)
        if own == other and own.lanes == 1:
            raise Refused("two engines", f"both run on {own.name}")

    def _expect_apart(
        self, launches: Sequence[Launch], nests: tuple[Nest, Nest], operands: tuple[Operand, Operand]
    ) -> None:
        """Neither writes what the other uses, but for what passes through, and both can be split."""
        try:  # what is apart where anything may take over bytes is so where these do not
            self._expect_places_apart(self.owner, launches, nests, operands)
        except Refused:
            values = {one.value or "" for nest in nests for one in nest.reads}
            owner = analyse(self.entry.graph, self.alignment, frozenset(values)).owner
            self._expect_places_apart(owner, launches, nests, operands)

    def _expect_places_apart(
        self,
        owner: Mapping[str, str],
        launches: Sequence[Launch],
        nests: tuple[Nest, Nest],
        operands: tuple[Operand, Operand],
    ) -> None:
        def places(some: Sequence[Operand]) -> set[str]:
            through = {operands[0].value}
            return {owner.get(o.value, o.value) for o in some if o.value is not None and o.value not in through}

        if places(nests[1].results) & places(nests[0].present) or places(nests[0].results) & places(nests[1].present):
            raise Refused("that neither writes what the other uses", "they share memory")
        if not all(may_split(nest, owner) for nest in nests) or not all(launch.widths for launch in launches):
            raise Refused("operators whose tiles do not depend on each other", "one in place of what others read")

    def _most_blocks(self, width: Width) -> int:
        return width.at(self.most) if width.divisor else width.limit

    def with_pairs(self, pairs: Sequence[_Pair]) -> EntrySchedule:
        launches, target = list(self.entry.launches), self.pipes.options.target
        found = []
        for number, pair in enumerate(pairs):
            width = self.width or Width(pair.joined.blocks)
            for side, i in enumerate(pair.launches):
                one = launches[i]
                at = len(one.nests) - 1 if side == 0 else 0
                cycles = pair.joined.cycles if side == 0 else 0.0
                lanes = one.lanes or (1,) * len(one.nests)
                launches[i] = replace(
                    one,
                    tilings=with_tiling(one.tilings, at, pair.joined.tilings[side], cycles),
                    widths=(*one.widths[:at], width, *one.widths[at + 1 :]),
                    lanes=(*lanes[:at], 1, *lanes[at + 1 :]),
                )
            blocks, joined = self._most_blocks(width), pair.joined
            ring = (joined.depth, joined.slot_bytes, blocks, target.memory(target.home).alignment_bytes)
            found.append(Pipe(number, pair.value, *pair.launches, *ring))
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
