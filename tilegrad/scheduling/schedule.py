"""Expands every operator into its nests, and cuts the nests into tiles where the target has a scratchpad."""

from __future__ import annotations

from collections.abc import Mapping

from tilegrad.errors import DoesNotFit, UserError
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.nest import Nest
from tilegrad.ir.program import Program
from tilegrad.ir.schedule import EntrySchedule, Launch, Schedule, Tiling
from tilegrad.ir.types import TensorType
from tilegrad.memory.lifetimes import temporaries
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.scheduling.kernel_cost import KernelCosts
from tilegrad.scheduling.options import ScheduleOptions
from tilegrad.scheduling.tables import argument_fields
from tilegrad.scheduling.tiling import TilingOptions, TilingSearch
from tilegrad.scheduling.verify import verify_schedule
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
    """Searches each kind of nest once: nests that differ only in their values' names share a tiling."""

    def __init__(self, options: TilingOptions) -> None:
        self.options = options
        self.known: dict[object, Tiling | None] = {}
        self.refused: list[tuple[int, DoesNotFit]] = []

    def check(self) -> None:
        """Refuses with the operator that needs most, so that what its hint asks for is enough for all."""
        if self.refused:
            raise max(self.refused, key=lambda pair: pair[0])[1]

    def tiling(self, nest: Nest, types: Mapping[str, TensorType], node: Node) -> Tiling | None:
        element_bytes = {
            operand.name: types[operand.value].dtype.size_bytes
            for operand in nest.operands
            if operand.value is not None
        }
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
                self.known[key] = search.choose(node.name)
            except DoesNotFit as error:
                self.known[key] = None
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
    scratch = {name: tensor_type for name, (_, tensor_type) in temporaries(graph).items()}
    types = {**scratch, **graph.types}
    launches = []
    for node in graph.nodes:
        operator = registry.get(node.op)
        nests = () if operator.is_view else operator.nests(NodeView(node, graph.types))
        tilings: tuple[Tiling | None, ...] = (None,) * len(nests)
        if tiler is not None:
            tilings = tuple(tiler.tiling(nest, types, node) for nest in nests)
        launches.append(Launch(node, tuple(nests), tilings))
    return EntrySchedule(graph, tuple(launches))
