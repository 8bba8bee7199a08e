"""Says what is wrong with an allocation, pair by pair and moment by moment; shares nothing with the code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from tilegrad.ir.plan import Buffer


class Verdict(Enum):
    GOOD = "good"
    MISSING = "a buffer has no offset"
    NEGATIVE = "an offset is negative"
    OUT_OF_CAPACITY = "a buffer ends beyond the capacity"
    OVERLAP = "two buffers alive at once share bytes"


def judge(buffers: Sequence[Buffer], offsets: Mapping[str, int], capacity_bytes: int) -> Verdict:
    for buffer in buffers:
        if buffer.name not in offsets:
            return Verdict.MISSING
    for buffer in buffers:
        if offsets[buffer.name] < 0:
            return Verdict.NEGATIVE
    for buffer in buffers:
        if offsets[buffer.name] + buffer.size_bytes > capacity_bytes:
            return Verdict.OUT_OF_CAPACITY
    for k, one in enumerate(buffers):
        for other in buffers[k + 1 :]:
            moments = set(range(one.first, one.last + 1)) & set(range(other.first, other.last + 1))
            low = max(offsets[one.name], offsets[other.name])
            high = min(offsets[one.name] + one.size_bytes, offsets[other.name] + other.size_bytes)
            if moments and low < high:
                return Verdict.OVERLAP
    return Verdict.GOOD
