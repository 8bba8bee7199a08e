"""Which element-wise operators become epilogues: those that save time where they stand, on the clock.

A nest alone does not tell: what an epilogue saves is transfers, and neighbours hide most of these, or nests that come
together never make them. So each kind of chain that a program may have (`schedule/epilogues.py`) is tried where it
first occurs, with the nodes around it as a program of their own: scheduled, placed, listed and timed with and without
it. Then both programs are, as a whole.
"""

from __future__ import annotations

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
from tilegrad.sequence.sequence import unproved
from tilegrad.sequence.timing import time_listing
from tilegrad.targets.base import Target

AROUND = 3
"""Nodes before and behind a pair that it is looked at with."""
LEAST_GAIN = 0.001
"""Of the cycles of these, what a chain must save: less is not worth another kernel."""
MOST_TRIED = 24
"""Kinds of chains in a round, those of the largest tensors: each takes a tenth of a second or more."""
STEP, INFER = "step", "infer"


def has_epilogues(target: Target, options: ScheduleOptions) -> bool:
    """Where cores run tiles. Engines of their own for products run no other kernels: pipes lead to those that do."""
    return not target.is_flat and options.is_tiled and not target.compute_engines


def with_epilogues(program: Program, target: Target, options: ScheduleOptions) -> Program:
    """The program with chains in the place of their operators, where it is faster so: valid in, valid out, the same
    bits."""
    chained, tried = program, dict[ChainKind, bool]()
    for _ in range(MOST_EPILOGUES if has_epilogues(target, options) else 0):
        found = candidates(chained)
        for kind, key in _firsts(found).items():
            if kind not in tried:
                tried[kind] = _pays(chained, found, key, kind, target, options)
        pays = [kind for kind, it_does in tried.items() if it_does]
        if not pays:
            break
        chained = with_chains(chained, found, pays)
    return program if chained is program else _faster(program, chained, target, options)


def _faster(program: Program, chained: Program, target: Target, options: ScheduleOptions) -> Program:
    """Of both, as a whole: other tiles of one nest are a reason for other tiles of the next."""
    entry = STEP if program.entries[STEP].nodes else INFER
    apart, joined = (_cycles(one, target, options, entry) for one in (program, chained))
    return chained if apart is None or (joined is not None and joined < apart) else program


def _firsts(found: Candidates) -> dict[ChainKind, PairKey]:
    """Of each kind that is tried, the pair that comes first."""
    firsts: dict[ChainKind, PairKey] = {}
    for key, (kind, _) in found.kinds.items():
        firsts.setdefault(kind, key)
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
    before, after = (_cycles(one, target, options) for one in (apart, with_chains(apart, within, [kind])))
    return before is not None and after is not None and after < (1 - LEAST_GAIN) * before


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


def _cycles(program: Program, target: Target, options: ScheduleOptions, entry: str = STEP) -> float | None:
    """None where it does not fit."""
    try:
        plan = plan_memory(schedule_program(program, target, options), options.home)
    except DoesNotFit:
        return None
    return time_listing(unproved(plan, [entry]))[entry].cycles
