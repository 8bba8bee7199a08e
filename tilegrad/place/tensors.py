"""The tensors of an entry: what moves between L2 and L3 as one, and which launches use it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from tilegrad.analysis.lifetimes import Lifetimes, align, analyse
from tilegrad.ir.nest import Access
from tilegrad.ir.pipes import groups
from tilegrad.ir.schedule import EntrySchedule, Rows
from tilegrad.place.stays import Stay, Tensor, Use


def launch_lifetimes(entry: EntrySchedule, alignment: int) -> Lifetimes:
    """Lifetimes by launches, of which an operator may have several. What nests that run at once use is alive as long as
    any of them; a pipe has its workspace where its value would be, unless it is in L1."""
    found = analyse(entry.graph, alignment, entry.apart)
    # Operators whose panels take turns overlap: the last launch of any up to a node, the first of any from it on.
    lasts = list(accumulate((last for _, last in entry.node_launches), max))
    firsts = list(accumulate((first for first, _ in reversed(entry.node_launches)), min))[::-1]

    def launch(number: int, places: list[int]) -> int:
        return -1 if number < 0 else places[number] if number < len(places) else len(entry.launches)

    workspaces, together = {pipe.value: pipe.shared_bytes for pipe in entry.pipes}, groups(entry.pipes)
    buffers = []
    for buffer in found.buffers:
        first, last = launch(buffer.first, firsts), launch(buffer.last, lasts)
        for begin, end in together:
            first = begin if begin <= first <= end else first
            last = end if begin <= last <= end else last
        size_bytes = workspaces.get(buffer.name, buffer.size_bytes)
        buffers.append(replace(buffer, first=first, last=last, size_bytes=size_bytes))
    return Lifetimes(tuple(buffers), found.owner)


@dataclass
class _Uses:
    """Of one tensor, by launch."""

    found: dict[int, Use] = field(default_factory=dict)

    def add(self, launch: int, is_read: bool) -> None:
        before = self.found.get(launch, Use(launch, False, False))
        # Within a launch, reading what it wrote itself needs no old content.
        reads = before.reads or (is_read and not before.writes)
        self.found[launch] = Use(launch, reads, before.writes or not is_read)

    def in_order(self) -> tuple[Use, ...]:
        return tuple(self.found[launch] for launch in sorted(self.found))


@dataclass
class _Part:
    """A part of a tensor that launches use, one behind the other or in one turn."""

    name: str
    whole: str
    rows: Rows
    turn: tuple[int, int] | None = None
    uses: _Uses = field(default_factory=_Uses)
    values: set[str] = field(default_factory=set)

    @property
    def last(self) -> int:
        return max(self.uses.found)


@dataclass(frozen=True)
class EntryHomes:
    """The tensors of an entry and when they are in L2. `parts` says which tensors are those of a panel's value: one for
    each time it is in L2. `stays` has the tensors that are not there all the time they are alive."""

    durations: tuple[float, ...]
    lifetimes: Lifetimes
    tensors: Mapping[str, Tensor]
    parts: Mapping[str, tuple[str, ...]]
    stays: Mapping[str, tuple[Stay, ...]] = field(default_factory=dict)

    @property
    def launch_count(self) -> int:
        return len(self.durations)

    def alive(self) -> npt.NDArray[np.int64]:
        """Bytes in L2 at each launch, from before the first one on."""
        found = np.zeros(self.launch_count + 2, dtype=np.int64)
        for name, tensor in self.tensors.items():
            for span in self.stays.get(name, (tensor,)):
                found[span.first + 1 : span.last + 2] += tensor.size_bytes
        return found

    def named_stays(self) -> dict[str, tuple[Tensor, Stay]]:
        """By the name of the buffer that each has in L2."""
        of_tensors = ((self.tensors[name], own) for name, own in self.stays.items())
        return {stay_name(tensor.name, k): (tensor, s) for tensor, own in of_tensors for k, s in enumerate(own)}

    def unused_bytes(self, state_bytes: Mapping[str, int], in_l3: Container[str] = ()) -> int:
        """State in L2 that the entry does not use."""
        return sum(size for name, size in state_bytes.items() if name not in self.tensors and name not in in_l3)


def stay_name(tensor: str, k: int) -> str:
    return f"{tensor}@{k}"


def all_in_l2(
    entry: EntrySchedule, durations: Iterable[float], state_bytes: Mapping[str, int], alignment: int
) -> EntryHomes:
    """Every tensor of an entry with its uses, which are those of nests. Inputs and outputs that are streamed are
    left in L3 by the caller, or found there."""
    lifetimes = launch_lifetimes(entry, alignment)
    graph = entry.graph
    whole, streamed, parts = _all_uses(entry, lifetimes)
    tensors = {}
    end = len(entry.launches)
    inputs, outputs = set(graph.inputs), set(graph.outputs)
    for buffer in lifetimes.buffers:
        is_input, is_output = (any(m in values for m in buffer.members) for values in (inputs, outputs))
        parts_used = streamed[buffer.name].in_order()
        tensors[buffer.name] = Tensor(
            buffer.name,
            buffer.size_bytes,
            whole[buffer.name].in_order(),
            buffer.first,
            buffer.last,
            is_input=is_input,
            is_output=is_output,
            is_outside=(is_input or is_output) and bool(parts_used),
            streamed=parts_used,
        )
    for name in graph.state:
        uses, parts_used = whole[name].in_order(), streamed[name].in_order()
        tensors[name] = Tensor(name, state_bytes[name], uses, -1, end, is_state=True, streamed=parts_used)
    values, of_whole = defaultdict[str, list[str]](list), defaultdict[str, list[Tensor]](list)
    for part in parts:
        uses, size_bytes = part.uses.in_order(), align(part.rows.size_bytes, alignment)
        own = (part.name, size_bytes, uses, uses[0].launch, uses[-1].launch)
        tensors[part.name] = Tensor(*own, whole=part.whole, rows=part.rows)
        of_whole[part.whole].append(tensors[part.name])
        for value in part.values:
            values[value].append(part.name)
    for name, found in of_whole.items():
        tensors |= {one.name: replace(one, is_read_later=True) for one in _read_later(tensors[name], found)}
    of_values = {value: tuple(names) for value, names in values.items()}
    return EntryHomes(tuple(durations), lifetimes, tensors, of_values)


def _read_later(whole: Tensor, parts: Sequence[Tensor]) -> Iterator[Tensor]:
    """Parts that leave something behind which is read: by the caller, or by a launch behind those of the part."""
    rows = [part.rows for part in parts if part.rows is not None]
    last_reads = np.array([max((use.launch for use in part.uses if use.reads), default=-1) for part in parts])
    offsets, stops = np.array([(one.offset, one.stop) for one in rows], dtype=np.int64).T
    for part, own in zip(parts, rows, strict=True):
        if whole.is_state or whole.is_output or any(use.launch > part.last and use.reads for use in whole.uses):
            yield part
            continue
        written = next((use.launch for use in part.uses if use.writes), None)
        if written is not None:
            met = np.flatnonzero((last_reads > written) & (offsets < own.stop) & (own.offset < stops)).tolist()
            if any(parts[i] is not part and own.meets(rows[i]) for i in met):
                yield part


def _all_uses(
    entry: EntrySchedule, lifetimes: Lifetimes
) -> tuple[defaultdict[str, _Uses], defaultdict[str, _Uses], list[_Part]]:
    """Of tensors, and of their parts."""
    beside = {i: range(first, last + 1) for first, last in groups(entry.pipes) for i in range(first, last + 1)}
    whole, streamed = defaultdict[str, _Uses](_Uses), defaultdict[str, _Uses](_Uses)
    parts: dict[tuple[str, Rows], list[_Part]] = {}
    count = 0
    # The launch that writes something of a tensor first.
    made = dict.fromkeys((*entry.graph.state, *entry.graph.inputs), -1)
    for i, launch in enumerate(entry.launches):
        # What a sum goes on from is read before it is written.
        own = ((n, o) for n in launch.nests for o in sorted(n.operands, key=lambda o: o.continues is None))
        for nest, operand in own:
            if operand.value is None:
                continue
            is_read = operand.access is Access.READ
            panel = entry.panels.get(operand.value)
            value = operand.value if panel is None else panel.value
            owner = lifetimes.owner.get(value, value)
            if panel is None:
                is_part = not is_read and nest.whole_sizes[operand.name] != operand.shape
                if is_part and made.get(owner, i) < i:  # what it leaves as it is has to be there
                    whole[owner].add(i, True)
                for k in beside.get(i, (i,)):  # what runs at once uses it as long
                    whole[owner].add(k, is_read)
            else:
                streamed[owner].add(i, is_read)
                known = parts.setdefault((owner, panel.rows), [])
                turn = None if launch.part is None else launch.part.turn
                if not known or (known[-1].last + 1 < i and (turn is None or known[-1].turn != turn)):
                    known.append(_Part(f"{owner}#{count}", owner, panel.rows))
                    count += 1
                known[-1].turn = turn
                known[-1].uses.add(i, is_read)
                known[-1].values.add(operand.value)
            if not is_read:
                made.setdefault(owner, i)
    return whole, streamed, [part for known in parts.values() for part in known]
