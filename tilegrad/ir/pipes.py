"""Pipes: nests on different engines of a block that run at once, one making what the other reads, box by box.

What passes through a pipe lives in a ring of slots and nowhere else. Each block has a ring of its own, or one for each
lane of a side that has several, which boxes take in turn. Rings lie in the block's slice of a workspace that is where
the value would be; or, where engines share their L1, in the producer's part of that, and then results are made in a
slot and read there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilegrad.ir.workspaces import Workspace

DEPTHS = (1, 2, 4, 8)
MOST_MEMBERS = 4  # nests that run at once
MOST_WORKERS = 8  # lanes of a block that do (TG_MOST_MEMBERS of runtime/cluster/tg_tile.h)


@dataclass(frozen=True, slots=True)
class Pipe:
    """From the last nest of launch `producer` to the first one of launch `consumer`, which comes behind it. `number` is
    its place among the entry's pipes. A slot holds a box, the last one maybe a smaller one, dense."""

    number: int
    value: str
    producer: int
    consumer: int
    depth: int
    slot_bytes: int
    blocks: int  # that have a slice: the most there can be
    alignment_bytes: int = 64  # of what lives in that memory; slots are multiples of it
    lanes: int = 1  # rings of a block: box number i goes through ring i % lanes
    near_lanes: int = 0  # of rings in L1: lanes of the producer, among which they are spread; 0: in shared memory

    @property
    def is_near(self) -> bool:
        return self.near_lanes > 0

    @property
    def ring_bytes(self) -> int:
        return self.depth * self.slot_bytes

    @property
    def workspace(self) -> Workspace:
        """In shared memory: rings of every block, and a guard behind each."""
        alignment = self.alignment_bytes
        return Workspace(self.value, self.ring_bytes, self.blocks, alignment, guard_bytes=alignment, lanes=self.lanes)

    @property
    def shared_bytes(self) -> int:
        return 0 if self.is_near else self.workspace.size_bytes


def slot_offset(pipe: Pipe, block: int, ring: int, count: int) -> int:
    """Where box number `count` of a block's ring lies in its memory; in L1, behind the first of the producer's lane."""
    start = ring // pipe.near_lanes * pipe.ring_bytes if pipe.is_near else pipe.workspace.offset(block, ring)
    return start + count % pipe.depth * pipe.slot_bytes


def groups(pipes: Iterable[Pipe]) -> tuple[tuple[int, int], ...]:
    """Launches that run at once, from the first to the last of them."""
    found: list[tuple[int, int]] = []
    for pipe in sorted(pipes, key=lambda one: one.producer):
        if found and pipe.producer <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], pipe.consumer))
        else:
            found.append((pipe.producer, pipe.consumer))
    return tuple(found)
