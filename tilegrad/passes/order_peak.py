"""Runs nodes in the order that needs least memory at once, where the graph leaves a choice.

Branches, gradients of a node's operands and early updates may come in several orders. What frees more than it makes
runs as soon as it can: a weight's gradient and its update before the gradient that goes on, the branch that ends in
little before the one that ends in much. Several such orders are made, each by going through the graph once, and the one
whose peak is lowest is taken, or the order there is where none is lower. Nodes that use a tensor of the state which one
of them changes keep their order. Every node computes what it did, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from tilegrad.analysis.room import live_peak
from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.program import Program
from tilegrad.ops import registry

ALIGNMENT_BYTES = 8
# Another order is worth so many bytes less, and such a share.
LEAST_GAIN_BYTES, LEAST_GAIN_SHARE = 1024, 0.01


@dataclass(frozen=True)
class OrderPeak:
    """A program pass: valid in, valid out. The forward pass has one order in `infer` and in `step`."""

    def apply(self, program: Program) -> Program:
        infer, step = program.entries["infer"], program.entries["step"]
        count = len(infer.nodes)
        ordered = lowered(infer)
        if step.nodes[:count] != infer.nodes:
            return replace(program, entries={**program.entries, "infer": ordered}).with_step(lowered(step))
        step = replace(step, nodes=(*ordered.nodes, *step.nodes[count:]))
        if live_peak(step, ALIGNMENT_BYTES)[0] > live_peak(program.entries["step"], ALIGNMENT_BYTES)[0]:
            return program.with_step(lowered(program.entries["step"], count))
        if ordered is not infer:
            program = replace(program, entries={**program.entries, "infer": ordered, "step": verify_graph(step)})
        return program.with_step(lowered(program.entries["step"], count))


def lowered(graph: Graph, first: int = 0) -> Graph:
    """The graph with its nodes from `first` on in the order whose peak is lowest: the same graph where none is."""
    best, peak = graph, live_peak(graph, ALIGNMENT_BYTES)[0]
    peak -= max(LEAST_GAIN_BYTES, int(LEAST_GAIN_SHARE * peak))
    search = _Search(graph, first)
    for key in (_frees_first, _smallest_first):
        found = replace(graph, nodes=(*graph.nodes[:first], *search.order(key)))
        lower = live_peak(found, ALIGNMENT_BYTES)[0]
        if lower <= peak:
            best, peak = found, lower
    return best if best is graph else verify_graph(best)


# How nodes that could run are chosen from the bytes that each adds to what is alive, and from its place.
_Key = Callable[[int, int], tuple[int, int]]


def _frees_first(added: int, place: int) -> tuple[int, int]:
    """What frees as much as it makes, at once; the rest as it was."""
    return int(added > 0), place


def _smallest_first(added: int, place: int) -> tuple[int, int]:
    return added, place


class _Search:
    """Values that share bytes because one is a view of the other are one here; that outputs take over inputs is not
    known before the order is."""

    def __init__(self, graph: Graph, first: int) -> None:
        self.graph = graph
        self.first = first
        self.nodes = graph.nodes[first:]
        self.base: dict[str, str] = {}
        for node in graph.nodes:
            for name in filter(None, node.outputs):
                is_view = registry.get(node.op).is_view
                self.base[name] = self.base.get(node.inputs[0], node.inputs[0]) if is_view else name
        state = set(graph.state)
        self.read = [self._values(node.inputs) - state for node in self.nodes]
        self.made = [self._values(node.outputs) - state for node in self.nodes]
        writes = {self.base.get(value, value) for value, _ in graph.writes}
        alive = {*graph.inputs, *(name for node in graph.nodes for name in node.outputs)} - writes
        self.size = {
            name: graph.types[name].size_bytes if name in alive else 0
            for name in {name for own in (*self.read, *self.made) for name in own}
        }
        self.users: dict[str, int] = {}
        for own in self.read:
            for name in own:
                self.users[name] = self.users.get(name, 0) + 1
        for name in self._values(graph.outputs):
            self.users[name] = self.users.get(name, 0) + 1
        self.after = self._edges()

    def _values(self, names: Sequence[str]) -> set[str]:
        return {self.base.get(name, name) for name in names if name}

    def _edges(self) -> list[set[int]]:
        """For each node, those that must run behind it."""
        maker = {name: i for i, node in enumerate(self.nodes) for name in node.outputs if name}
        after: list[set[int]] = [set() for _ in self.nodes]
        for i, node in enumerate(self.nodes):
            for name in node.inputs:
                if name in maker:
                    after[maker[name]].add(i)
        for before, behind in self._state_order(maker):
            if before != behind:
                after[before].add(behind)
        return after

    def _state_order(self, maker: dict[str, int]) -> Iterator[tuple[int, int]]:
        """Readers of a tensor of the state, and what changes it, in their order."""
        readers: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for name in set(node.inputs):
                readers.setdefault(name, []).append(i)
        for value, state in self.graph.writes:
            writer = maker.get(value)
            if writer is None:
                continue
            for reader in readers.get(state, ()):
                yield (reader, writer) if reader <= writer else (writer, reader)

    def order(self, key: _Key) -> tuple[Node, ...]:
        """One way through the graph."""
        return tuple(self.nodes[i] for i in _Walk(self, key).run())


class _Walk:
    """Runs what could run, one by one. What a node adds changes when it becomes the last to use something: then it is
    looked at again."""

    def __init__(self, search: _Search, key: _Key) -> None:
        self.search = search
        self.key = key
        self.users = dict(search.users)
        self.left = [0] * len(search.nodes)
        for behind in search.after:
            for i in behind:
                self.left[i] += 1
        self.readers: dict[str, list[int]] = {}
        for i, own in enumerate(search.read):
            for name in own:
                self.readers.setdefault(name, []).append(i)
        self.ready: list[tuple[tuple[int, int], int]] = []
        self.is_done = [False] * len(search.nodes)

    def run(self) -> list[int]:
        done: list[int] = []
        for i, count in enumerate(self.left):
            if not count:
                self._offer(i)
        while self.ready:
            found, i = heappop(self.ready)
            if self.is_done[i] or found != self._key_of(i):
                continue  # it was offered again since
            self.is_done[i] = True
            done.append(i)
            for name in self.search.read[i]:
                self.users[name] -= 1
                if self.users[name] == 1:
                    self._offer_again(self.readers[name])
            for other in self.search.after[i]:
                self.left[other] -= 1
                if not self.left[other]:
                    self._offer(other)
        return done

    def _offer(self, i: int) -> None:
        heappush(self.ready, (self._key_of(i), i))

    def _offer_again(self, readers: Sequence[int]) -> None:
        for i in readers:
            if not self.is_done[i] and not self.left[i]:
                self._offer(i)

    def _key_of(self, i: int) -> tuple[int, int]:
        search = self.search
        freed = sum(search.size[name] for name in search.read[i] if self.users[name] == 1)
        made = sum(search.size[name] for name in search.made[i] if self.users.get(name))
        return self.key(made - freed, i)
