"""Pipes: nests on different engines of a block that run at once, one making what the other reads, box by box.

What passes through a pipe lives in a ring of slots and nowhere else. Each block has a ring of its own, in its slice of
a workspace that lies where the value would.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilegrad.ir.workspaces import Workspace

DEPTHS = (1, 2, 4, 8)
MOST_MEMBERS = 3  # nests that run at once: a matrix engine and two vector lanes


@dataclass(frozen=True, slots=True)
class Pipe:
    """From the last nest of launch `producer` to the first one of launch `consumer`, which follows it. `number` is its
    place among the entry's pipes. A slot holds a box, the last one maybe a smaller one, dense."""

    number: int
    value: str
    producer: int
    consumer: int
    depth: int
    slot_bytes: int
    blocks: int  # that have a slice: the most there can be
    alignment_bytes: int = 64  # of what lives in that memory; slots are multiples of it

    @property
    def workspace(self) -> Workspace:
        """A ring in every block, and a guard behind it."""
        ring_bytes = self.depth * self.slot_bytes
        return Workspace(self.value, ring_bytes, self.blocks, self.alignment_bytes, guard_bytes=self.alignment_bytes)


def slot_offset(pipe: Pipe, block: int, count: int) -> int:
    """Where box number `count` of a block lies."""
    return pipe.workspace.offset(block) + count % pipe.depth * pipe.slot_bytes


def groups(pipes: tuple[Pipe, ...]) -> tuple[tuple[int, int], ...]:
    """Launches that run at once, from the first to the last of them."""
    found: list[tuple[int, int]] = []
    for pipe in sorted(pipes, key=lambda one: one.producer):
        if found and found[-1][1] == pipe.producer:
            found[-1] = (found[-1][0], pipe.consumer)
        else:
            found.append((pipe.producer, pipe.consumer))
    return tuple(found)
