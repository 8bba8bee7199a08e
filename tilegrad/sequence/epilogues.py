"""Which element-wise operators become epilogues: those that save time where they stand, on the clock.

A nest alone does not tell: what an epilogue saves is transfers, and neighbours hide most of these, or nests that come
together never make them. So each kind of chain that a program may have (`schedule/epilogues.py`) is tried where it
first occurs, with the nodes around it as a program of their own: scheduled, placed, listed and timed with and without
it. Then both programs are, as a whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from tilegrad.errors import DoesNotFit
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import ENTRIES, Program
from tilegrad.ops._chain import MOST_EPILOGUES
from tilegrad.place.plan import plan_memory
from tilegrad.schedule.epilogues import Candidates, ChainKind, PairKey, candidates, with_chains
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.schedule.schedule import schedule_program
from tilegrad.sequence.fastest import is_long, timed
from tilegrad.sequence.timing import EntryTiming
from tilegrad.targets.base import Target

AROUND = 3
"""Nodes before and behind a pair that it is looked at with."""
LEAST_GAIN = 0.001
"""Of the cycles of these, what a chain must save: less is not worth another kernel."""
LEAST_IDLE = 0.0001
"""Of the cycles of a program, what all nests of a kind of chain must wait or be conducted for: it cannot save more."""
MOST_TRIED = 24
"""Kinds of chains in a round, those of the largest tensors: each takes a tenth of a second or more."""
STEP, INFER = "step", "infer"


def has_epilogues(target: Target, options: ScheduleOptions) -> bool:
    """Where cores run tiles. Engines of their own for products run no other kernels: pipes lead to those that do."""
    return not target.is_flat and options.is_tiled and not target.compute_engines


def with_epilogues(program: Program, target: Target, options: ScheduleOptions) -> Program:
    """The program with chains in the place of their operators, where it is faster so: valid in, valid out, the same
    bits."""
    if not has_epilogues(target, options) or not candidates(program).kinds or _is_long(program, target, options):
        return program
    entry = STEP if program.entries[STEP].nodes else INFER
    before = _timing(program, target, options, entry)
    chained, tried = program, dict[ChainKind, bool]()
    for _ in range(MOST_EPILOGUES):
        found = candidates(chained)
        for kind, key in _firsts(found, before).items():
            if kind not in tried:
                tried[kind] = _pays(chained, found, key, kind, target, options)
        pays = [kind for kind, it_does in tried.items() if it_does]
        if not pays:
            break
        chained = with_chains(chained, found, pays)
    if chained is program:
        return program
    return chained if _is_faster(_timing(chained, target, options, entry), before) else program


def _is_long(program: Program, target: Target, options: ScheduleOptions) -> bool:
    try:
        return is_long(schedule_program(program, target, options))
    except DoesNotFit:
        return False


def _is_faster(after: EntryTiming | None, before: EntryTiming | None) -> bool:
    """As a whole: other tiles of one nest are a reason for other tiles of the next."""
    return before is None or (after is not None and after.cycles < before.cycles)


def _firsts(found: Candidates, before: EntryTiming | None) -> dict[ChainKind, PairKey]:
    """Of each kind that is tried, the pair that comes first. `before` is how long nests take apart: a chain saves no
    more of it than cores do not compute for."""
    firsts: dict[ChainKind, PairKey] = {}
    idle_cycles: dict[ChainKind, float] = defaultdict(float)
    for key, (kind, _) in found.kinds.items():
        firsts.setdefault(kind, key)
        own = (nest for nest in before.nests if nest.node in key[:2]) if before is not None else ()
        idle_cycles[kind] += sum(nest.cycles - nest.compute_cycles for nest in own)
    if before is not None:
        firsts = {kind: key for kind, key in firsts.items() if idle_cycles[kind] >= LEAST_IDLE * before.cycles}
    graphs = {key: pair.graph for own in found.pairs.values() for key, pair in own.items()}
    largest = sorted(firsts.items(), key=lambda item: -graphs[item[1]].types[item[1][2]].size)
    return dict(largest[:MOST_TRIED])


def _pays(
    program: Program, found: Candidates, key: PairKey, kind: ChainKind, target: Target, options: ScheduleOptions
) -> bool:
    entry = next(name for name in (STEP, *ENTRIES) if key in found.pairs[name])
    apart = _around(program, program.entries[entry], key)
    within = candidates(apart)
    if key not in within.kinds or within.kinds[key][0] != kind:
        return False
    before, after = (_timing(one, target, options, STEP) for one in (apart, with_chains(apart, within, [kind])))
    return before is not None and after is not None and after.cycles < (1 - LEAST_GAIN) * before.cycles


def _around(program: Program, graph: Graph, key: PairKey) -> Program:
    """The nodes around a pair as a program that has nothing else."""
    places = [i for i, node in enumerate(graph.nodes) if node.name in key[:2]]
    nodes = graph.nodes[max(0, places[0] - AROUND) : places[-1] + AROUND + 1]
    made = {name for node in nodes for name in node.outputs if name}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in made)
    own = Graph(
        STEP,
        tuple(name for name in read if name not in graph.state),
        tuple(name for name in made if name in _needed(graph, nodes)),
        nodes,
        {name: graph.types[name] for name in (*read, *made)},
        state=tuple(name for name in graph.state if name in read),
    )
    empty = {name: Graph(name, (), (), (), {}) for name in ENTRIES}
    state = tuple(tensor for tensor in program.state if tensor.name in own.state)
    return replace(program, state=state, entries={**empty, STEP: own}, targets=())


def _needed(graph: Graph, nodes: Sequence[Node]) -> set[str]:
    """What is read elsewhere than by these nodes."""
    inside = {node.name for node in nodes}
    others = {name for node in graph.nodes if node.name not in inside for name in node.inputs}
    return others | {*graph.outputs, *(value for value, _ in graph.writes)}


def _timing(program: Program, target: Target, options: ScheduleOptions, entry: str) -> EntryTiming | None:
    """None where it does not fit."""
    try:
        plan = plan_memory(schedule_program(program, target, options), options.home)
    except DoesNotFit:
        return None
    return timed(plan, entry)
