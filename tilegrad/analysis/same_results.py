"""Proof that a rewritten graph computes what it did, by code that knows nothing of how it was rewritten.

Values are numbered by what they are: an operator, its attributes and the numbers of its inputs. State is what it was,
or what an update made of it, whichever a node finds. So copies of a node have the same number, and one that reads an
updated parameter, or another value than the node that it stands for, has another.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilegrad.errors import InternalError
from tilegrad.ir.graph import Graph

Number = tuple[object, ...]


def expect_same_results(before: Graph, after: Graph) -> None:
    """Every output and every new content of state must be the same computation."""
    table: dict[Number, int] = {}
    old, new = _numbers(before, table), _numbers(after, table)
    wanted = {**{name: name for name in before.outputs}, **{state: value for value, state in before.writes}}
    found = {**{name: name for name in after.outputs}, **{state: value for value, state in after.writes}}
    if wanted.keys() != found.keys():
        missing = sorted(wanted.keys() ^ found.keys())
        raise InternalError(f"rewritten: '{missing[0]}' is not made by both", stage="program")
    for name, value in wanted.items():
        if old[value] != new[found[name]]:
            node = _first_other(after, new, set(old.values()))
            raise InternalError(f"rewritten: '{name}' is another value, first at node '{node}'", stage="program")


def _numbers(graph: Graph, table: dict[Number, int]) -> dict[str, int]:
    """By value. `table` numbers what was seen, in this graph or another."""

    def number(what: Number) -> int:
        return table.setdefault(what, len(table))

    becomes = dict(graph.writes)
    current = {name: number(("state", name)) for name in graph.state}
    found = {name: number(("input", name)) for name in graph.inputs}
    for node in graph.nodes:
        attributes = tuple(sorted((key, repr(value)) for key, value in node.attributes.items()))
        inputs = tuple(_input(name, found, current) for name in node.inputs)
        is_made = tuple(bool(output) for output in node.outputs)
        for position, output in enumerate(node.outputs):
            if output:
                found[output] = number((node.op, attributes, inputs, is_made, position))
        for output in node.outputs:
            if output in becomes:
                current[becomes[output]] = found[output]
    return found


def _input(name: str, found: Mapping[str, int], current: Mapping[str, int]) -> int | None:
    return None if not name else found[name] if name in found else current[name]


def _first_other(graph: Graph, numbers: Mapping[str, int], known: set[int]) -> str:
    """The first node that makes what the other graph never makes."""
    return next(
        (node.name for node in graph.nodes if any(o and numbers[o] not in known for o in node.outputs)), "the last"
    )
