"""Expands every operator into its nests, and cuts the nests into tiles where the target has a scratchpad."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf

from tilegrad.analysis.footprint import tile_sizes, units_of
from tilegrad.analysis.lifetimes import analyse, temporaries
from tilegrad.analysis.overlap import Bytes
from tilegrad.analysis.results import check_results
from tilegrad.analysis.room import expect_room
from tilegrad.costs.kernel_cost import kernel_costs
from tilegrad.errors import DoesNotFit, UserError
from tilegrad.ir.blocks import Width
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.nest import Nest, NestKind
from tilegrad.ir.program import Program
from tilegrad.ir.schedule import EntrySchedule, Launch, Schedule, Tiling
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.schedule.chain import Edge, Link, Waits, choose
from tilegrad.schedule.joining import Joining, Names, expect_all
from tilegrad.schedule.judge import NOTHING_AHEAD, Ahead, Judge
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.schedule.panel_chains import expand
from tilegrad.schedule.panels import WHOLE_SHARE, Panels
from tilegrad.schedule.pipes import Pipes
from tilegrad.schedule.splitting import home_of, may_split
from tilegrad.schedule.tiling import TilingOptions, TilingSearch
from tilegrad.targets.base import ComputeEngine, Target

LARGEST_ELEMENT_COUNT = 2**31 - 1


@lru_cache(maxsize=2)  # what stages compare as a whole is the next one's
def schedule_program(
    program: Program,
    target: Target,
    options: ScheduleOptions | None = None,
    whole_share: float = WHOLE_SHARE,
) -> Schedule:
    """`whole_share`: of L2, what operands of a launch may take that does not work on parts of them."""
    options = options or ScheduleOptions()
    tiler = None
    costs = kernel_costs(target)
    if not target.is_flat:
        expect_room(program, target)
    if not target.is_flat and options.is_tiled:
        tiler = _Tiler(TilingOptions(target, options.l2_buffering, costs), options.width(target)[0])
    entries = {}
    for name, graph in program.entries.items():
        panels = None
        if target.has_l3 and options.home != "L2":
            owner = analyse(graph, target.memory(target.home).alignment_bytes).owner
            is_double = options.l3_buffering != "single"
            panels = Panels(target, owner, is_double, costs, tiler is not None, whole_share)
        entries[name] = _schedule_entry(graph, tiler, panels)
    if tiler is not None:
        tiler.check()
        entries = _joined(entries, tiler, options)
    for entry in entries.values():
        check_results(entry)
    overlaps = tiler is not None and options.l2_buffering != "single"
    width, most = options.width(target)
    return Schedule(program, target, entries, overlaps, options.l3_buffering != "single", most, width)


def _joined(entries: dict[str, EntrySchedule], tiler: _Tiler, options: ScheduleOptions) -> dict[str, EntrySchedule]:
    """With pipes between neighbours, where blocks have engines for both."""
    target = tiler.options.target
    if not target.compute_engines or options.pipes == "off":
        return entries
    pipes, most = Pipes(tiler.options), options.width(target)[1]
    joinings = {name: Joining(entry, pipes, tiler.width, most) for name, entry in entries.items()}
    if isinstance(options.pipes, str):
        return {name: joining.chosen() for name, joining in joinings.items()}
    refusals: dict[Names, UserError | None] = {}
    found = {name: joining.asked(options.pipes, refusals) for name, joining in joinings.items()}
    expect_all(options.pipes, refusals)
    return found


class Searched:
    """What was searched for a target: ways to cut kinds of nests, with the bytes of their tables, and what neighbours
    wait for."""

    def __init__(self, target: Target) -> None:
        self.choices: dict[NestKind, tuple[tuple[Tiling, int], ...]] = {}
        self.edges: dict[object, tuple[Edge, ...]] = {}
        self.waits = Waits(Judge(target, kernel_costs(target)), target.scratch_bytes(None))

    def link(self, nest: Nest, homes: Mapping[str, str]) -> Link:
        """A nest of a kind that was searched."""
        key = nest.kind, nest.skipped
        if key not in self.edges:
            boxes: dict[object, Bytes | None] = {}
            self.edges[key] = tuple([Edge(nest, *choice, boxes) for choice in self.choices[nest.kind]])
        return Link(nest, self.edges[key], tuple([home_of(operand, homes) for operand in nest.operands]))


@lru_cache(maxsize=16)
def searched(target: Target, buffering: str) -> Searched:
    """In this process: another recipe of a model has most of its nests in common with this one. Whoever writes other
    costs of a target forgets it (`cache_clear`)."""
    del buffering
    return Searched(target)


Choice = tuple[Tiling | None, Width | None, int]
"""How a nest is cut, over how many blocks it is launched, and on how many lanes of each."""
PAYS, LOST_CYCLES = 0.95, 1000
"""Of the cycles on one cluster, what a launch over several takes at most where it is chosen, and what it saves at
least: its neighbours lose what they would have done for each other."""


LEAST_OF_WHOLE = 0.75
"""Of what a nest computes for as one tile, what no way to cut it is faster than: those are not looked at where blocks
are faster still."""


def _worth(cycles: float) -> float:
    return min(PAYS * cycles, cycles - LOST_CYCLES)


class _Tiler:
    """Searches each kind of nest once: nests that differ only in their values' names have the same choices.

    Where no `width` was asked for, a nest is launched over blocks if that pays."""

    def __init__(self, options: TilingOptions, width: Width | None = None) -> None:
        self.options = options
        self.width = width
        self.over_blocks: dict[tuple[NestKind, Ahead], Tiling | None] = {}
        self.launch: tuple[Nest, Tiling] | None = None  # the latest one
        self.written: set[str] = set()  # by that, and by nests behind it
        self.searched = searched(options.target, options.buffering)
        self.refused: list[tuple[int, DoesNotFit]] = []

    def check(self) -> None:
        """Refuses with the operator that needs most, so that what its hint asks for is enough for all."""
        if self.refused:
            raise max(self.refused, key=lambda pair: pair[0])[1]

    def tilings(self, graph: Graph, nests: Sequence[tuple[Node, Nest]]) -> list[Choice]:
        """Of an entry's nests, in order. Those between two launches over blocks are chosen together."""
        target = self.options.target
        homes = analyse(graph, target.memory(target.home).alignment_bytes).owner
        found: list[Choice] = []
        links: list[Link] = []
        self.launch = None

        def chosen() -> list[Choice]:
            hides, known = self.options.buffering == "double", self.searched.waits
            own: Sequence[Tiling | None] = [None] * len(links) if self.refused else choose(links, known, hides)
            links.clear()
            return [(tiling, None, 1) for tiling in own]

        for node, nest in nests:
            launched = self._launched(nest, node, homes)
            if launched is not None and launched[0] is not None:
                self.launch = nest, launched[0]
                self.written.clear()
            self.written |= {home_of(one, homes) for one in nest.results}
            if launched is not None:
                found += [*chosen(), launched]
            elif self._choices(nest, node):
                links.append(self.searched.link(nest, homes))
            else:
                found.append((None, None, 1))  # and all is refused
        return [*found, *chosen()]

    def _launched(self, nest: Nest, node: Node, homes: Mapping[str, str]) -> Choice | None:
        """How a nest is launched over blocks; None where it is not."""
        blocks = self.options.target.clusters
        engine = self.options.target.compute_engine(nest.counts_macs)
        if engine is not None:
            return self._on_engine(engine, nest, node, homes)
        if (self.width is None and blocks == 1) or not may_split(nest, homes):
            return None
        if self.width is not None:
            tiling = self._over_blocks(nest, node, homes)
            return None if tiling is None else (tiling, self.width, 1)
        target = self.options.target
        whole_cycles = self.options.costs.cycles(nest, tile_sizes(nest, ()), target.compute, target.cores)
        least = LEAST_OF_WHOLE * whole_cycles  # of one cluster
        if not self._may_pay(least, least):
            alone = self._choices(nest, node)
            least = alone[0][0].estimate.cycles if alone else inf
            if alone and not self._may_pay(least, alone[0][0].estimate.compute_cycles):
                return None
        tiling = self._over_blocks(nest, node, homes)
        if tiling is not None and tiling.estimate.cycles > _worth(least):
            alone = self._choices(nest, node)
            least = alone[0][0].estimate.cycles if alone else inf
        if tiling is None or tiling.estimate.cycles > _worth(least):
            return None
        return tiling, Width(min(blocks, units_of(nest, tiling.loops)[0])), 1

    def _may_pay(self, cycles: float, compute_cycles: float) -> bool:
        """Whether blocks could do a nest in time that takes so many cycles on one cluster."""
        target = self.options.target
        return _worth(cycles) >= 2 * target.signal_cycles + compute_cycles / target.clusters

    def _on_engine(self, engine: ComputeEngine, nest: Nest, node: Node, homes: Mapping[str, str]) -> Choice:
        """Every nest is launched where engines compute; one that cannot be split takes one lane of one block."""
        blocks, lanes = self.options.target.clusters, engine.lanes
        tiling = self._over_blocks(nest, node, homes) if may_split(nest, homes) else None
        if tiling is None:
            choices = self._choices(nest, node)
            return (choices[0][0] if choices else None), Width(1), 1
        units = units_of(nest, tiling.loops)[0]
        return tiling, self.width or Width(min(blocks, -(-units // lanes))), lanes

    def _over_blocks(self, nest: Nest, node: Node, homes: Mapping[str, str]) -> Tiling | None:
        key = nest.kind, self._ahead(nest, homes)
        if key not in self.over_blocks:
            engine, clusters = self.options.target.compute_engine(nest.counts_macs), self.options.target.clusters
            search = TilingSearch(self.options, node.op, nest)
            blocks = max(clusters * (engine.lanes if engine else 1), 2)
            self.over_blocks[key] = search.over_blocks(blocks, key[1])
        return self.over_blocks[key]

    def _ahead(self, nest: Nest, homes: Mapping[str, str]) -> Ahead:
        """What blocks bring beside the last tile of the launch before: what is not written there or behind it."""
        target = self.options.target
        if self.launch is None or not self.options.overlaps or target.clusters == 1 or target.compute_engines:
            return NOTHING_AHEAD
        before, tiling = self.launch
        names = [one.name for one in nest.reads if home_of(one, homes) not in self.written]
        units, tiles = units_of(before, tiling.loops)
        cycles = tiling.estimate.compute_cycles / (tiles * -(-units // target.clusters))
        rounded = round(cycles, -4)  # few kinds of nests are searched more often than once
        return Ahead(frozenset(names), rounded) if rounded else NOTHING_AHEAD

    def _choices(self, nest: Nest, node: Node) -> tuple[tuple[Tiling, int], ...]:
        """Tilings, with the bytes of their tables; none where none fits."""
        known = self.searched.choices
        if nest.kind not in known:
            search = TilingSearch(self.options, node.op, nest)
            try:
                known[nest.kind] = search.choices(node.name)
            except DoesNotFit as error:
                self.refused.append((search.smallest()[1], error))
                return ()
        return known[nest.kind]


def _schedule_entry(graph: Graph, tiler: _Tiler | None, panels: Panels | None) -> EntrySchedule:
    for name, tensor_type in graph.types.items():
        if tensor_type.size > LARGEST_ELEMENT_COUNT:
            raise UserError(
                f"tensor '{name}' is too large",
                stage="schedule",
                expected=f"at most {LARGEST_ELEMENT_COUNT} elements",
                got=str(tensor_type),
            )
    views = [NodeView(node, graph.types) for node in graph.nodes]
    nodes = [(view.node, registry.get(view.node.op).typed_nests(view)) for view in views]
    if panels is None:
        expanded = [Launch(node, nests) for node, nests in nodes]
    else:
        expanded = expand(panels, nodes, frozenset((*graph.state, *(panels.owner.get(v, v) for v in graph.outputs))))
    pairs = [(launch.node, nest) for launch in expanded for nest in launch.nests]
    choices: Iterator[Choice] = iter([(None, None, 1)] * len(pairs) if tiler is None else tiler.tilings(graph, pairs))
    launches = []
    for one in expanded:
        tilings, widths, lanes = tuple(zip(*(next(choices) for _ in one.nests), strict=True)) or ((), (), ())
        lanes = lanes if any(count > 1 for count in lanes) else ()
        launches.append(replace(one, tilings=tilings, widths=widths if any(widths) else (), lanes=lanes))
    types = {name: tensor_type for name, (_, tensor_type) in temporaries(graph).items()}
    types |= graph.types
    if panels is None:
        return EntrySchedule(graph, tuple(launches), types)
    return EntrySchedule(graph, tuple(launches), {**types, **panels.types}, panels.values)
