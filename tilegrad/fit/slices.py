"""Below the operands of one operator: a chain that is computed and used a few channels at a time.

Around the operator that needs most at once, what makes and reads its large values becomes a group. Each part of it runs
from the group's small inputs to its small outputs before the next one begins, so that of the large values only a part
is ever there; those that others read, too, are computed again. Each node of a part is the same kernel on a range of a
parallel axis (`analysis/parts.py`), so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tilegrad.analysis.lifetimes import read_inputs
from tilegrad.analysis.parts import part_axis, part_type, parts_of
from tilegrad.analysis.same_results import difference
from tilegrad.analysis.verify import verify_graph
from tilegrad.errors import UserError
from tilegrad.fit.tape import Facts, facts_of
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.nest import Nest
from tilegrad.ir.types import TensorType
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView

COUNTS = (2, 4, 8, 16)
MOST_GROUPS = 6
LARGE_SHARE = 0.5
"""Of the largest operand: what is larger than that is not to be there whole."""


def sliced(graph: Graph, budget_bytes: int, alignment_bytes: int) -> Graph:
    """The graph with groups in parts until the operands of each node are within the budget, as far as that goes."""
    start, failed = graph, set[str]()
    for _ in range(MOST_GROUPS):
        facts = facts_of(graph, alignment_bytes, costs=())
        sizes = {i: facts.operand_bytes(i) for i in facts.whole if graph.nodes[i].name not in failed}
        seed = max(sizes, key=sizes.__getitem__, default=None)
        if seed is None or sizes[seed] <= budget_bytes:
            break
        better = _best(graph, facts, seed, sizes[seed], budget_bytes, alignment_bytes)
        if better is None or difference(start, better) is not None:  # parts of parts, which no proof covers
            failed.add(graph.nodes[seed].name)
        else:
            graph = better
    return graph


def _best(
    graph: Graph, facts: Facts, seed: int, size_bytes: int, budget_bytes: int, alignment_bytes: int
) -> Graph | None:
    """With as few parts as bring the group under the budget, or else as many as help."""
    found, least = None, size_bytes
    for count in COUNTS:
        group = _group(graph, facts, seed, count)
        if group is None:
            continue
        made = _in_parts(graph, group)
        own = facts_of(made, alignment_bytes, costs=())
        known = {node.name for node in graph.nodes}
        most = max(own.operand_bytes(i) for i in own.whole if made.nodes[i].name not in known)
        if most < least:
            found, least = made, most
        if most + _beside_bytes(facts, group) <= budget_bytes:
            break
    return found


def _beside_bytes(facts: Facts, group: _Group) -> int:
    """What is there whole while parts are made: what they are cut from."""
    made = {v for i in group.nodes for v in facts.makes[i]}
    return sum(facts.sizes[v] for v in {v for i in group.nodes for v in facts.reads[i]} - made)


@dataclass(frozen=True)
class _Group:
    """Nodes by number, in order; `copies` stay where they are, too. `parts` are the positions of inputs of which parts
    of a node have parts, `kinds` the types of these, by value."""

    count: int
    nodes: tuple[int, ...]
    copies: frozenset[int]
    parts: Mapping[int, frozenset[int]]
    kinds: Mapping[str, TensorType]


def _group(graph: Graph, facts: Facts, seed: int, count: int) -> _Group | None:
    large = LARGE_SHARE * max(facts.sizes[v] for v in (*facts.reads[seed], *facts.makes[seed]))
    readers: dict[str, list[int]] = {}
    for i, node in enumerate(graph.nodes):
        for name in dict.fromkeys(read_inputs(graph, node)):
            readers.setdefault(name, []).append(i)

    def large_of(values: tuple[int, ...]) -> Iterator[int]:
        return (v for v in values if facts.sizes[v] > large and v not in facts.inputs)

    below, pending = {seed}, [seed]
    while pending:
        for value in large_of(facts.makes[pending.pop()]):
            if value in facts.outputs:
                return None
            new = set(readers.get(facts.names[value], ())) - below
            below |= new
            pending += sorted(new)
    above, pending = set[int](), sorted(below)
    while pending:
        for value in large_of(facts.reads[pending.pop()]):
            maker = facts.makers[value]
            if maker not in below and maker not in above:
                above.add(maker)
                pending.append(maker)
    nodes = tuple(sorted(below | above))
    if any(i in facts.once for i in nodes):
        return None
    own = set(nodes)
    copies = set[int]()  # what stays where it is needs what it reads there
    for i in sorted(above, reverse=True):
        if any(r not in own or r in copies for v in facts.makes[i] for r in readers.get(facts.names[v], ())):
            copies.add(i)
    return _typed(graph, facts, nodes, frozenset(copies), count) if _can_stand_together(facts, nodes, copies) else None


def _can_stand_together(facts: Facts, nodes: tuple[int, ...], copies: set[int]) -> bool:
    """Where the last one is: nothing in between reads what the group makes, no state that it reads has changed."""
    last = max(i for i in nodes if i not in copies)
    made = {v for i in nodes if i not in copies for v in facts.makes[i]}
    between = (i for i in range(min(nodes), last) if i not in nodes)
    return not any(made.intersection(facts.named[i]) for i in between) and not any(
        changer < last for i in nodes for changer in facts.bars[i]
    )


def _typed(
    graph: Graph, facts: Facts, nodes: tuple[int, ...], copies: frozenset[int], count: int
) -> _Group | None:
    kinds: dict[str, TensorType] = {}
    parts: dict[int, frozenset[int]] = {}
    for i in nodes:
        own = _parts(graph, graph.nodes[i], count)
        if own is None:
            return None
        parts[i] = own
        for name in (*(graph.nodes[i].inputs[k] for k in own), *filter(None, graph.nodes[i].outputs)):
            kind = part_type(graph.types[name], count)
            if kind is None:
                return None
            kinds[name] = kind
    made = {facts.names[v] for i in nodes for v in facts.makes[i]}
    for i in nodes:  # what is there in parts only cannot be read whole
        whole = [name for k, name in enumerate(graph.nodes[i].inputs) if k not in parts[i] and name in made]
        if whole and any(name in read_inputs(graph, graph.nodes[i]) for name in whole):
            return None
    return _Group(count, nodes, copies, parts, kinds)


def _parts(graph: Graph, node: Node, count: int) -> frozenset[int] | None:
    """What a part of a node would have parts of, if there is such a thing."""
    operator = registry.get(node.op)
    whole = NodeView(node, graph.types)
    if operator.is_view:
        return None
    cut = {name for nest in operator.typed_nests(whole) for name in _cut_values(nest)}
    kinds = dict(graph.types)
    for name in (*node.inputs, *node.outputs):
        if name and (name in cut or name in node.outputs or name not in _operands(operator.typed_nests(whole))):
            kind = part_type(graph.types[name], count)
            if kind is None and name in cut:
                return None
            kinds[name] = kind if kind is not None else graph.types[name]
    part = NodeView(node, kinds)
    try:
        inferred = operator.infer(part)
    except UserError:
        return None
    if any(name and inferred[k] != kinds[name] for k, name in enumerate(node.outputs)):
        return None
    found = parts_of(whole, part, count)
    if found is None:
        return None
    unread = {
        k for k, name in enumerate(node.inputs) if name and k not in found and kinds[name] != graph.types[name]
    }
    return found | unread


def _operands(nests: tuple[Nest, ...]) -> set[str]:
    return {operand.value for nest in nests for operand in nest.present if operand.value is not None}


def _cut_values(nest: Nest) -> Iterator[str]:
    """The operands that the axis of the first result's first dimension cuts."""
    result = nest.results[0]
    d = part_axis(result.shape)
    if d is None or result.index is None or len(result.index[d].terms) != 1:
        return
    axis = result.index[d].terms[0][0]
    for operand in nest.present:
        if operand.index is not None and any(index.coefficient(axis) for index in operand.index):
            assert operand.value is not None
            yield operand.value


def _in_parts(graph: Graph, group: _Group) -> Graph:
    """The graph with a group's parts one after the other, where its last node was."""
    types = dict(graph.types)
    own = set(group.nodes)
    made = {name for i in group.nodes for name in graph.nodes[i].outputs if name}
    last = max(i for i in group.nodes if i not in group.copies)
    tag = next(t for t in (f".in{k}" for k in range(len(graph.nodes) + 1)) if not any(t in n for n in types))
    block: list[Node] = []
    for k in range(group.count):
        block += _one_part(graph, group, made, types, k, tag)
    outside = {name for i, n in enumerate(graph.nodes) if i not in own or i in group.copies for name in n.inputs}
    outside |= {*graph.outputs, *(value for value, _ in graph.writes)}
    for i in group.nodes:
        for name in graph.nodes[i].outputs if i not in group.copies else ():
            if name and name in outside:
                parts = tuple(f"{name}{tag}.part{k}" for k in range(group.count))
                axis = part_axis(graph.types[name].shape)
                assert axis is not None
                block.append(Node(f"{name}{tag}.whole", "Concat", parts, (name,), {"axis": axis}))
    kept = [node for i, node in enumerate(graph.nodes) if i not in own or i in group.copies]
    before = sum(1 for i in range(last) if i not in own or i in group.copies)
    return verify_graph(replace(graph, nodes=(*kept[:before], *block, *kept[before:]), types=types))


def _one_part(
    graph: Graph, group: _Group, made: set[str], types: dict[str, TensorType], k: int, tag: str
) -> Iterator[Node]:
    cut: set[str] = set()
    for i in group.nodes:
        node = graph.nodes[i]
        inputs = list(node.inputs)
        for position in sorted(group.parts[i]):
            name = node.inputs[position]
            inputs[position] = f"{name}{tag}.part{k}"
            if name not in made and name not in cut:
                cut.add(name)
                yield _slice(graph, group, name, inputs[position], k)
                types[inputs[position]] = group.kinds[name]
        outputs = tuple(f"{name}{tag}.part{k}" if name else "" for name in node.outputs)
        for name, part in zip(node.outputs, outputs, strict=True):
            if name:
                types[part] = group.kinds[name]
        yield replace(node, name=f"{node.name}{tag}.part{k}", inputs=tuple(inputs), outputs=outputs)


def _slice(graph: Graph, group: _Group, name: str, part: str, k: int) -> Node:
    axis = part_axis(graph.types[name].shape)
    assert axis is not None
    length = group.kinds[name].shape[axis]
    attributes = {"starts": (k * length,), "ends": ((k + 1) * length,), "axes": (axis,), "steps": (1,)}
    return Node(f"{part}.slice", "Slice", (name,), (part,), attributes)
