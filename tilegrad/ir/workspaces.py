"""Workspaces: scratch that each block of a launch needs in shared memory, as one buffer with a slice for each.

Whoever needs one says how many bytes a block needs; where slices begin is said here, once. Emitted code multiplies a
block's number by the same stride, in 64 bits (`slot_at` of runtime/pipes/tg_pipe.h).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Workspace:
    """`slice_bytes` of each of `lanes` lanes of each of `blocks` blocks, the most there can be. `guard_bytes` behind
    each slice are nobody's: a simulator poisons them, and finds them as they were."""

    value: str  # in whose place it lies
    slice_bytes: int
    blocks: int
    alignment_bytes: int
    guard_bytes: int = 0
    lanes: int = 1

    @property
    def stride_bytes(self) -> int:
        return -(-(self.slice_bytes + self.guard_bytes) // self.alignment_bytes) * self.alignment_bytes

    @property
    def size_bytes(self) -> int:
        return self.blocks * self.lanes * self.stride_bytes

    def offset(self, block: int, lane: int = 0) -> int:
        """Where a slice begins, whether or not its kernel asks which block it is."""
        return (block * self.lanes + lane) * self.stride_bytes

    def slices(self) -> Iterator[tuple[int, int, int]]:
        """Block, lane and offset of each. A launch over fewer blocks uses the first ones."""
        for block in range(self.blocks):
            for lane in range(self.lanes):
                yield block, lane, self.offset(block, lane)


def fault(workspace: Workspace, offset_bytes: int, buffer_bytes: int) -> str | None:
    """Why slices are not apart, or not inside of a buffer at this offset that has so many bytes; None where they are.
    Since narrower launches use the first slices, what is right for all is right for every width."""
    taken: list[tuple[int, int, str]] = []
    for block, lane, start in workspace.slices():
        who = f"block {block}" + (f", lane {lane}" if workspace.lanes > 1 else "")
        if start < 0 or start + workspace.slice_bytes > buffer_bytes:
            stop = start + workspace.slice_bytes
            return f"the slice of {who}, from {start} to {stop}, passes the end of {buffer_bytes} bytes"
        if (offset_bytes + start) % workspace.alignment_bytes:
            return f"the slice of {who} is not aligned"
        taken.append((start, start + workspace.slice_bytes + workspace.guard_bytes, who))
    taken.sort()
    for (_, stop, one), (start, _, other) in pairwise(taken):
        if start < stop:
            return f"the slices of {one} and of {other} share bytes"
    return None
