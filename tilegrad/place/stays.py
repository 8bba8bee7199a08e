"""When a tensor is in L2: the uses that need it there, and the gaps between them in which it may be away.

A tensor whose home is L3, or that had to leave L2 for a while, comes back before an operator needs it and is taken back
after it was changed. An operator that works on parts of a tensor needs no more of it in L2 than these: each part is a
tensor of its own here, and what it is a part of is away meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tilegrad.ir.schedule import Rows


@dataclass(frozen=True, slots=True)
class Use:
    launch: int
    reads: bool
    writes: bool


@dataclass(frozen=True)
class Tensor:
    """Bytes that move as one: a buffer of activations, a state tensor, or a part of one (`whole`, `rows`).

    `uses` in order of launches; `streamed` are those of its parts. `first` and `last` are of its life: what the
    caller fills begins at -1, what it reads afterwards ends with the number of launches. `is_outside`: the caller
    finds it in L3. `is_read_later`: what a part leaves behind has to get to L3.
    """

    name: str
    size_bytes: int
    uses: tuple[Use, ...]
    first: int
    last: int
    is_state: bool = False
    is_input: bool = False
    is_output: bool = False
    is_outside: bool = False
    streamed: tuple[Use, ...] = ()
    whole: str | None = None
    rows: Rows | None = None
    is_read_later: bool = False

    @property
    def commands(self) -> int:
        """That an engine needs, which moves one row at a time."""
        return 1 if self.rows is None else self.rows.count


@dataclass(frozen=True, slots=True)
class Stay:
    """A tensor's time in L2, from launch `first` to launch `last` inclusive.

    If `load`, its transfer from L3 starts before launch `first` and is waited for before launch `used`. If `store`, its
    transfer to L3 starts `later` launches behind the one after launch `changed`, and is waited for after launch `last`.
    """

    first: int
    used: int
    changed: int
    last: int
    load: bool
    store: bool
    later: int = 0

    @property
    def leaves(self) -> int:
        """The launch before which it starts to leave."""
        return self.changed + 1 + self.later

    def transfers(self, end: int) -> list[tuple[int, int, bool]]:
        """The launches before which each starts and is waited for, of so many, and whether it is a load."""
        found = [(self.first, self.used, True)] if self.load else []
        if self.store:
            found.append((self.leaves, min(max(self.last + 1, self.leaves), end), False))
        return found

    def within(self, first: int, last: int) -> Stay:
        """The same for no more than these launches."""
        later = max(min(self.later, last - self.changed), 0)
        return replace(self, first=max(self.first, first), last=min(self.last, last), later=later)


@dataclass(frozen=True, slots=True)
class Gap:
    """Launches `first` to `last` in which nobody needs a tensor in L2. `before` so many of its uses: 0 is before the
    first one, as many as there are is behind the last."""

    before: int
    first: int
    last: int


def gaps(tensor: Tensor, end: int) -> list[Gap]:
    """Where a tensor could be away. What the caller leaves in L2, or finds there, is there at that end."""
    if tensor.whole is not None:
        return []
    edges = (-2, *(use.launch for use in tensor.uses), end + 1)
    found = [Gap(k, before + 1, after - 1) for k, (before, after) in enumerate(pairwise(edges))]
    if not tensor.is_state and not tensor.is_outside:
        found = found[1:-1]
    return [gap for gap in found if gap.first <= gap.last]


def forced(tensor: Tensor, end: int) -> set[int]:
    """Gaps in which operators work on parts of the tensor: it is in L3 then. There is its home, too, if it outlives
    the entry."""
    places = [use.launch for use in tensor.streamed]
    is_far = tensor.is_outside or (tensor.is_state and bool(places))
    return {
        gap.before
        for gap in gaps(tensor, end)
        if (is_far and gap.before in (0, len(tensor.uses))) or any(gap.first <= launch <= gap.last for launch in places)
    }


def stays_of(tensor: Tensor, away: Iterable[int]) -> tuple[Stay, ...]:
    """From a first use to the last one before a gap in which the tensor is away."""
    cuts = set(away)
    groups: list[list[Use]] = []
    for k, use in enumerate(tensor.uses):
        if groups and k not in cuts:
            groups[-1].append(use)
        else:
            groups.append([use])
    return tuple(_stay(tensor, groups, k) for k in range(len(groups)))


def _stay(tensor: Tensor, groups: Sequence[Sequence[Use]], k: int) -> Stay:
    group = groups[k]
    writes = [use.launch for use in group if use.writes]
    first, last = group[0].launch, group[-1].launch
    # What the first use only writes need not be brought; a use that does both reads the old content.
    is_filled = k == 0 and tensor.is_input and not tensor.is_outside
    load = group[0].reads and not is_filled
    is_needed = k + 1 < len(groups) or any(use.launch > last and use.reads for use in tensor.streamed)
    is_kept = tensor.is_state or tensor.is_read_later or (tensor.is_output and tensor.is_outside)
    is_new = bool(writes) or is_filled
    changed = writes[-1] if writes else -1 if is_filled else last  # an input leaves while the first launches read it
    is_read_later = tensor.is_output and not tensor.is_outside and k + 1 == len(groups)
    begin, end = -1 if is_filled else first, tensor.last if is_read_later else last
    return Stay(begin, first, changed, end, load, store=is_new and (is_needed or is_kept))
