"""Expands every operator into its nests, and cuts the nests into tiles where the target has a scratchpad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilegrad.analysis.lifetimes import analyse, temporaries
from tilegrad.analysis.tables import argument_fields
from tilegrad.costs.kernel_cost import KernelCosts
from tilegrad.errors import DoesNotFit, UserError
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.nest import Nest
from tilegrad.ir.program import Program
from tilegrad.ir.schedule import EntrySchedule, Launch, Schedule, Tiling
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.schedule.chain import Link, choose
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.schedule.tiling import TilingOptions, TilingSearch
from tilegrad.sequence.verify import verify_schedule
from tilegrad.targets.base import Target

LARGEST_ELEMENT_COUNT = 2**31 - 1


def schedule_program(program: Program, target: Target, options: ScheduleOptions | None = None) -> Schedule:
    options = options or ScheduleOptions()
    tiler = None
    if not target.is_flat and options.is_tiled:
        tiler = _Tiler(TilingOptions(target, options.buffering, KernelCosts(target)))
    entries = {name: _schedule_entry(graph, tiler) for name, graph in program.entries.items()}
    if tiler is not None:
        tiler.check()
    overlaps = tiler is not None and options.buffering != "single"
    return verify_schedule(Schedule(program, target, entries, overlaps))


class _Tiler:
    """Searches each kind of nest once: nests that differ only in their values' names have the same choices."""

    def __init__(self, options: TilingOptions) -> None:
        self.options = options
        self.known: dict[object, tuple[tuple[Tiling, int], ...]] = {}
        self.refused: list[tuple[int, DoesNotFit]] = []

    def check(self) -> None:
        """Refuses with the operator that needs most, so that what its hint asks for is enough for all."""
        if self.refused:
            raise max(self.refused, key=lambda pair: pair[0])[1]

    def tilings(self, graph: Graph, nests: Sequence[tuple[Node, Nest]]) -> list[Tiling | None]:
        """Of an entry's nests, in order."""
        target = self.options.target
        types = {**{name: tensor_type for name, (_, tensor_type) in temporaries(graph).items()}, **graph.types}
        homes = analyse(graph, target.memory(target.home).alignment_bytes).owner
        choices = []
        for node, nest in nests:
            sizes = {o.name: types[o.value].dtype.size_bytes for o in nest.operands if o.value is not None}
            found = self._choices(nest, sizes, node)
            choices.append([Link(nest, tiling, table_bytes, sizes, homes, target) for tiling, table_bytes in found])
        if self.refused:
            return [None] * len(nests)
        return list(choose(choices, self.options.scratch_bytes, self.options.buffering == "double"))

    def _choices(
        self, nest: Nest, element_bytes: Mapping[str, int], node: Node
    ) -> tuple[tuple[Tiling, int], ...]:
        """Tilings, with the bytes of their tables; none where none fits."""
        key = (
            nest.kernel,
            nest.axes,
            tuple((o.name, o.value is None, o.access, o.shape, o.index) for o in nest.operands),
            tuple(element_bytes.items()),
        )
        if key not in self.known:
            fields = argument_fields(node.op, nest.kernel)
            search = TilingSearch(self.options, nest, element_bytes, fields)
            try:
                self.known[key] = search.choices(node.name)
            except DoesNotFit as error:
                self.known[key] = ()
                self.refused.append((search.smallest()[1], error))
        return self.known[key]


def _schedule_entry(graph: Graph, tiler: _Tiler | None) -> EntrySchedule:
    for name, tensor_type in graph.types.items():
        if tensor_type.size > LARGEST_ELEMENT_COUNT:
            raise UserError(
                f"tensor '{name}' is too large",
                stage="schedule",
                expected=f"at most {LARGEST_ELEMENT_COUNT} elements",
                got=str(tensor_type),
            )
    expanded = []
    for node in graph.nodes:
        operator = registry.get(node.op)
        expanded.append((node, () if operator.is_view else tuple(operator.nests(NodeView(node, graph.types)))))
    pairs = [(node, nest) for node, nests in expanded for nest in nests]
    tilings = iter([None] * len(pairs) if tiler is None else tiler.tilings(graph, pairs))
    launches = [Launch(node, nests, tuple(next(tilings) for _ in nests)) for node, nests in expanded]
    return EntrySchedule(graph, tuple(launches))
