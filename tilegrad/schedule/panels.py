"""Operators whose operands do not fit into L2 together: cut into panels, each of them a launch of its own.

A panel is a range of each parallel axis. Where not even single steps of them fit, a reduction is cut too: its panels
come in the order of the sum, and each goes on from what the one before left in L2. What a panel touches of a large
operand is in L2 without the rest, dense, and comes from L3 and goes back while other panels compute; small operands are
there whole. The nest of a panel is an ordinary nest with shorter axes, whose index maps begin where the panel does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, permutations, product
from math import prod

from tilegrad.analysis.footprint import box_shape, cut_loops, load_count, tile_at, tile_bytes, tile_sizes, tiles
from tilegrad.analysis.lifetimes import align
from tilegrad.analysis.room import STREAMED_SHARE
from tilegrad.analysis.tables import nest_fields
from tilegrad.costs.kernel_cost import KernelCosts
from tilegrad.errors import DoesNotFit
from tilegrad.ir.graph import Node
from tilegrad.ir.nest import Access, AxisKind, Nest, Operand, Range, Tile, operand_box
from tilegrad.ir.schedule import Launch, Loop, NestPart, Panel, Rows
from tilegrad.ir.types import TensorType
from tilegrad.schedule.splitting import home_of
from tilegrad.targets.base import L2, L3, DmaTiming, Target

# Of L2: what the operands of a launch may take, and what the panels of two launches may, one that computes and one that
# is on its way. The rest is for what the allocator cannot use, and for neighbours.
WHOLE_SHARE, DOUBLE_SHARE, SINGLE_SHARE = STREAMED_SHARE, 0.75, 0.85
# An operand of no more than such a share of L2 is there whole.
SMALL_SHARE, ALL_SMALL_SHARE = 1 / 32, 1 / 4
# Cycles that a launch costs beside its transfers.
LAUNCH_CYCLES = 3000.0
_CUTS = (*range(1, 17), 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024)
_ROUND = 8
# Of a nest, at first; where that does not fit, as many as it takes, up to what nobody could store.
MOST_PANELS = (512, 4096)
# What a size of L2 that is asked for is a multiple of, and how much more than a panel that is, for neighbours.
_ASKED_BYTES, _ASKED_MORE = 1024, 1.1


@dataclass(frozen=True)
class Cut:
    """`loops` outermost first; operands by name that are streamed."""

    loops: tuple[Loop, ...]
    streamed: frozenset[str]


@dataclass(frozen=True, eq=False)
class Unit:
    """Nests of an operator that are cut alike: all of them (`number` is None), which is no cut, or one."""

    panels: Panels
    node: Node
    nests: tuple[Nest, ...]
    number: int | None = None
    cut: Cut | None = None

    @cached_property
    def groups(self) -> dict[str, list[Operand]]:
        return self.panels.groups(self.nests)

    @cached_property
    def read(self) -> set[str]:
        return {name for name, own in self.groups.items() if any(o.access is Access.READ for o in own)}

    @cached_property
    def written(self) -> set[str]:
        return {name for name, own in self.groups.items() if any(o.access is Access.WRITE for o in own)}

    @cached_property
    def search(self) -> Search:
        return Search(self.panels, self.nests[0])

    @cached_property
    def axes(self) -> list[str]:
        """Along which it may be cut."""
        return self.search.axes if len(self.nests) == 1 else []

    @cached_property
    def cycles(self) -> float:
        """Where it is cut for itself, or is not."""
        return self.search.cost(() if self.cut is None else self.cut.loops)

    def conflicts(self, other: Unit) -> bool:
        """Whether the two have to run in their order."""
        return bool(self.written & other.groups.keys() or other.written & self.groups.keys())

    def rows(self, name: str, loop: Loop, k: int) -> Rows | None:
        """What panel `k` has of a tensor; None where that is not one part, or all of it."""
        ranges, group = tile_at(self.nests[0], (loop,), (k,)), self.groups[name]
        if not all(loop.axis in operand.axes for operand in group):
            return None
        found = {Panel("", o.shape, panel_box(o, ranges), o.dtype).rows for o in group}
        return found.pop() if len(found) == 1 else None


@dataclass
class Panels:
    """Cuts the launches of one entry. `owner` says which values share bytes. Kernels that compute where their operands
    live have them there whole (not `cuts`): then only the nests of an operator are taken apart."""

    target: Target
    owner: Mapping[str, str]
    is_double: bool
    costs: KernelCosts
    cuts: bool = True
    whole_share: float = WHOLE_SHARE
    known: dict[object, Cut | None] = field(default_factory=dict)
    refused: list[tuple[int, str, Node]] = field(default_factory=list)
    values: dict[str, Panel] = field(default_factory=dict)

    @property
    def room_bytes(self) -> int:
        return self.target.memory(L2).capacity_bytes or 0

    @property
    def types(self) -> dict[str, TensorType]:
        return {name: TensorType(panel.dtype, tuple(r.size for r in panel.box)) for name, panel in self.values.items()}

    def units(self, node: Node, nests: tuple[Nest, ...]) -> list[Unit]:
        """An operator, or its nests one by one where not all of it is in L2 at once."""
        if self.whole_bytes(nests) <= self.whole_share * self.room_bytes:
            return [Unit(self, node, nests)]
        return [
            Unit(self, node, (nest,), number, self._cut(node, nest) if self.cuts else None)
            for number, nest in enumerate(nests)
        ]

    def launches(self, unit: Unit, chain: int | None = None) -> list[Launch]:
        """One for each panel. In a chain they are numbered, so that it is known which belong together."""
        if unit.number is None and unit.cut is None:
            return [Launch(unit.node, unit.nests)]
        (nest,), cut = unit.nests, unit.cut
        found: list[Launch] = []
        for k, (ranges, _) in enumerate(tiles(nest, () if cut is None else cut.loops)):
            panel = nest if cut is None else self._part(unit.node.op, nest, ranges, cut)
            turn = None if chain is None else (chain, k)
            found.append(Launch(unit.node, (panel,), part=NestPart(unit.number or 0, ranges, turn)))
        return found

    def groups(self, nests: Sequence[Nest]) -> dict[str, list[Operand]]:
        """Operands that share bytes, by the name of these."""
        found: dict[str, list[Operand]] = {}
        for operand in (operand for nest in nests for operand in nest.present):
            found.setdefault(home_of(operand, self.owner), []).append(operand)
        return found

    def whole_bytes(self, nests: Sequence[Nest]) -> int:
        return sum(map(group_bytes, self.groups(nests).values()))

    def check(self) -> None:
        """Refuses with the operator that needs most, so that what its hint asks for is enough for all."""
        if not self.refused:
            return
        size_bytes, reason, node = max(self.refused, key=lambda one: one[0])
        raise DoesNotFit(
            reason,
            stage="schedule",
            node=node.name,
            expected=f"at most {self.room_bytes} bytes",
            got=f"{size_bytes} bytes, with what is beside it",
            hint=f"give L2 at least {size_bytes} bytes (--l2)",
        )

    def _cut(self, node: Node, nest: Nest) -> Cut | None:
        """How a nest is cut; None where it is not, or cannot be."""
        if self.whole_bytes([nest]) <= self.whole_share * self.room_bytes:
            return None
        groups = self.groups([nest]).values()
        key = (nest.kind, *(tuple(operand.name for operand in group) for group in groups))
        if key not in self.known:
            search = Search(self, nest)
            self.known[key] = search.best()
            if self.known[key] is None and self.whole_bytes([nest]) > self.room_bytes:
                self.refused.append((search.least_room(), search.reason, node))
        return self.known[key]

    def _part(self, op: str, nest: Nest, ranges: Tile, cut: Cut) -> Nest:
        operands = [self._operand(one, ranges, one.name in cut.streamed) for one in nest.operands]
        named = {name for _, name in nest_fields(op, nest)}
        summed = {axis.name for axis in nest.axes if axis.kind is AxisKind.REDUCTION}
        axes = [
            axis
            for axis in nest.axes
            if f"at_{axis.name}" in named
            or f"of_{axis.name}" in named
            or (axis.name in summed and ranges[axis.name].size < axis.extent)
        ]
        begun = {axis for axis in summed if ranges[axis].start}
        before = (
            replace(o, name=f"{o.name}.before", access=Access.READ, continues=o.name)
            for o in operands
            if o.value is not None and o.access is Access.WRITE and not begun <= o.axes
        )
        volume = prod(r.size for r in ranges.values())
        macs = nest.macs_override
        return replace(
            nest,
            axes=tuple(replace(axis, extent=ranges[axis.name].size) for axis in nest.axes),
            operands=(*operands, *before),
            macs_override=None if macs is None else macs * volume // prod(axis.extent for axis in nest.axes),
            origin=tuple((axis.name, ranges[axis.name].start, axis.extent) for axis in axes),
        )

    def _operand(self, operand: Operand, ranges: Tile, is_streamed: bool) -> Operand:
        """As a panel has it, whose axes begin at the ranges' and positions at those of what is in L2."""
        if operand.value is None or operand.index is None:
            return operand
        box = panel_box(operand, ranges) if is_streamed else tuple(Range(0, extent) for extent in operand.shape)
        index = tuple(
            replace(
                one,
                offset=one.offset + sum(c * ranges[axis].start for axis, c in one.terms) - one.divisor * r.start,
            )
            for one, r in zip(operand.index, box, strict=True)
        )
        if not is_streamed:
            return replace(operand, index=index)
        text = ", ".join(f"{r.start}:{r.stop}" for r in box)
        name = f"{operand.value}[{text} of {'x'.join(map(str, operand.shape))}]"
        self.values[name] = Panel(operand.value, operand.shape, box, operand.dtype)
        return replace(operand, value=name, shape=tuple(r.size for r in box), index=index)


def group_bytes(group: Sequence[Operand]) -> int:
    """In L2, whole."""
    return align(max(operand.size_bytes for operand in group), 8)


def panel_box(operand: Operand, ranges: Tile) -> tuple[Range, ...]:
    """What a panel has of an operand: something of it, always."""
    return tuple(
        r if r.size or not extent else Range(min(r.start, extent - 1), min(r.start, extent - 1) + 1)
        for r, extent in zip(operand_box(operand, ranges), operand.shape, strict=True)
    )


class Search:
    """Of one nest."""

    def __init__(self, panels: Panels, nest: Nest) -> None:
        self.panels = panels
        self.nest = nest
        self.room = panels.room_bytes
        self.most = MOST_PANELS[0]
        self.engine = panels.target.engine(L3, L2)
        self.axes = [axis.name for axis in nest.axes if axis.kind is AxisKind.PARALLEL and axis.extent > 1]
        self.summed = [axis.name for axis in nest.axes if axis.kind is AxisKind.REDUCTION]
        self.groups = panels.groups([nest])
        self.small = self._small()
        self.whole_bytes = panels.whole_bytes([nest])

    def _small(self) -> set[str]:
        """Groups that are in L2 whole, whatever is cut."""
        found, total = set(), 0
        sizes = {name: max(operand.size_bytes for operand in group) for name, group in self.groups.items()}
        for name in sorted(sizes, key=lambda one: sizes[one]):
            total += align(sizes[name], 8)
            if align(sizes[name], 8) > SMALL_SHARE * self.room or total > ALL_SMALL_SHARE * self.room:
                break
            found.add(name)
        return found

    def best(self) -> Cut | None:
        found: tuple[float, Cut] | None = None
        shares = [(2, DOUBLE_SHARE), (1, SINGLE_SHARE)] if self.panels.is_double else [(1, SINGLE_SHARE)]
        for most, way, (times, share) in product(MOST_PANELS, (self._sizes, self._summed_sizes), shares):
            self.most = most
            for sizes in way(times, share * self.room):
                for loops in self._orders(sizes):
                    cost = self.cost(loops)
                    if found is None or cost < found[0]:
                        found = cost, Cut(loops, frozenset(o.name for own in self._streamed(sizes) for o in own))
            if found is not None:
                return found[1]
        return None

    def _sizes(self, times: int, room: float) -> Iterator[dict[str, int]]:
        """Cuts that fit: along one axis, or two, or all as far as it takes."""
        sizes = tile_sizes(self.nest, ())
        for axis in self.axes:
            yield from self._along(axis, sizes, times, room)
        for first, second in permutations(self.axes, 2):
            yield from self._along_two(first, second, sizes, times, room)
        while not self._fits(sizes, times, room):
            left = [axis for axis in self.axes if sizes[axis] > 1]
            if not left:
                return
            smaller = [{**sizes, axis: -(-sizes[axis] // 2)} for axis in left]
            sizes = min(smaller, key=lambda one: sum(self._split(one)))
        yield sizes

    def _summed_sizes(self, times: int, room: float) -> Iterator[dict[str, int]]:
        """Cuts that fit along a reduction, with single steps of those outside it, and along no other axis or one."""
        sizes = tile_sizes(self.nest, ())
        for axis in self.summed:
            yield from self._along(axis, sizes, times, room)
            for other in self.axes:
                yield from self._along_two(other, axis, sizes, times, room)
            sizes = {**sizes, axis: 1}
        sizes |= dict.fromkeys(self.axes, 1)
        if self.summed and self._fits(sizes, times, room):
            yield sizes

    def _along_two(
        self, first: str, second: str, sizes: Mapping[str, int], times: int, room: float
    ) -> Iterator[dict[str, int]]:
        """The largest panels that fit for each size along the first."""
        for size in axis_sizes(self.nest.axis(first).extent)[1:]:
            found = next(self._along(second, {**sizes, first: size}, times, room), None)
            if found is not None:
                yield found

    def _along(self, axis: str, sizes: Mapping[str, int], times: int, room: float) -> Iterator[dict[str, int]]:
        """The largest panels that fit, and some smaller ones, which come sooner."""
        every = ({**sizes, axis: size} for size in axis_sizes(self.nest.axis(axis).extent))
        return islice((cut for cut in every if self._fits(cut, times, room)), 4)

    def _streamed(self, sizes: Mapping[str, int]) -> Iterator[list[Operand]]:
        """Groups that are cut and not small."""
        cut = {axis.name for axis in self.nest.axes if sizes[axis.name] < axis.extent}
        for name, group in self.groups.items():
            if name not in self.small and all(o.index is not None for o in group) and any(o.axes & cut for o in group):
                yield group

    def _split(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Bytes that are in L2 all the time, and those of a panel."""
        kept, moving = self.whole_bytes, 0
        for group in self._streamed(sizes):
            kept -= group_bytes(group)
            moving += sum({box_shape(o, sizes): align(tile_bytes(o, sizes), 8) for o in group}.values())
        return kept, moving

    @property
    def reason(self) -> str:
        """Why the nest is not cut."""
        if self._is_cut_for(self.panels.room_bytes, prod(axis.extent for axis in self.nest.axes)):
            return f"an operator in panels that fit into L2 has more than {MOST_PANELS[-1]:,} of them"
        return "the smallest panel of an operator does not fit into L2"

    def _is_cut_for(self, room: int, most: int) -> bool:
        self.room, self.most = room, most
        self.small = self._small()
        ways = (way(1, SINGLE_SHARE * room) for way in (self._sizes, self._summed_sizes))
        return any(next(way, None) is not None for way in ways)

    def least_room(self) -> int:
        """An L2 that the nest would be cut for."""
        below, above = self.room, self.whole_bytes * 2
        while above - below > _ASKED_BYTES:
            room = (below + above) // 2
            if self._is_cut_for(room, MOST_PANELS[-1]):
                above = room
            else:
                below = room
        return int(_ASKED_MORE * above / _ASKED_BYTES + 1) * _ASKED_BYTES

    def _fits(self, sizes: Mapping[str, int], times: int, room: float) -> bool:
        if prod(-(-axis.extent // sizes[axis.name]) for axis in self.nest.axes) > self.most:
            return False
        kept, moving = self._split(sizes)
        return kept + times * moving <= room

    def _orders(self, sizes: Mapping[str, int]) -> Iterator[tuple[Loop, ...]]:
        inner = cut_loops(self.nest, sizes, self.summed)
        return ((*outer, *inner) for outer in permutations(cut_loops(self.nest, sizes, self.axes)))

    def launch_cycles(self, loops: Sequence[Loop]) -> float:
        """Of all panels, without transfers: small ones keep the cores less busy."""
        target, sizes = self.panels.target, tile_sizes(self.nest, loops)
        compute_cycles = self.panels.costs.cycles(self.nest, sizes, target.compute, target.cores)
        return (LAUNCH_CYCLES + compute_cycles) * prod(loop.count for loop in loops)

    def cost(self, loops: Sequence[Loop]) -> float:
        """Cycles of the engine and of the cores, and what launches take."""
        total, sizes = self.launch_cycles(loops), tile_sizes(self.nest, loops)
        for operand in (operand for group in self._streamed(sizes) for operand in group):
            timing = self.engine.inward if operand.access is Access.READ else self.engine.outward
            box = tuple(Range(0, max(size, 1)) for size in box_shape(operand, sizes))
            rows = Panel("", operand.shape, box, operand.dtype).rows
            total += load_count(operand, loops) * transfer_cycles(timing, rows.size_bytes, rows.count)
        return total


def transfer_cycles(timing: DmaTiming, size_bytes: int, commands: int = 1) -> float:
    return commands * timing.setup_cycles + size_bytes * timing.cycles_per_byte


def axis_sizes(extent: int) -> list[int]:
    """Largest first; multiples of eight where that is no matter."""
    found = {-(-extent // cut) for cut in _CUTS if cut <= extent} | {1}
    rounded = {min(extent, -(-size // _ROUND) * _ROUND) if size > 4 * _ROUND else size for size in found}
    return sorted(rounded, reverse=True)
