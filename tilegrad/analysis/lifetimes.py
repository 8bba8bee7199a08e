"""Which values share bytes, and from when to when those bytes are alive.

Aliasing is decided here and nowhere else: a view shares its input's bytes; an output takes over an input that dies
with it, where its operator allows; a value written to state lives at the state's own address.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tilegrad.errors import InternalError
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.plan import Buffer
from tilegrad.ir.types import Number, TensorType
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView


@dataclass(frozen=True)
class Lifetimes:
    """`owner` maps each value to the buffer (or state tensor) that holds it."""

    buffers: tuple[Buffer, ...]
    owner: Mapping[str, str]


class _Aliases:
    """Values that share bytes, as disjoint sets; a set that contains a state tensor is led by it."""

    def __init__(self, state: tuple[str, ...]) -> None:
        self.parent: dict[str, str] = {}
        self.state = set(state)

    def find(self, value: str) -> str:
        root = value
        while (above := self.parent.get(root, root)) != root:
            root = above
        while (above := self.parent.get(value, root)) != root:  # so that the next time is one step
            self.parent[value] = root
            value = above
        return root

    def join(self, value: str, onto: str) -> None:
        self.parent[self.find(value)] = self.find(onto)


def align(size_bytes: Number | int, alignment_bytes: int) -> Number | int:
    return -(-size_bytes // alignment_bytes) * alignment_bytes


def peak_of(buffers: Iterable[Buffer]) -> tuple[int, int]:
    """The most bytes that are alive at once, and when: no allocation can be smaller."""
    changes: dict[int, int] = {}
    for buffer in buffers:
        changes[buffer.first] = changes.get(buffer.first, 0) + buffer.size_bytes
        changes[buffer.last + 1] = changes.get(buffer.last + 1, 0) - buffer.size_bytes
    peak = alive = where = 0
    for time in sorted(changes):
        alive += changes[time]
        if alive > peak:
            peak, where = alive, time
    return peak, where


def temporaries(graph: Graph) -> dict[str, tuple[int, TensorType]]:
    """Operators' scratch tensors: name to (launch, type)."""
    found = {}
    for i, node in enumerate(graph.nodes):
        view = NodeView(node, graph.types)
        for k, tensor_type in enumerate(registry.get(node.op).temporaries(view)):
            found[view.temporary(k)] = (i, tensor_type)
    return found


def read_inputs(graph: Graph, node: Node) -> Iterator[str]:
    """The values whose bytes a node needs."""
    unread = registry.get(node.op).unread_inputs(NodeView(node, graph.types))
    return (name for k, name in enumerate(node.inputs) if name and k not in unread)


def analyse(graph: Graph, alignment_bytes: int, apart: frozenset[str] = frozenset()) -> Lifetimes:
    """Nothing takes over the bytes of what is kept `apart`."""
    first, last = dict.fromkeys(graph.inputs, -1), dict.fromkeys(graph.inputs, -1)
    for i, node in enumerate(graph.nodes):
        for name in read_inputs(graph, node):
            last[name] = i
        for name in filter(None, node.outputs):
            first[name] = i
            last.setdefault(name, i)
    last |= dict.fromkeys(graph.outputs, len(graph.nodes))

    aliases = _Aliases(graph.state)
    for node in graph.nodes:
        if registry.get(node.op).is_view:
            aliases.join(node.outputs[0], node.inputs[0])
    _join_state_writes(graph, aliases, last)
    members: dict[str, list[str]] = {}
    for name in first:
        members.setdefault(aliases.find(name), []).append(name)
    _join_in_place(graph, aliases, members, last, apart)

    buffers = []
    for root, names in members.items():
        if root in aliases.state:
            continue
        size_bytes = align(max(graph.types[name].size_bytes for name in names), alignment_bytes)
        span = min(first[name] for name in names), max(last[name] for name in names)
        buffers.append(Buffer(names[0], size_bytes, *span, tuple(names)))
    for name, (i, tensor_type) in temporaries(graph).items():
        buffers.append(Buffer(name, align(tensor_type.size_bytes, alignment_bytes), i, i, (name,)))
    owner = {member: buffer.name for buffer in buffers for member in buffer.members}
    for name in first:
        if aliases.find(name) in aliases.state:
            owner[name] = aliases.find(name)
    return Lifetimes(tuple(buffers), owner)


def _join_state_writes(graph: Graph, aliases: _Aliases, last: Mapping[str, int]) -> None:
    """A value written to state must be able to live there: nothing may still need the old content."""
    producer = {name: (i, node) for i, node in enumerate(graph.nodes) for name in node.outputs if name}
    last_read: dict[str, int] = {}  # of any value in a set, by the set's root
    for name in graph.types:
        root = aliases.find(name)
        last_read[root] = max(last_read.get(root, -1), last.get(name, -1))
    for value, state in graph.writes:
        written = value  # what puts the bytes there is not a view of them
        while written in producer and registry.get(producer[written][1].op).is_view:
            written = producer[written][1].inputs[0]
        if written not in producer or aliases.find(value) in aliases.state:
            raise InternalError(f"'{value}' has a place of its own and cannot become state '{state}'")
        i, node = producer[written]
        root = aliases.find(state)
        read_later = last_read[root] > i
        reads_itself = [k for k, name in enumerate(node.inputs) if name and aliases.find(name) == root]
        allowed = registry.get(node.op).in_place(NodeView(node, graph.types))
        position = node.outputs.index(written)
        if read_later or any((position, k) not in allowed for k in reads_itself):
            raise InternalError(f"'{value}' cannot be written over state '{state}' at node '{node.name}'")
        last_read[root] = max(last_read[root], last_read[aliases.find(value)])
        aliases.join(value, state)


def _join_in_place(
    graph: Graph, aliases: _Aliases, members: dict[str, list[str]], last: Mapping[str, int], apart: frozenset[str]
) -> None:
    """Lets an output take over an input that dies at its node."""
    last_use = {root: max(last[name] for name in names) for root, names in members.items()}
    for i, node in enumerate(graph.nodes):
        operator = registry.get(node.op)
        if operator.is_view:
            continue
        settled: set[int] = set()  # an output takes over one input at most
        for position, k in operator.in_place(NodeView(node, graph.types)):
            if position in settled or position >= len(node.outputs) or k >= len(node.inputs):
                continue
            output, source = node.outputs[position], node.inputs[k]
            if not output or not source:
                continue
            root, own_root = aliases.find(source), aliases.find(output)
            if root in aliases.state or own_root in aliases.state or root == own_root:
                continue
            if not apart.isdisjoint(members[root]):
                continue
            if graph.types[output].size_bytes != graph.types[source].size_bytes:
                continue
            others = [name for j, name in enumerate(node.inputs) if j != k and name]
            others += [name for name in node.outputs if name and name != output]
            if any(aliases.find(name) == root for name in others):
                continue
            if last_use[root] > i:
                continue
            members[root] += members.pop(own_root)
            last_use[root] = max(last_use[root], last_use[own_root])
            aliases.join(output, source)
            settled.add(position)
