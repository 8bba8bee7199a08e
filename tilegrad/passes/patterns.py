"""A graph in which patterns are looked for and replaced: what the passes share that put operators together."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import isclose

from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import DType
from tilegrad.passes.canonicalize import remove_dead_code

# A polynomial in x and in the transcendental function s of x: {(power of x, power of s): coefficient}.
Polynomial = dict[tuple[int, int], float]

_RELATIVE_TOLERANCE = 1e-4  # exporters round sqrt(2) and friends to float32, and some write 0.0447
_MAX_DEGREE = 3
_SEARCH_DEPTH = 6


def _key(node: Node) -> str:
    """A value has one producer, so that an output's name is its node's."""
    return next(filter(None, node.outputs))


class Patterns:
    """Questions about a graph, and replacements in it, each of which costs what it changes and not a whole graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.constants, self.types = dict(graph.constants), dict(graph.types)
        self.producers = graph.producers()
        self.consumers = graph.consumers()
        self._nodes = {_key(node): node for node in graph.nodes}
        self._place = {key: position for position, key in enumerate(self._nodes)}
        self._kept = {*graph.outputs, *(value for value, _ in graph.writes)}
        self._is_changed = False

    def __contains__(self, node: Node) -> bool:
        """Whether it is still there."""
        return self._nodes.get(_key(node)) is node

    def is_output(self, value: str) -> bool:
        return value in self._kept

    def replace(self, old: Node, new: Node) -> None:
        """Puts a node with the same outputs in another's place; what nobody needs any more is dropped."""
        self._is_changed = True
        self._nodes[_key(old)] = new
        self.producers.update({name: new for name in new.outputs if name})
        self._forget_reader(old)
        for name in dict.fromkeys(filter(None, new.inputs)):
            insort(self.consumers.setdefault(name, []), new, key=self._position)
        self._drop_unread(old.inputs)

    def finish(self) -> Graph:
        if not self._is_changed:
            return self.graph
        nodes = tuple(self._nodes.values())
        return remove_dead_code(replace(self.graph, nodes=nodes, constants=self.constants, types=self.types))

    def _position(self, node: Node) -> int:
        return self._place[_key(node)]

    def _forget_reader(self, node: Node) -> None:
        for name in dict.fromkeys(filter(None, node.inputs)):
            readers = self.consumers[name]
            del readers[bisect_left(readers, self._position(node), key=self._position)]

    def _drop_unread(self, values: Iterable[str]) -> None:
        pending = list(values)
        while pending:
            node = self.producers.get(pending.pop())
            if node is None or any(name in self._kept or self.consumers.get(name) for name in node.outputs if name):
                continue
            del self._nodes[_key(node)]
            for name in filter(None, node.outputs):
                del self.producers[name]
            self._forget_reader(node)
            pending += node.inputs

    def scalar(self, value: str) -> float | None:
        """A constant of one element."""
        constant = self.constants.get(value)
        if constant is None or constant.array.size != 1 or constant.type.dtype is not DType.F32:
            return None
        return float(constant.array.reshape(-1)[0])

    def ancestors(self, value: str) -> Iterator[str]:
        """What a value may be a polynomial of: the nearest candidates first."""
        layer = [value]
        seen: set[str] = set()
        for _ in range(_SEARCH_DEPTH):
            following: list[str] = []
            for name in layer:
                if name in seen or not name or name in self.constants:
                    continue
                seen.add(name)
                yield name
                node = self.producers.get(name)
                if node is not None and node.op in ("Add", "Sub", "Mul", "Div", "Pow"):
                    following += node.inputs
            layer = following

    def descendants(self, node: Node) -> Iterator[Node]:
        """Arithmetic that follows, the farthest last."""
        layer = [node]
        for _ in range(_SEARCH_DEPTH):
            readers = (reader for origin in layer for reader in self.consumers.get(origin.outputs[0], []))
            found = {_key(reader): reader for reader in readers if reader.op in ("Add", "Mul", "Div", "Sub")}
            layer = list(found.values())
            yield from layer

    def equals(self, value: str, atoms: dict[str, tuple[int, int]], wanted: Polynomial) -> bool:
        found = self.polynomial(value, atoms)
        return (
            found is not None
            and found.keys() == wanted.keys()
            and all(isclose(found[key], wanted[key], rel_tol=_RELATIVE_TOLERANCE) for key in wanted)
        )

    def polynomial(self, value: str, atoms: dict[str, tuple[int, int]]) -> Polynomial | None:
        """A value as a polynomial of the atoms, or None where it is none."""
        return self._polynomial(value, atoms, 0, {})

    def _polynomial(
        self, value: str, atoms: dict[str, tuple[int, int]], depth: int, known: dict[tuple[str, int], Polynomial | None]
    ) -> Polynomial | None:
        """`known` holds what was found for a value at a depth: a value that is read twice is looked at once."""
        if (value, depth) not in known:
            known[value, depth] = self._looked_at(value, atoms, depth, known)
        return known[value, depth]

    def _looked_at(
        self, value: str, atoms: dict[str, tuple[int, int]], depth: int, known: dict[tuple[str, int], Polynomial | None]
    ) -> Polynomial | None:
        if value in atoms:
            return {atoms[value]: 1.0}
        number = self.scalar(value)
        if number is not None:
            return {(0, 0): number}
        node = self.producers.get(value)
        if node is None or depth > 2 * _SEARCH_DEPTH or len(node.inputs) != 2:
            return None
        if node.op not in ("Add", "Sub", "Mul", "Div", "Pow"):
            return None
        left, right = (self._polynomial(name, atoms, depth + 1, known) for name in node.inputs)
        if left is None or right is None:
            return None
        return _combine(node.op, left, right)


def _combine(op: str, left: Polynomial, right: Polynomial) -> Polynomial | None:
    number = right.get((0, 0)) if right.keys() == {(0, 0)} else None
    if op in ("Add", "Sub"):
        sign = 1.0 if op == "Add" else -1.0
        return {key: left.get(key, 0.0) + sign * right.get(key, 0.0) for key in left | right}
    if op == "Mul":
        return _product(left, right)
    if number is None:
        return None
    if op == "Div":
        return {key: coefficient / number for key, coefficient in left.items()} if number else None
    if number not in (1.0, 2.0, 3.0):
        return None
    power: Polynomial | None = {(0, 0): 1.0}
    for _ in range(int(number)):
        power = None if power is None else _product(power, left)
    return power


def _product(left: Polynomial, right: Polynomial) -> Polynomial | None:
    result: Polynomial = {}
    for (a, b), first in left.items():
        for (c, d), second in right.items():
            if a + c > _MAX_DEGREE or b + d > 1:
                return None
            result[a + c, b + d] = result.get((a + c, b + d), 0.0) + first * second
    return result
