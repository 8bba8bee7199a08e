"""Which tensors live in L2 and which in L3, and when those of L3 are in L2.

What goes to L3 is decided by need: while the largest sum of live bytes exceeds L2, the tensor that is idle at that
moment, gone in time and cheapest to move goes. Where none is, transfers are waited for earlier than they would need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from tilegrad.analysis.lifetimes import Lifetimes, align, analyse
from tilegrad.errors import DoesNotFit
from tilegrad.ir.nest import Access
from tilegrad.ir.program import Program
from tilegrad.ir.schedule import EntrySchedule, Schedule
from tilegrad.place.stays import Stay, Tensor, Timeline, Use
from tilegrad.targets.base import L2, L3, Target

# A few bytes are never worth a transfer: those moved by need, and those moved because everything is.
LEAST_BYTES = 1024
LEAST_BYTES_IF_ALL = 64
# How much further loads and stores may reach where there is room.
MOST_LAUNCHES_AHEAD = 32


@dataclass(frozen=True)
class EntryHomes:
    """`stays` has the tensors of L3; everything else is in L2 all the time it is alive.

    `cuts` are launches during which a stay must not be, though its transfers would like to: they are waited for.
    """

    timeline: Timeline
    lifetimes: Lifetimes
    tensors: Mapping[str, Tensor]
    stays: Mapping[str, tuple[Stay, ...]] = field(default_factory=dict)
    cuts: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    @property
    def launch_count(self) -> int:
        return self.timeline.end

    def with_moved(self, names: Iterable[str]) -> EntryHomes:
        """With these tensors in L3 too."""
        wanted = {*self.stays, *(name for name in names if name in self.tensors)}
        least = {name: self.timeline.stays(self.tensors[name]) for name in self.tensors if name in wanted}
        sizes = {name: self.tensors[name].size_bytes for name in least}
        timed = self.timeline.timed(least, sizes)
        for (name, k), (earliest, latest) in self.cuts.items():
            stay = timed[name][k]
            timed[name][k] = replace(stay, first=max(stay.first, earliest), last=min(stay.last, latest))
        return replace(self, stays={name: tuple(stays) for name, stays in timed.items()})

    def with_cut(self, launch: int) -> EntryHomes | None:
        """With one tensor less at a launch: one that is only there because its transfer takes time."""
        best: tuple[tuple[int, int, str, int], tuple[int, int]] | None = None
        for name, stays in self.stays.items():
            for k, (stay, least) in enumerate(zip(stays, self.timeline.stays(self.tensors[name]), strict=True)):
                earliest, latest = self.cuts.get((name, k), (0, self.launch_count))
                if least.last < launch <= stay.last:
                    key, cut = (0, stay.changed, name, k), (earliest, launch - 1)
                elif stay.first <= launch < least.first:
                    key, cut = (1, -stay.used, name, k), (launch + 1, latest)
                else:
                    continue
                if best is None or key < best[0]:
                    best = (key, cut)
        if best is None:
            return None
        (_, _, name, k), cut = best
        return replace(self, cuts={**self.cuts, (name, k): cut}).with_moved(())


@dataclass(frozen=True)
class Homes:
    entries: Mapping[str, EntryHomes]
    state_in_l3: frozenset[str]
    moved: tuple[str, ...] = field(default=())


def entry_tensors(entry: EntrySchedule, lifetimes: Lifetimes, state_bytes: Mapping[str, int]) -> dict[str, Tensor]:
    """Every tensor of an entry with its uses, which are those of nests."""
    graph = entry.graph
    uses: dict[str, dict[int, Use]] = {}
    for i, launch in enumerate(entry.launches):
        for operand in (operand for nest in launch.nests for operand in nest.operands):
            if operand.value is not None:
                owner = lifetimes.owner.get(operand.value, operand.value)
                before = uses.setdefault(owner, {}).get(i, Use(i, False, False))
                is_read = operand.access is Access.READ
                # Within a launch, reading what it wrote itself needs no old content.
                reads = before.reads or (is_read and not before.writes)
                uses[owner][i] = Use(i, reads, before.writes or not is_read)
    tensors = {}
    inputs, outputs = set(graph.inputs), set(graph.outputs)
    for buffer in lifetimes.buffers:
        own = uses.get(buffer.name, {})
        tensors[buffer.name] = Tensor(
            buffer.name,
            buffer.size_bytes,
            tuple(own[i] for i in sorted(own)),
            is_state=False,
            is_input=any(member in inputs for member in buffer.members),
            is_output=any(member in outputs for member in buffer.members),
        )
    for name in graph.state:
        own = uses.get(name, {})
        tensors[name] = Tensor(name, state_bytes[name], tuple(own[i] for i in sorted(own)), is_state=True)
    return tensors


def _occupied(
    tensor: Tensor, spans: Mapping[str, tuple[int, int]], stays: tuple[Stay, ...] | None, end: int
) -> list[tuple[int, int]]:
    """The launches during which a tensor is in L2."""
    if stays is not None:
        return [(stay.first, stay.last) for stay in stays]
    if tensor.is_state:
        return [(-1, end)]
    return [spans[tensor.name]]


def _moving_cost(stays: Iterable[Stay], target: Target) -> float:
    """Cycles per byte and entry call that a home in L3 costs."""
    engine = target.engine(L3, L2)
    return sum(
        stay.load * engine.inward.cycles_per_byte + stay.store * engine.outward.cycles_per_byte for stay in stays
    )


def _peak(
    tensors: Mapping[str, Tensor],
    spans: Mapping[str, tuple[int, int]],
    stays: Mapping[str, tuple[Stay, ...]],
    end: int,
) -> tuple[int, int]:
    """The largest sum of bytes in L2, and the launch where it is reached."""
    changes = [0] * (end + 3)
    for tensor in tensors.values():
        for first, last in _occupied(tensor, spans, stays.get(tensor.name), end):
            changes[first + 1] += tensor.size_bytes
            changes[last + 2] -= tensor.size_bytes
    alive = best = 0
    where = -1
    for i, change in enumerate(changes):
        alive += change
        if alive > best:
            best, where = alive, i - 1
    return best, where


def choose_homes(
    schedule: Schedule,
    mode: str,
    capacity_bytes: int,
    durations: Mapping[str, Sequence[float]],
    shared_bytes: int | None = None,
) -> Homes:
    """`mode`: auto, L2 or L3. `capacity_bytes` is what L2 has for tensors; `durations` by entry and launch.

    Stays are made longer than they must be as long as no more than `shared_bytes` of L2 are taken, or all of it.
    """
    target, program = schedule.target, schedule.program
    alignment = target.memory(L2).alignment_bytes
    state_bytes = {tensor.name: align(tensor.type.size_bytes, alignment) for tensor in program.state}
    found: dict[str, EntryHomes] = {}
    for name, entry in schedule.entries.items():
        lifetimes = analyse(entry.graph, alignment)
        tensors = entry_tensors(entry, lifetimes, state_bytes)
        found[name] = EntryHomes(Timeline.of(durations[name], target), lifetimes, tensors)
    state: frozenset[str] = frozenset()
    moved: list[str] = []
    if mode == "L3":
        state = frozenset(name for name in state_bytes if _movable(found, name))
        found = {name: entry.with_moved([*state, *_free(entry)]) for name, entry in found.items()}
    while True:
        over = _most_over(found, capacity_bytes, state, state_bytes)
        if over is None:
            room = capacity_bytes if shared_bytes is None else shared_bytes
            return Homes(_with_slack_used(found, state, state_bytes, room), state, tuple(moved))
        entry_name, peak_bytes, launch = over
        entry_homes = found[entry_name]
        victim = _victim(entry_homes, target, launch, in_time=True) if mode == "auto" else None
        if victim is None:
            cut = entry_homes.with_cut(launch)
            if cut is not None:
                found[entry_name] = cut
                continue
            victim = _victim(entry_homes, target, launch, in_time=False) if mode == "auto" else None
        if victim is None:
            raise _does_not_fit(program, entry_name, entry_homes, peak_bytes, launch, capacity_bytes, mode)
        moved.append(victim.name)
        if victim.is_state:
            state |= {victim.name}
            found = {name: other.with_moved([victim.name]) for name, other in found.items()}
        else:
            found[entry_name] = entry_homes.with_moved([victim.name])


def _with_slack_used(
    entries: Mapping[str, EntryHomes], state: frozenset[str], state_bytes: Mapping[str, int], capacity_bytes: int
) -> dict[str, EntryHomes]:
    """Starts loads earlier and lets stores end later where L2 has room, so that both hide behind computation."""
    result = {}
    for name, entry in entries.items():
        elsewhere = sum(
            size for tensor, size in state_bytes.items() if tensor not in entry.tensors and tensor not in state
        )
        result[name] = _Slack(entry, capacity_bytes - elsewhere).use()
    return result


class _Slack:
    """How many bytes of L2 are free at each launch of an entry, as stays grow into them."""

    def __init__(self, entry: EntryHomes, capacity_bytes: int) -> None:
        self.entry = entry
        spans = _spans(entry)
        changes = [0] * (entry.launch_count + 2)
        for tensor in entry.tensors.values():
            for first, last in _occupied(tensor, spans, entry.stays.get(tensor.name), entry.launch_count):
                if max(first, 0) <= min(last, entry.launch_count):
                    changes[max(first, 0)] += tensor.size_bytes
                    changes[min(last, entry.launch_count) + 1] -= tensor.size_bytes
        self.free = [capacity_bytes - taken for taken in accumulate(changes[:-1])]

    def use(self) -> EntryHomes:
        stays = {name: list(own) for name, own in self.entry.stays.items()}
        # Large tensors first: they take longest. Stores before loads: they are slower.
        names = sorted(stays, key=lambda name: (-self.entry.tensors[name].size_bytes, name))
        for name in names:
            for k in range(len(stays[name])):
                if stays[name][k].store:
                    following = stays[name][k + 1].first if k + 1 < len(stays[name]) else self.entry.launch_count
                    stays[name][k] = self._later(stays[name][k], self.entry.tensors[name].size_bytes, following)
        for name in names:
            for k in range(len(stays[name])):
                if stays[name][k].load:
                    before = stays[name][k - 1].last if k else -1
                    stays[name][k] = self._earlier(stays[name][k], self.entry.tensors[name].size_bytes, before)
        return replace(self.entry, stays={name: tuple(own) for name, own in stays.items()})

    def _later(self, stay: Stay, size_bytes: int, following: int) -> Stay:
        last = stay.last
        while last + 1 < min(following, stay.changed + MOST_LAUNCHES_AHEAD) and self.free[last + 1] >= size_bytes:
            last += 1
            self.free[last] -= size_bytes
        return replace(stay, last=last)

    def _earlier(self, stay: Stay, size_bytes: int, before: int) -> Stay:
        first = stay.first
        while first - 1 > max(before, stay.used - MOST_LAUNCHES_AHEAD) and self.free[first - 1] >= size_bytes:
            first -= 1
            self.free[first] -= size_bytes
        return replace(stay, first=first)


def _movable(entries: Mapping[str, EntryHomes], name: str) -> bool:
    """A few bytes are never worth a transfer."""
    sizes = [entry.tensors[name].size_bytes for entry in entries.values() if name in entry.tensors]
    return any(size_bytes >= LEAST_BYTES_IF_ALL for size_bytes in sizes)


def _free(entry: EntryHomes) -> list[str]:
    """Activations that could live in L3."""
    return [
        tensor.name
        for tensor in entry.tensors.values()
        if not (tensor.is_state or tensor.is_input or tensor.is_output) and len(tensor.uses) > 1
    ]


def _spans(entry: EntryHomes) -> dict[str, tuple[int, int]]:
    return {buffer.name: (buffer.first, buffer.last) for buffer in entry.lifetimes.buffers}


def _most_over(
    entries: Mapping[str, EntryHomes], capacity_bytes: int, state: frozenset[str], state_bytes: Mapping[str, int]
) -> tuple[str, int, int] | None:
    """The entry that exceeds L2 the most. State of other entries occupies L2 too, unless it lives in L3."""
    worst: tuple[str, int, int] | None = None
    for name, entry in entries.items():
        elsewhere = sum(
            size for tensor, size in state_bytes.items() if tensor not in entry.tensors and tensor not in state
        )
        size, launch = _peak(entry.tensors, _spans(entry), entry.stays, entry.launch_count)
        if size + elsewhere > capacity_bytes and (worst is None or size + elsewhere > worst[1]):
            worst = (name, size + elsewhere, launch)
    return worst


def _victim(entry: EntryHomes, target: Target, launch: int, *, in_time: bool) -> Tensor | None:
    """The tensor to move to L3: idle at the peak, cheapest per byte, then largest. `in_time`: gone by then, too."""
    end = entry.launch_count
    found: list[tuple[float, int, str]] = []
    spans = _spans(entry)
    for tensor in entry.tensors.values():
        if tensor.name in entry.stays or tensor.is_input or tensor.is_output or tensor.size_bytes < LEAST_BYTES:
            continue
        if not tensor.uses and not tensor.is_state:
            continue  # an operator's scratch: in use the moment it exists
        if not any(first <= launch <= last for first, last in _occupied(tensor, spans, None, end)):
            continue
        least = entry.timeline.stays(tensor)
        if any(stay.first <= launch <= stay.last for stay in least):
            continue  # it would be in L2 at that moment all the same
        found.append((_moving_cost(least, target), -tensor.size_bytes, tensor.name))
    for _, _, name in sorted(found):
        if not in_time:
            return entry.tensors[name]
        stays = entry.with_moved([name]).stays[name]
        if not any(stay.first <= launch <= stay.last for stay in stays):
            return entry.tensors[name]
    return None


def _does_not_fit(
    program: Program,
    entry_name: str,
    entry: EntryHomes,
    peak_bytes: int,
    launch: int,
    capacity_bytes: int,
    mode: str,
) -> DoesNotFit:
    node = program.entries[entry_name].nodes[max(0, min(launch, len(program.entries[entry_name].nodes) - 1))]
    spans = _spans(entry)
    activations = sum(
        tensor.size_bytes
        for tensor in entry.tensors.values()
        for first, last in _occupied(tensor, spans, entry.stays.get(tensor.name), entry.launch_count)
        if not tensor.is_state and first <= launch <= last
    )
    hint = "more L2 (--l2), a smaller batch, or train fewer parameters (--train last:K)"
    if mode == "L2":
        hint = "use --home auto, which moves tensors to L3"
    return DoesNotFit(
        f"the {entry_name} entry does not fit into L2",
        stage="memory",
        node=node.name,
        expected=f"at most {capacity_bytes} bytes",
        got=f"{peak_bytes} bytes at this node: {peak_bytes - activations} of state and {activations} of activations",
        hint=hint,
    )
