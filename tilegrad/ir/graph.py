"""The graph: operators over named, fully typed tensors, in an order that can be executed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from tilegrad.ir.types import Constant, TensorType

Attribute: TypeAlias = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | Constant


@dataclass(frozen=True)
class Node:
    """One operator. An absent optional input, or an output nobody asked for, is the empty name."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def with_inputs(self, inputs: tuple[str, ...]) -> Node:
        return self if inputs == self.inputs else replace(self, inputs=inputs)


@dataclass(frozen=True, repr=False)
class Graph:
    """Single assignment: each value is an input, a constant, a state tensor or one node's output.

    `inputs` are fed at each call. `state` are the names that outlive a call (parameters, gradients, optimizer state);
    `writes` says which value becomes which state tensor's new content when the call ends. A model fresh from the
    frontend has `constants` (its initializers) and no state; a program's entry graphs have both.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, Constant] = field(default_factory=dict)
    state: tuple[str, ...] = ()
    writes: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        """Short: `format_graph` has the nodes."""
        ports = [", ".join(names[:3]) + (", …" if len(names) > 3 else "") for names in (self.inputs, self.outputs)]
        sizes = f"{len(self.nodes):,} nodes, {len(self.state):,} tensors of state"
        return f"<Graph '{self.name}': ({ports[0]}) -> ({ports[1]}), {sizes}>"

    def type_of(self, value: str) -> TensorType:
        return self.types[value]

    def producers(self) -> dict[str, Node]:
        return {output: node for node in self.nodes for output in node.outputs if output}

    def consumers(self) -> dict[str, list[Node]]:
        """Readers of each value, in execution order; a node that reads a value twice appears once."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(filter(None, node.inputs)):
                readers.setdefault(name, []).append(node)
        return readers

    def values(self) -> Iterator[str]:
        yield from self.inputs
        yield from self.constants
        yield from self.state
        for node in self.nodes:
            yield from filter(None, node.outputs)
