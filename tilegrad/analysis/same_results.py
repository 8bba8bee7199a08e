"""Proof that a rewritten graph computes what it did, by code that knows nothing of how it was rewritten.

Values are numbered by what they are: an operator, its attributes and the numbers of its inputs. State is what it was,
or what an update made of it, whichever a node finds. So copies of a node have the same number, and one that reads an
updated parameter, or another value than the node that it stands for, has another. A node that is a part of one on
whole values (analysis/parts.py) makes a part of what that makes, and all parts together are the whole.
"""

from __future__ import annotations

from tilegrad.analysis.parts import part_axis, parts_of, whole_type
from tilegrad.errors import InternalError
from tilegrad.ir.graph import Graph, Node
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView

Number = tuple[object, ...]
_PART = "part"


def expect_same_results(before: Graph, after: Graph) -> None:
    """Every output and every new content of state must be the same computation."""
    found = difference(before, after)
    if found is not None:
        raise InternalError(f"rewritten: {found}", stage="program")


def difference(before: Graph, after: Graph) -> str | None:
    """The first result that is another computation, or cannot be shown to be the same."""
    table: dict[Number, int] = {}
    old, new = (_Numbering(graph, table).found for graph in (before, after))
    wanted = {**{name: name for name in before.outputs}, **{state: value for value, state in before.writes}}
    found = {**{name: name for name in after.outputs}, **{state: value for value, state in after.writes}}
    if wanted.keys() != found.keys():
        missing = sorted(wanted.keys() ^ found.keys())
        return f"'{missing[0]}' is not made by both"
    for name, value in wanted.items():
        if old[value] != new[found[name]]:
            known = {*old.values(), *(number for what, number in table.items() if what[0] in ("state", "input"))}
            known |= {number for what, number in table.items() if what[0] == _PART and what[1] in known}
            # The first node that makes what the other graph never makes.
            others = (node.name for node in after.nodes if any(o and new[o] not in known for o in node.outputs))
            return f"'{name}' is another value, first at node '{next(others, 'the last')}'"
    return None


class _Numbering:
    """`found` by value, and by tensor of the state, which is what was last made of it. A part of a value is numbered as
    such: of what, and which. `table` numbers what was seen, in this graph or another."""

    def __init__(self, graph: Graph, table: dict[Number, int]) -> None:
        self.graph = graph
        self.table = table
        self.parts: dict[int, tuple[int, int, int]] = {}  # of which number, which part, of how many
        self.found = {name: self.number(("state", name)) for name in graph.state}
        self.found |= {name: self.number(("input", name)) for name in graph.inputs}
        becomes = dict(graph.writes)
        for node in graph.nodes:
            self.see(node)
            for output in node.outputs:
                if output in becomes:
                    self.found[becomes[output]] = self.found[output]

    def number(self, what: Number) -> int:
        found = self.table.setdefault(what, len(self.table))
        if what[0] == _PART:
            self.parts[found] = what[1:]  # type: ignore[assignment]
        return found

    def see(self, node: Node) -> None:
        inputs = tuple(self.found[name] if name else None for name in node.inputs)
        whole = self._part_of(node, inputs)
        if whole is not None:
            (output,) = node.outputs
            self.found[output] = whole
            return
        part = self._as_part(node, inputs)
        if part is not None:
            k, count = part
            inputs = tuple(self.parts[i][0] if i in self.parts else i for i in inputs)
        attributes = tuple(sorted((key, repr(value)) for key, value in node.attributes.items()))
        is_made = tuple(bool(output) for output in node.outputs)
        for position, output in enumerate(node.outputs):
            if output:
                own = self.number((node.op, attributes, inputs, is_made, position))
                self.found[output] = own if part is None else self.number((_PART, own, k, count))

    def _part_of(self, node: Node, inputs: tuple[int | None, ...]) -> int | None:
        """What a Slice takes of a value, where it is a part, and what a Concat of all parts is."""
        if node.op == "Slice" and len(node.inputs) == 1 and inputs[0] is not None:
            found = self._slice_of(node)
            return None if found is None else self.number((_PART, inputs[0], *found))
        if node.op == "Concat" and all(i in self.parts for i in inputs):
            own = [self.parts[i] for i in inputs if i is not None]
            d = part_axis(self.graph.types[node.outputs[0]].shape)
            if own == [(own[0][0], k, len(own)) for k in range(len(own))] and node.attributes.get("axis") == d:
                return own[0][0]
        return None

    def _slice_of(self, node: Node) -> tuple[int, int] | None:
        shape, taken = (self.graph.types[name].shape for name in (node.inputs[0], node.outputs[0]))
        d = part_axis(shape)
        if d is None or not taken[d] or shape[d] % taken[d] or taken[d] in (1, shape[d]):
            return None
        start = node.attributes.get("starts")
        same = node.attributes.get("axes") == (d,) and node.attributes.get("steps") == (1,)
        if not same or not isinstance(start, tuple) or int(start[0]) % taken[d]:
            return None
        return int(start[0]) // taken[d], shape[d] // taken[d]

    def _as_part(self, node: Node, inputs: tuple[int | None, ...]) -> tuple[int, int] | None:
        """Which part of how many, where the node is a part of one on the whole values."""
        which = {self.parts[i][1:] for i in inputs if i in self.parts}
        if len(which) != 1:
            return None
        ((k, count),) = which
        types = dict(self.graph.types)
        cut = {name for name, i in zip(node.inputs, inputs, strict=True) if i in self.parts}
        for name in (*cut, *filter(None, node.outputs)):
            if part_axis(types[name].shape) is None:
                return None
            types[name] = whole_type(types[name], count)
        whole, part = NodeView(node, types), NodeView(node, self.graph.types)
        found = parts_of(whole, part, count)
        unread = registry.get(node.op).unread_inputs(part)
        own = {name for position, name in enumerate(node.inputs) if position not in unread and name in cut}
        return (k, count) if found is not None and {node.inputs[i] for i in found} == own else None
