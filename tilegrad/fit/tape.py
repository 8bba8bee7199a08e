"""A graph as a tape: an order of its nodes in which some run again, and in which values come back from farther memory.

Whoever reads a value finds what was made of it last, so a tape says all about what is kept, what is dropped, what is
computed again and what is fetched: a fetch is one more node that makes a value, for which nothing has to be there but
that it was made before. What is alive where follows by `analysis/lifetimes.py`'s rules, and is the same to the byte;
here it is numbers, so that thousands of tapes can be tried.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilegrad.analysis.lifetimes import align, analyse, read_inputs, temporaries
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.plan import Buffer
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView

Tape = tuple[int, ...]
"""Numbers of nodes, in the order in which they run; those behind the graph's own are fetches (`Facts.fetches`)."""

MOVED_PER_MAC = 2.0
"""What reading or writing an element costs in comparison: an operator without MACs is not free."""


@dataclass(frozen=True)
class Takeover:
    """An output that may have an input's bytes, unless these are also of one of `others`."""

    output: int
    source: int
    other_inputs: tuple[int, ...]
    other_outputs: tuple[int, ...]


@dataclass(frozen=True)
class Far:
    """What it costs to take a value to a farther memory, once, and to bring it back, by bytes."""

    store: Callable[[int], float]
    fetch: Callable[[int], float]


@dataclass(frozen=True)
class Facts:
    """A graph by numbers: of nodes and of values, which are inputs and what nodes make. State has none.

    `sizes` are 0 where a value lives in state. `bars` are the nodes that change state which a node reads: it must run
    before them. `once` are those that must not run again. `groups` says which values share bytes as views. Where there
    is a farther memory, `fetches` has by value the node that brings it back, and `stores` what it costs to take it
    there first.
    """

    graph: Graph
    alignment_bytes: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    named: tuple[tuple[int, ...], ...]
    makes: tuple[tuple[int, ...], ...]
    views: tuple[int, ...]
    takeovers: tuple[tuple[Takeover, ...], ...]
    scratch: tuple[int, ...]
    bars: tuple[frozenset[int], ...]
    once: frozenset[int]
    makers: Mapping[int, int]
    groups: tuple[int, ...]
    costs: tuple[float, ...]
    fetches: Mapping[int, int] = field(default_factory=dict)
    stores: Mapping[int, float] = field(default_factory=dict)

    @property
    def whole(self) -> Tape:
        return tuple(range(len(self.graph.nodes)))

    def cost(self, tape: Sequence[int]) -> float:
        """Of all runs and fetches; what is fetched is taken away once, however often it comes back."""
        fetched = {self.makes[node][0] for node in tape if self.is_fetch(node)}
        return sum(self.costs[node] for node in tape) + sum(self.stores[value] for value in fetched)

    def is_fetch(self, node: int) -> bool:
        return node >= len(self.graph.nodes)

    def operand_bytes(self, node: int) -> int:
        """What must be there at once for a node to run, whatever is before and after it."""
        own = {self.groups[v] for v in (*self.reads[node], *self.makes[node])}
        taken = 0
        free = {self.groups[v] for v in self.reads[node]}
        done: set[int] = set()
        for one in self.takeovers[node]:
            group = self.groups[one.source]
            others = {self.groups[v] for v in (*one.other_inputs, *one.other_outputs)}
            if one.output not in done and group in free and group not in others:
                taken += self.sizes[one.output]
                free.discard(group)
                done.add(one.output)
        return sum(max(self.sizes[v] for v in self.members(g)) for g in own) - taken + self.scratch[node]

    def members(self, group: int) -> list[int]:
        return [v for v, own in enumerate(self.groups) if own == group]

    def bound_bytes(self) -> int:
        """What no tape goes below: the operands of one node, and the inputs that something behind it reads."""
        behind: dict[int, set[int]] = {}  # by value: what its readers and all behind them read of the inputs
        most = 0
        for node in reversed(self.whole):
            own: set[int] = set()
            for value in self.makes[node]:
                own |= behind.get(value, set())
            needed = own - set(self.reads[node])
            most = max(most, self.operand_bytes(node) + sum(self.sizes[value] for value in needed))
            read = own | {value for value in self.named[node] if value in self.inputs}
            for value in self.named[node]:
                behind.setdefault(value, set()).update(read)
        return most


def node_cost(graph: Graph, node: Node) -> float:
    """MACs, and what is moved in terms of them: what a flat target has for cycles."""
    moved = sum(graph.types[name].size for name in (*node.inputs, *node.outputs) if name)
    return node_macs(graph, node) + MOVED_PER_MAC * moved


def node_macs(graph: Graph, node: Node) -> int:
    operator = registry.get(node.op)
    return 0 if operator.is_view else sum(nest.macs for nest in operator.nests(NodeView(node, graph.types)))


def facts_of(graph: Graph, alignment_bytes: int, costs: Sequence[float] | None = None) -> Facts:
    """`costs` by node; those of a flat target where there are none."""
    names = [*graph.inputs, *(name for node in graph.nodes for name in node.outputs if name)]
    number = {name: k for k, name in enumerate(names)}
    owner = analyse(graph, alignment_bytes).owner
    state = set(graph.state)
    sizes = [0 if owner[name] in state else align(graph.types[name].size_bytes, alignment_bytes) for name in names]
    scratch = [0] * len(graph.nodes)
    for i, tensor_type in temporaries(graph).values():
        scratch[i] += align(tensor_type.size_bytes, alignment_bytes)

    def numbers(found: Sequence[str]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(number[name] for name in found if name in number))

    views = [_view_source(node, number) for node in graph.nodes]
    groups = list(range(len(names)))
    for node, source in zip(graph.nodes, views, strict=True):
        if source >= 0:
            groups[number[node.outputs[0]]] = groups[source]
    bars = _bars(graph)
    makes = tuple(numbers(node.outputs) for node in graph.nodes)
    return Facts(
        graph,
        alignment_bytes,
        tuple(names),
        tuple(sizes),
        numbers(graph.inputs),
        numbers(graph.outputs),
        tuple(numbers(tuple(read_inputs(graph, node))) for node in graph.nodes),
        tuple(numbers(node.inputs) for node in graph.nodes),
        makes,
        tuple(views),
        tuple(tuple(_takeovers(graph, node, number, sizes)) for node in graph.nodes),
        tuple(scratch),
        bars,
        frozenset(w for own in bars for w in own) | _writers(graph),
        {value: i for i, own in enumerate(makes) for value in own},
        tuple(groups),
        tuple(costs) if costs is not None else tuple(node_cost(graph, node) for node in graph.nodes),
    )


def with_far(facts: Facts, far: Far) -> Facts:
    """The same, where values may also go away and come back."""
    count = len(facts.graph.nodes)
    values = [value for value, size in enumerate(facts.sizes) if size]
    more = len(values)
    return replace(
        facts,
        reads=(*facts.reads, *((),) * more),
        named=(*facts.named, *((value,) for value in values)),
        makes=(*facts.makes, *((value,) for value in values)),
        views=(*facts.views, *(-1,) * more),
        takeovers=(*facts.takeovers, *((),) * more),
        scratch=(*facts.scratch, *(0,) * more),
        bars=(*facts.bars, *(frozenset[int](),) * more),
        costs=(*facts.costs, *(far.fetch(facts.sizes[value]) for value in values)),
        fetches={value: count + k for k, value in enumerate(values)},
        stores={value: far.store(facts.sizes[value]) for value in values},
    )


def _view_source(node: Node, number: Mapping[str, int]) -> int:
    return number.get(node.inputs[0], -1) if registry.get(node.op).is_view else -1


def _takeovers(graph: Graph, node: Node, number: Mapping[str, int], sizes: Sequence[int]) -> list[Takeover]:
    found: list[Takeover] = []
    if registry.get(node.op).is_view:
        return found
    for position, k in registry.get(node.op).in_place(NodeView(node, graph.types)):
        if position >= len(node.outputs) or k >= len(node.inputs):
            continue
        output, source = node.outputs[position], node.inputs[k]
        if output not in number or source not in number or not sizes[number[output]] or not sizes[number[source]]:
            continue
        if graph.types[output].size_bytes != graph.types[source].size_bytes:
            continue
        inputs = tuple(number[name] for j, name in enumerate(node.inputs) if j != k and name in number)
        outputs = tuple(number[name] for name in node.outputs if name in number and name != output)
        found.append(Takeover(number[output], number[source], inputs, outputs))
    return found


def _writers(graph: Graph) -> frozenset[int]:
    """Nodes that change state, and views of what they make."""
    wanted = {value for value, _ in graph.writes}
    found = set()
    for i in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[i]
        if wanted.intersection(filter(None, node.outputs)):
            found.add(i)
            if registry.get(node.op).is_view:
                wanted.add(node.inputs[0])
    return frozenset(found)


def _bars(graph: Graph) -> tuple[frozenset[int], ...]:
    """For each node, those that change what it finds in state, by name or as a view."""
    root = {name: name for name in graph.state}
    makers = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs if name}
    changer = {state: makers[value] for value, state in graph.writes if value in makers}
    found = []
    for i, node in enumerate(graph.nodes):
        if registry.get(node.op).is_view and node.inputs[0] in root:
            root[node.outputs[0]] = root[node.inputs[0]]
        own = {changer[root[name]] for name in node.inputs if name in root and root[name] in changer}
        found.append(frozenset(own - {i}))
    return tuple(found)


@dataclass
class Play:
    """What is alive when, as a tape runs. Versions are numbers: each time a value is made is one.

    Times are positions of the tape plus 1: 0 is before it begins. `roots` are versions that share bytes.
    """

    facts: Facts
    tape: Tape
    alive: list[int] = field(default_factory=list)
    value: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    uses: list[list[int]] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    root_last: list[int] = field(default_factory=list)
    of_value: list[list[int]] = field(default_factory=list)

    @property
    def peak_bytes(self) -> int:
        return max(self.alive, default=0)

    def excess(self, budget_bytes: int) -> tuple[int, int]:
        """How far it is from fitting: the peak, then all that is above the budget."""
        return self.peak_bytes, sum(alive - budget_bytes for alive in self.alive if alive > budget_bytes)

    def root(self, version: int) -> int:
        parent = self.parent
        while parent[version] != version:
            parent[version] = parent[parent[version]]
            version = parent[version]
        return version

    def version_at(self, value: int, time: int) -> int | None:
        """The one that a node at that time finds."""
        versions = self.of_value[value]
        k = bisect_right(versions, time - 1, key=self.first.__getitem__)
        return versions[k - 1] if k else None

    def roots(self) -> dict[int, int]:
        """Versions that have bytes of their own, with how many."""
        size: dict[int, int] = {}
        sizes, parent = self.facts.sizes, self.parent
        for version, value in enumerate(self.value):
            own = sizes[value]
            if own:
                root = version if parent[version] == version else self.root(version)
                if own > size.get(root, 0):
                    size[root] = own
        return size

    def buffers(self) -> Iterator[Buffer]:
        """Bytes, and from when to when they are alive."""
        for root, own in self.roots().items():
            yield Buffer(str(root), own, self.first[root], self.root_last[root])
        for time, node in enumerate(self.tape, 1):
            if self.facts.scratch[node]:
                yield Buffer(f"scratch {time}", self.facts.scratch[node], time, time)

    def new(self, value: int, time: int) -> int:
        version = len(self.value)
        self.value.append(value)
        self.first.append(time)
        self.last.append(time)
        self.uses.append([])
        self.parent.append(version)
        self.of_value[value].append(version)
        return version


def play(facts: Facts, tape: Tape) -> Play | None:
    """None where a node would not find what it reads, or not as it was."""
    found = Play(facts, tape, of_value=[[] for _ in facts.names])
    current = [-1] * len(facts.names)
    for value in facts.inputs:
        current[value] = found.new(value, 0)
    done: set[int] = set()
    sources: list[tuple[int, list[tuple[int, int, list[int]]]]] = []
    uses, last, new = found.uses, found.last, found.new
    for time, node in enumerate(tape, 1):
        if node in facts.once:
            if node in done:
                return None
            done.add(node)
        if facts.bars[node] and not done.isdisjoint(facts.bars[node]):
            return None
        for value in facts.named[node]:
            if current[value] < 0:
                return None
        for value in facts.reads[node]:
            version = current[value]
            uses[version].append(time)
            last[version] = time
        before = {v: current[v] for v in facts.named[node]} if facts.takeovers[node] else current
        for value in facts.makes[node]:
            current[value] = new(value, time)
        if facts.views[node] >= 0:
            made = current[facts.makes[node][0]]
            found.parent[made] = found.root(before[facts.views[node]])
        elif facts.takeovers[node]:
            own = [
                (current[t.output], before[t.source], [before[v] for v in t.other_inputs] +
                 [current[v] for v in t.other_outputs])
                for t in facts.takeovers[node]
            ]  # fmt: skip
            sources.append((time, own))
    end = len(tape) + 1
    for value in facts.outputs:
        if current[value] < 0:
            return None
        uses[current[value]].append(end)
        last[current[value]] = end
    if len(done) < len(facts.once):
        return None
    _take_over(found, sources)
    _count(found, end)
    return found


def _take_over(found: Play, sources: Sequence[tuple[int, list[tuple[int, int, list[int]]]]]) -> None:
    root_last = list(found.last)
    for version, parent in enumerate(found.parent):
        if parent != version:
            root = found.root(version)
            root_last[root] = max(root_last[root], found.last[version])
    for time, pairs in sources:
        settled: set[int] = set()
        for output, source, others in pairs:
            root, own = found.root(source), found.root(output)
            if output in settled or root == own or root_last[root] > time:
                continue
            if any(found.root(other) == root for other in others):
                continue
            found.parent[own] = root
            root_last[root] = max(root_last[root], root_last[own])
            settled.add(output)
    found.root_last = root_last


def _count(found: Play, end: int) -> None:
    change = [0] * (end + 2)
    for root, own in found.roots().items():
        change[found.first[root]] += own
        change[found.root_last[root] + 1] -= own
    scratch = found.facts.scratch
    for time, node in enumerate(found.tape, 1):
        if scratch[node]:
            change[time] += scratch[node]
            change[time + 1] -= scratch[node]
    alive = 0
    for time in range(end + 1):
        alive += change[time]
        found.alive.append(alive)


def graph_of(facts: Facts, tape: Tape) -> Graph:
    """The graph that runs a tape: a node's second run has names of its own. Fetches are the plan's to make."""
    graph = facts.graph
    tape = tuple(node for node in tape if not facts.is_fetch(node))
    if tape == facts.whole:
        return graph
    types = dict(graph.types)
    taken = {node.name for node in graph.nodes}
    seen: set[int] = set()
    latest: dict[str, str] = {}
    nodes = []
    for number in tape:
        node = graph.nodes[number]
        inputs = tuple(latest.get(name, name) for name in node.inputs)
        if number in seen:
            outputs = tuple(_fresh(name, types) if name else "" for name in node.outputs)
            for name, fresh in zip(node.outputs, outputs, strict=True):
                if name:
                    types[fresh] = types[name]
                    latest[name] = fresh
            own = _fresh(node.name, taken)
            taken.add(own)
            nodes.append(replace(node, name=own, inputs=inputs, outputs=outputs))
        else:
            nodes.append(node.with_inputs(inputs))
            for name in node.outputs:
                latest.pop(name, None)
        seen.add(number)
    return _with_outputs(replace(graph, nodes=tuple(nodes), types=types), latest)


def _with_outputs(graph: Graph, latest: Mapping[str, str]) -> Graph:
    """An output is what was made first of it: where another version is the last one, names are swapped."""
    swap = {}
    for name in graph.outputs:
        if name in latest:
            swap[name], swap[latest[name]] = latest[name], name
    if not swap:
        return graph
    nodes = tuple(
        replace(
            node,
            inputs=tuple(swap.get(name, name) for name in node.inputs),
            outputs=tuple(swap.get(name, name) for name in node.outputs),
        )
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


def _fresh(name: str, taken: set[str] | Mapping[str, object]) -> str:
    stem = name.split(".again")[0]
    count = 1
    while f"{stem}.again{count}" in taken:
        count += 1
    return f"{stem}.again{count}"
