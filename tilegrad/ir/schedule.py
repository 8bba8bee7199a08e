"""A schedule: a program's operators as launches of nests on a target.

A launch is (blocks, engine, nests): today one block and the cores; several blocks and other engines fit the type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.nest import Nest
from tilegrad.ir.program import Program
from tilegrad.targets.base import Target


@dataclass(frozen=True)
class Launch:
    """One operator. Its nests run in order with a barrier after each; each nest is one call on whole operands."""

    node: Node
    nests: tuple[Nest, ...]
    blocks: int = 1
    engine: str = "cores"


@dataclass(frozen=True)
class EntrySchedule:
    graph: Graph
    launches: tuple[Launch, ...]


@dataclass(frozen=True)
class Schedule:
    program: Program
    target: Target
    entries: Mapping[str, EntrySchedule]

    def macs(self, entry: str) -> int:
        return sum(nest.macs for launch in self.entries[entry].launches for nest in launch.nests)
