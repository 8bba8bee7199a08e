"""Expands every operator into its nests, and cuts the nests into tiles where the target has a scratchpad."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilegrad.analysis.lifetimes import analyse, temporaries
from tilegrad.analysis.room import expect_room
from tilegrad.costs.kernel_cost import KernelCosts
from tilegrad.errors import DoesNotFit, UserError
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.nest import Nest, NestKind
from tilegrad.ir.program import Program
from tilegrad.ir.schedule import EntrySchedule, Launch, Schedule, Tiling
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.schedule.chain import Link, Waits, choose
from tilegrad.schedule.judge import Judge
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.schedule.panel_chains import expand
from tilegrad.schedule.panels import Panels
from tilegrad.schedule.tiling import TilingOptions, TilingSearch
from tilegrad.targets.base import Target

LARGEST_ELEMENT_COUNT = 2**31 - 1


def schedule_program(program: Program, target: Target, options: ScheduleOptions | None = None) -> Schedule:
    options = options or ScheduleOptions()
    tiler = None
    costs = KernelCosts(target)
    if not target.is_flat:
        expect_room(program, target)
    if not target.is_flat and options.is_tiled:
        tiler = _Tiler(TilingOptions(target, options.l2_buffering, costs))
    entries = {}
    for name, graph in program.entries.items():
        panels = None
        if target.has_l3 and options.home != "L2":
            owner = analyse(graph, target.memory(target.home).alignment_bytes).owner
            panels = Panels(target, owner, options.l3_buffering != "single", costs, cuts=tiler is not None)
        entries[name] = _schedule_entry(graph, tiler, panels)
    if tiler is not None:
        tiler.check()
    overlaps = tiler is not None and options.l2_buffering != "single"
    return Schedule(program, target, entries, overlaps, options.l3_buffering != "single")


class _Tiler:
    """Searches each kind of nest once: nests that differ only in their values' names have the same choices."""

    def __init__(self, options: TilingOptions) -> None:
        self.options = options
        self.waits = Waits(Judge(options.target, options.costs), options.scratch_bytes)
        self.known: dict[NestKind, tuple[tuple[Tiling, int], ...]] = {}
        self.refused: list[tuple[int, DoesNotFit]] = []

    def check(self) -> None:
        """Refuses with the operator that needs most, so that what its hint asks for is enough for all."""
        if self.refused:
            raise max(self.refused, key=lambda pair: pair[0])[1]

    def tilings(self, graph: Graph, nests: Sequence[tuple[Node, Nest]]) -> list[Tiling | None]:
        """Of an entry's nests, in order."""
        target = self.options.target
        homes = analyse(graph, target.memory(target.home).alignment_bytes).owner
        choices = []
        for node, nest in nests:
            found = self._choices(nest, node)
            choices.append([Link(nest, tiling, table_bytes, homes) for tiling, table_bytes in found])
        if self.refused:
            return [None] * len(nests)
        return list(choose(choices, self.waits, self.options.buffering == "double"))

    def _choices(self, nest: Nest, node: Node) -> tuple[tuple[Tiling, int], ...]:
        """Tilings, with the bytes of their tables; none where none fits."""
        if nest.kind not in self.known:
            search = TilingSearch(self.options, node.op, nest)
            try:
                self.known[nest.kind] = search.choices(node.name)
            except DoesNotFit as error:
                self.known[nest.kind] = ()
                self.refused.append((search.smallest()[1], error))
        return self.known[nest.kind]


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
    tilings = iter([None] * len(pairs) if tiler is None else tiler.tilings(graph, pairs))
    launches = tuple(replace(one, tilings=tuple(next(tilings) for _ in one.nests)) for one in expanded)
    types = {name: tensor_type for name, (_, tensor_type) in temporaries(graph).items()}
    types |= graph.types
    if panels is None:
        return EntrySchedule(graph, launches, types)
    return EntrySchedule(graph, launches, {**types, **panels.types}, panels.values)
