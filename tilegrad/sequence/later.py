"""What comes behind a nest in a listing."""

from __future__ import annotations

from collections.abc import Sequence

from tilegrad.ir.listing import End, Event, ListedNest, Load


def loaded_later(events: Sequence[Event], nests: Sequence[ListedNest]) -> frozenset[tuple[int, str]]:
    """Results, by nest and operand, that come to scratchpad again before another nest writes the same value: they have
    to leave, even where bytes of an earlier value of that name are at their home."""
    found: set[tuple[int, str]] = set()
    wanted: set[str | None] = set()
    for event in reversed(events):
        if isinstance(event, Load):
            wanted.add(nests[event.nest].nest.operand(event.operand).value)
        elif isinstance(event, End):
            for operand in nests[event.nest].nest.results:
                if operand.value in wanted:
                    found.add((event.nest, operand.name))
                    wanted.discard(operand.value)
    return frozenset(found)
