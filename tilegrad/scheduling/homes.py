"""Which tensors live in L2 and which in L3, and when those of L3 are in L2.

A tensor of L3 is brought whole into L2 before an operator needs it and taken back after it was changed. Between two
uses far apart (forward and backward, say) it leaves L2: its time there is a list of stays. What goes to L3 is decided
by need: while the largest sum of live bytes exceeds L2, the tensor that is idle at that moment and cheapest to move
goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilegrad.errors import DoesNotFit
from tilegrad.ir.graph import Graph
from tilegrad.ir.program import Program
from tilegrad.memory.lifetimes import Lifetimes, align, analyse
from tilegrad.ops import registry
from tilegrad.targets.base import L2, L3, Target

# Launches between which a tensor stays in L2 rather than leave and return.
NEAR_USES = 2
PREFETCH_LAUNCHES = 2
WRITE_BACK_LAUNCHES = 2
# How much further loads and stores may reach where there is room.
MOST_LAUNCHES_AHEAD = 32


@dataclass(frozen=True, slots=True)
class Use:
    launch: int
    reads: bool
    writes: bool


@dataclass(frozen=True)
class Tensor:
    """Bytes that move as one: a buffer of activations, or a state tensor. `uses` in order of launches."""

    name: str
    size_bytes: int
    uses: tuple[Use, ...]
    is_state: bool
    is_input: bool = False
    is_output: bool = False


@dataclass(frozen=True, slots=True)
class Stay:
    """A tensor's time in L2, from launch `first` to launch `last` inclusive.

    If `load`, its transfer from L3 starts before launch `first` and is waited for before launch `used`. If `store`, its
    transfer to L3 starts after launch `changed` and is waited for after launch `last`.
    """

    first: int
    used: int
    changed: int
    last: int
    load: bool
    store: bool


@dataclass(frozen=True)
class EntryHomes:
    """`stays` has the tensors of L3; everything else is in L2 all the time it is alive."""

    launch_count: int
    lifetimes: Lifetimes
    tensors: Mapping[str, Tensor]
    stays: Mapping[str, tuple[Stay, ...]]


@dataclass(frozen=True)
class Homes:
    entries: Mapping[str, EntryHomes]
    state_in_l3: frozenset[str]
    moved: tuple[str, ...] = field(default=())


def entry_tensors(graph: Graph, lifetimes: Lifetimes, state_bytes: Mapping[str, int]) -> dict[str, Tensor]:
    """Every tensor of an entry with its uses."""
    uses: dict[str, dict[int, Use]] = {}

    def add(value: str, launch: int, *, reads: bool = False, writes: bool = False) -> None:
        owner = lifetimes.owner.get(value, value)
        before = uses.setdefault(owner, {}).get(launch, Use(launch, False, False))
        uses[owner][launch] = Use(launch, before.reads or reads, before.writes or writes)

    for i, node in enumerate(graph.nodes):
        if registry.get(node.op).is_view:
            continue
        for name in filter(None, node.inputs):
            add(name, i, reads=True)
        for name in filter(None, node.outputs):
            add(name, i, writes=True)
    tensors = {}
    for buffer in lifetimes.buffers:
        own = uses.get(buffer.name, {})
        tensors[buffer.name] = Tensor(
            buffer.name,
            buffer.size_bytes,
            tuple(own[i] for i in sorted(own)),
            is_state=False,
            is_input=any(member in graph.inputs for member in buffer.members),
            is_output=any(member in graph.outputs for member in buffer.members),
        )
    for name in graph.state:
        own = uses.get(name, {})
        tensors[name] = Tensor(name, state_bytes[name], tuple(own[i] for i in sorted(own)), is_state=True)
    return tensors


def stays_of(tensor: Tensor, end: int) -> tuple[Stay, ...]:
    """The stays of a tensor whose home is L3, in an entry of `end` launches."""
    groups: list[list[Use]] = []
    for use in tensor.uses:
        if groups and use.launch - groups[-1][-1].launch <= NEAR_USES:
            groups[-1].append(use)
        else:
            groups.append([use])
    stays: list[Stay] = []
    for k, group in enumerate(groups):
        needed_later = k + 1 < len(groups) or tensor.is_state
        writes = [use.launch for use in group if use.writes]
        # What the first use only writes need not be brought; a use that does both reads the old content.
        has_content = k > 0 or tensor.is_state
        load = has_content and group[0].reads
        store = bool(writes) and needed_later
        first = max(0, group[0].launch - (PREFETCH_LAUNCHES if load else 0))
        if stays:  # what was taken to L3 must have arrived there before it is fetched again
            first = max(first, stays[-1].last + 1)
        last = group[-1].launch
        if store:
            last = max(last, min(end - 1, writes[-1] + WRITE_BACK_LAUNCHES))
        stays.append(Stay(first, group[0].launch, writes[-1] if writes else last, last, load, store))
    return tuple(stays)


def _occupied(
    tensor: Tensor, spans: Mapping[str, tuple[int, int]], stays: tuple[Stay, ...] | None, end: int
) -> list[tuple[int, int]]:
    """The launches during which a tensor is in L2."""
    if stays is not None:
        return [(stay.first, stay.last) for stay in stays]
    if tensor.is_state:
        return [(-1, end)]
    return [spans[tensor.name]]


def _moving_cost(tensor: Tensor, target: Target, end: int) -> float:
    """Cycles per byte and entry call that a home in L3 costs."""
    engine = target.engine(L3, L2)
    loads = stores = 0
    for stay in stays_of(tensor, end):
        loads += stay.load
        stores += stay.store
    return loads * engine.inward.cycles_per_byte + stores * engine.outward.cycles_per_byte


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


def choose_homes(program: Program, target: Target, mode: str, capacity_bytes: int) -> Homes:
    """`mode`: auto, L2 or L3. `capacity_bytes` is what L2 has for tensors."""
    alignment = target.memory(L2).alignment_bytes
    state_bytes = {tensor.name: align(tensor.type.size_bytes, alignment) for tensor in program.state}
    found: dict[str, EntryHomes] = {}
    for name, graph in program.entries.items():
        lifetimes = analyse(graph, alignment)
        tensors = entry_tensors(graph, lifetimes, state_bytes)
        found[name] = EntryHomes(len(graph.nodes), lifetimes, tensors, {})
    if mode == "L3":
        state = frozenset(name for name in state_bytes if _movable(found, name))
        found = {name: _all_in_l3(entry, state) for name, entry in found.items()}
        return Homes(_with_slack_used(found, state, state_bytes, capacity_bytes), state)
    state = frozenset()
    moved: list[str] = []
    while True:
        over = _most_over(found, capacity_bytes, state, state_bytes)
        if over is None:
            return Homes(_with_slack_used(found, state, state_bytes, capacity_bytes), state, tuple(moved))
        entry_name, peak_bytes, launch = over
        entry = found[entry_name]
        victim = None if mode == "L2" else _victim(entry, target, launch)
        if victim is None:
            raise _does_not_fit(program, entry_name, entry, peak_bytes, launch, capacity_bytes, mode)
        moved.append(victim.name)
        if victim.is_state:
            state |= {victim.name}
            found = {name: _with_stays(other, victim.name) for name, other in found.items()}
        else:
            found[entry_name] = _with_stays(entry, victim.name)


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
        self.free = [capacity_bytes] * (entry.launch_count + 1)
        spans = _spans(entry)
        for tensor in entry.tensors.values():
            for first, last in _occupied(tensor, spans, entry.stays.get(tensor.name), entry.launch_count):
                for launch in range(max(first, 0), min(last, entry.launch_count) + 1):
                    self.free[launch] -= tensor.size_bytes

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
    return any(name in entry.tensors and entry.tensors[name].size_bytes >= 64 for entry in entries.values())


def _with_stays(entry: EntryHomes, name: str) -> EntryHomes:
    if name not in entry.tensors:
        return entry
    return replace(entry, stays={**entry.stays, name: stays_of(entry.tensors[name], entry.launch_count)})


def _all_in_l3(entry: EntryHomes, state: frozenset[str]) -> EntryHomes:
    for tensor in entry.tensors.values():
        is_free = not (tensor.is_input or tensor.is_output) and len(tensor.uses) > 1
        if tensor.name in state or (not tensor.is_state and is_free):
            entry = _with_stays(entry, tensor.name)
    return entry


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


def _victim(entry: EntryHomes, target: Target, launch: int) -> Tensor | None:
    """The tensor to move to L3: idle at the peak, cheapest per byte, then largest."""
    end = entry.launch_count
    best: tuple[float, int, str] | None = None
    spans = _spans(entry)
    for tensor in entry.tensors.values():
        if tensor.name in entry.stays or tensor.is_input or tensor.is_output or tensor.size_bytes < 1024:
            continue
        if not tensor.uses and not tensor.is_state:
            continue  # an operator's scratch: in use the moment it exists
        occupied = _occupied(tensor, spans, None, end)
        if not any(first <= launch <= last for first, last in occupied):
            continue
        if any(stay.first <= launch <= stay.last for stay in stays_of(tensor, end)):
            continue  # it would be in L2 at that moment all the same
        key = (_moving_cost(tensor, target, end), -tensor.size_bytes, tensor.name)
        if best is None or key < best:
            best = key
    return None if best is None else entry.tensors[best[2]]


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

