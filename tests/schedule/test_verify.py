"""Faults put into schedules, each found by the verifier, which names operator, tile and operand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, pairwise

import pytest

from tests.schedule.programs import KIB, compiled_for, siracusa
from tilegrad.analysis.lifetimes import temporaries
from tilegrad.ir.nest import Access, Axis, AxisKind, Index, Nest, Operand, Range, Tile, along, operand_box
from tilegrad.ir.schedule import Loop, Slot, TileEstimate, Tiling
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.sequence import events as events_module
from tilegrad.sequence.events import Box, Compute, Event, Fork, Part, Start, Wait, nest_events
from tilegrad.sequence.verify import ScheduleError, verify_in_place, verify_nest, verify_schedule

Events = Sequence[Event]
TARGET = siracusa(2 * KIB)
LONGEST_BYTES = TARGET.engine("L2", "L1").longest_bytes
# Places per nest where a fault is put: the beginning of a nest has every kind of situation.
PLACES = 6


@dataclass(frozen=True)
class Case:
    node: str
    nest: Nest
    tiling: Tiling
    element_bytes: dict[str, int]

    @property
    def events(self) -> list[Event]:
        return list(nest_events(self.nest, self.tiling, self.element_bytes, LONGEST_BYTES))

    def verify(self, events: Events | None = None) -> None:
        verify_nest(self.nest, self.tiling, self.element_bytes, TARGET, self.node, events)


@cache
def cases() -> tuple[Case, ...]:
    """Every kind of nest of two models, single and double buffered."""
    found: dict[object, Case] = {}
    for name in ("odd_cnn", "attention"):
        for buffering in ("single", "double"):
            schedule = compiled_for(name, TARGET, ScheduleOptions(buffering=buffering)).plan.schedule
            for entry in schedule.entries.values():
                scratch = {value: tensor_type for value, (_, tensor_type) in temporaries(entry.graph).items()}
                types = {**scratch, **entry.graph.types}
                for launch in entry.launches:
                    for nest, tiling in zip(launch.nests, launch.tilings, strict=True):
                        assert tiling is not None
                        sizes = {o.name: types[o.value].dtype.size_bytes for o in nest.operands if o.value is not None}
                        case = Case(launch.node.name, nest, tiling, sizes)
                        found.setdefault((nest.kernel, tiling.is_double, tiling.tile_count > 1), case)
    return tuple(found.values())


def test_there_is_every_kind_of_nest() -> None:
    kinds = {(case.tiling.is_double, case.tiling.tile_count > 1) for case in cases()}
    assert kinds >= {(False, False), (False, True), (True, True)}
    assert any(len(case.tiling.loops) > 1 for case in cases())
    assert any(
        case.nest.axis(loop.axis).kind is AxisKind.REDUCTION for case in cases() for loop in case.tiling.loops
    )
    assert len({case.nest.kernel for case in cases()}) > 30


def test_every_operand_comes_and_every_result_leaves() -> None:
    """Also in nests that mix scalars with tensors, and in those with several results."""
    mixed = several = 0
    for case in cases():
        case.verify()
        started = {(event.operand, event.inward) for event in case.events if isinstance(event, Start)}
        present = [operand for operand in case.nest.operands if operand.value is not None]
        assert started == {(operand.name, operand.access is Access.READ) for operand in present}
        sizes = {len(operand.shape) > 0 and max(operand.shape) > 1 for operand in present}
        mixed += len(sizes) == 2 and case.tiling.is_double
        several += sum(operand.access is Access.WRITE for operand in present) > 1 and case.tiling.is_double
    assert mixed and several


def starts(events: Events, inward: bool | None = None) -> Iterator[int]:
    for i, event in enumerate(events):
        if isinstance(event, Start) and (inward is None or event.inward is inward):
            yield i


def waits(events: Events) -> Iterator[int]:
    yield from (i for i, event in enumerate(events) if isinstance(event, Wait))


def without(events: Events, *positions: int) -> list[Event]:
    return [event for i, event in enumerate(events) if i not in positions]


def with_event(events: Events, position: int, event: Event) -> list[Event]:
    return [*events[:position], event, *events[position + 1 :]]


def wait_of(events: Events, start: int) -> int:
    event = events[start]
    assert isinstance(event, Start)
    return next(i for i in waits(events) if events[i].request == event.request)  # type: ignore[union-attr]


Fault = Callable[[Case, Events], Iterator[list[Event]]]


def dropped_wait(case: Case, events: Events) -> Iterator[list[Event]]:
    yield from (without(events, i) for i in waits(events))


def wait_for_the_wrong_transfer(case: Case, events: Events) -> Iterator[list[Event]]:
    requests = [event.request for event in events if isinstance(event, Start)]
    for i in waits(events):
        event = events[i]
        assert isinstance(event, Wait)
        for other in (event.request + 1, event.request - 1, len(requests) + 3):
            yield with_event(events, i, replace(event, request=other))


def wait_twice(case: Case, events: Events) -> Iterator[list[Event]]:
    yield from ([*events[: i + 1], events[i], *events[i + 1 :]] for i in waits(events))


def missing_transfer(case: Case, events: Events) -> Iterator[list[Event]]:
    yield from (without(events, i, wait_of(events, i)) for i in starts(events))


def request_used_twice(case: Case, events: Events) -> Iterator[list[Event]]:
    for i in list(starts(events))[1:]:
        event = events[i]
        assert isinstance(event, Start)
        yield with_event(events, i, replace(event, request=event.request - 1))


def reused_one_tile_early(case: Case, events: Events) -> Iterator[list[Event]]:
    """A load goes where the tile before still lies: into its slot, or before its kernel ran."""
    for i in starts(events, inward=True):
        event = events[i]
        assert isinstance(event, Start)
        if event.tile == 0:
            continue
        if case.tiling.slots[event.operand].count == 2:
            yield with_event(events, i, replace(event, slot=1 - event.slot))
        else:
            kernel = max(k for k in range(i) if isinstance(events[k], Compute))
            moved = [*events[:kernel], event, events[wait_of(events, i)], *events[kernel:]]
            yield without(moved, i + 2, wait_of(events, i) + 2)


def computed_before_it_left(case: Case, events: Events) -> Iterator[list[Event]]:
    """The wait for a result that frees its slot comes behind a kernel that writes there: its beginning, or its end."""
    for i in starts(events, inward=False):
        event = events[i]
        assert isinstance(event, Start)
        settled = wait_of(events, i)
        for kind in (Fork, Compute):
            again = [
                k
                for k in range(settled, len(events))
                if isinstance(events[k], kind) and kernel_of(events[k]).slots[event.operand] == event.slot
            ]
            if again:
                yield [*events[:settled], *events[settled + 1 : again[0] + 1], events[settled], *events[again[0] + 1 :]]


def begun_before_it_came(case: Case, events: Events) -> Iterator[list[Event]]:
    """The wait for what a kernel reads comes behind its beginning."""
    for i in starts(events, inward=True):
        settled = wait_of(events, i)
        begun = next(k for k in range(settled, len(events)) if isinstance(events[k], Fork))
        yield [*events[:settled], *events[settled + 1 : begun + 1], events[settled], *events[begun + 1 :]]


def kernel_of(event: Event) -> Compute:
    assert isinstance(event, Fork | Compute)
    return event.kernel if isinstance(event, Fork) else event


def with_kernel(events: Events, i: int, kernel: Compute) -> list[Event]:
    """Another kernel call in place of one that ends at `i`, and where that one begins."""
    begun = max(k for k in range(i) if isinstance(events[k], Fork))
    return with_event(with_event(events, begun, Fork(kernel)), i, kernel)


def stored_before_it_is_complete(case: Case, events: Events) -> Iterator[list[Event]]:
    for i in starts(events, inward=False):
        kernel = max(k for k in range(i) if isinstance(events[k], Compute))
        yield [*events[:kernel], events[i], *events[kernel:i], *events[i + 1 :]]


def tile_left_out(case: Case, events: Events) -> Iterator[list[Event]]:
    for i, event in enumerate(events):
        if isinstance(event, Compute):
            yield without(events, i, max(k for k in range(i) if isinstance(events[k], Fork)))


def tiles_swapped(case: Case, events: Events) -> Iterator[list[Event]]:
    kernels = [i for i, event in enumerate(events) if isinstance(event, Compute)]
    for a, b in pairwise(kernels):
        first, second = events[a], events[b]
        assert isinstance(first, Compute) and isinstance(second, Compute)
        yield with_kernel(with_kernel(events, a, second), b, first)


def past_the_end(case: Case, events: Events) -> Iterator[list[Event]]:
    """One row more, one element further, in the box or only in what moves."""
    for i in starts(events):
        event = events[i]
        assert isinstance(event, Start)
        last = event.parts[-1]
        longer = replace(last, rows=last.rows + 1)
        yield with_event(events, i, replace(event, parts=(*event.parts[:-1], longer)))
        size = case.element_bytes[event.operand]
        yield with_event(events, i, replace(event, far_start=event.far_start + size))
        yield with_event(events, i, replace(event, parts=tuple(shifted(part, size) for part in event.parts)))
        if event.box:
            wider = Range(event.box[0].start + 1, event.box[0].stop + 1)
            yield with_event(events, i, replace(event, box=(wider, *event.box[1:])))


def shifted(part: Part, size: int) -> Part:
    return replace(part, far_offset=part.far_offset + size)


def narrow_box(case: Case, events: Events) -> Iterator[list[Event]]:
    """The box of one operand is short by one, in what is brought and in what the kernel is told."""
    for i, event in enumerate(events):
        if not isinstance(event, Compute):
            continue
        for name, box in event.boxes.items():
            for d, r in enumerate(box):
                if r.size > 1:
                    smaller = (*box[:d], Range(r.start, r.stop - 1), *box[d + 1 :])
                    yield with_kernel(events, i, replace(event, boxes={**event.boxes, name: smaller}))


FAULTS: tuple[Fault, ...] = (
    dropped_wait,
    wait_for_the_wrong_transfer,
    wait_twice,
    missing_transfer,
    request_used_twice,
    reused_one_tile_early,
    computed_before_it_left,
    begun_before_it_came,
    stored_before_it_is_complete,
    tile_left_out,
    tiles_swapped,
    past_the_end,
    narrow_box,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_faults_are_found(fault: Fault) -> None:
    tried = 0
    for case in cases():
        events = case.events
        for faulty in islice(fault(case, events), PLACES):
            assert faulty != events
            tried += 1
            with pytest.raises(ScheduleError) as caught:
                case.verify(faulty)
            assert caught.value.node == case.node
            assert caught.value.message.startswith(f"tg_{case.nest.kernel}, tile ")
    assert tried > 20


def test_the_last_places_are_looked_at_too() -> None:
    """What is wrong only at the end of a nest is found as well."""
    case = max(cases(), key=lambda case: case.tiling.tile_count)
    events = case.events
    for fault in FAULTS:
        for faulty in list(fault(case, events))[-3:]:
            with pytest.raises(ScheduleError):
                case.verify(faulty)


WRONG_BOX = r"the box has \d+ to \d+ of dimension \d, the kernel's are|the transfer is not that of the box"


def test_wrong_halo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that forgets the window's reach brings a box that is right for a kernel of size one."""
    windows = [case for case in cases() if any(moves_with_window(o, case.tiling) for o in case.nest.operands)]
    assert {"conv", "depthwise", "max_pool", "average_pool"} & {case.nest.kernel.split("_d")[0] for case in windows}

    def short(operand: Operand, tile: Tile) -> Box:
        index = operand.index or ()
        cut = tuple(replace(i, terms=i.terms[:1]) if len(i.terms) > 1 else i for i in index)
        return real(replace(operand, index=cut if operand.index is not None else None), tile)

    real = operand_box
    monkeypatch.setattr(events_module, "operand_box", short)
    for case in windows:
        with pytest.raises(ScheduleError, match=WRONG_BOX) as caught:
            case.verify()
        assert caught.value.node == case.node


def moves_with_window(operand: Operand, tiling: Tiling) -> bool:
    cut = {loop.axis for loop in tiling.loops}
    return any(len(index.terms) > 1 and cut & {axis for axis, _ in index.terms} for index in operand.index or ())


def matrix_product(m: int = 6, k: int = 8) -> Case:
    """y[m] = sum over k of x[m, k], cut both ways."""
    nest = Nest(
        "sum",
        (Axis("m", m), Axis("k", k, AxisKind.REDUCTION)),
        (
            Operand("x", "X", Access.READ, (m, k), (along("m"), along("k"))),
            Operand("y", "Y", Access.WRITE, (m,), (along("m"),)),
        ),
    )
    tiling = Tiling(
        (Loop("m", m, 3), Loop("k", k, 4)),
        {"x": Slot(0, 48, 2), "y": Slot(96, 16, 2)},
        True,
        128,
        TileEstimate(0.0, 0.0, 0.0, 0, ""),
    )
    return Case("sum", nest, tiling, {"x": 4, "y": 4})


def with_tiling(case: Case, **changes: object) -> Case:
    return replace(case, tiling=replace(case.tiling, **changes))  # type: ignore[arg-type]


WRONG_TILINGS: dict[str, dict[str, object]] = {
    "its slots overlap": {"slots": {"x": Slot(0, 48, 2), "y": Slot(88, 16, 2)}},
    "its slots are not aligned to 8 bytes": {"slots": {"x": Slot(0, 48, 2), "y": Slot(100, 16, 1)}},
    "its slots cannot be": {"slots": {"x": Slot(0, 48, 2), "y": Slot(96, 16, 3)}},
    "its slots pass the tiling's 120 bytes": {"scratch_bytes": 120},
    "4096 bytes of L1, which has 2048": {"scratch_bytes": 4096},
    "passes the end of its slot": {"slots": {"x": Slot(0, 40, 2), "y": Slot(96, 16, 2)}},
    "the loop over 'n' is not over an axis of the nest": {"loops": (Loop("n", 6, 3),)},
    "the loop over 'm' is not over an axis of the nest": {"loops": (Loop("m", 5, 3),)},
    "axis 'm' of 6 cannot be cut into tiles of 0": {"loops": (Loop("m", 6, 0),)},
    "the result leaves before its last reduction tile": {"loops": (Loop("k", 8, 4), Loop("m", 6, 3))},
    # Two slots are promised, one is there: the next tile's load goes where the kernel reads.
    "the kernel runs while slot 0 has not arrived": {"slots": {"x": Slot(0, 48, 1), "y": Slot(96, 16, 2)}},
}


@pytest.mark.parametrize("text", WRONG_TILINGS)
def test_wrong_tilings_are_found(text: str) -> None:
    case = matrix_product()
    case.verify()
    with pytest.raises(ScheduleError, match=text) as caught:
        with_tiling(case, **WRONG_TILINGS[text]).verify()
    assert caught.value.node == "sum"


def test_a_slot_that_is_none_is_found() -> None:
    case = matrix_product()
    faulty = [replace(e, slot=2) if isinstance(e, Start) and e.operand == "y" else e for e in case.events]
    with pytest.raises(ScheduleError, match="operand 'y': it has no slot 2"):
        case.verify(faulty)


def test_an_inner_axis_is_never_cut() -> None:
    case = matrix_product()
    nest = replace(case.nest, axes=(Axis("m", 6), Axis("k", 8, AxisKind.INNER)))
    with pytest.raises(ScheduleError, match="axis 'k' of 8 cannot be cut into tiles of 4"):
        replace(case, nest=nest).verify()


def test_two_reduction_axes_keep_the_order_of_the_sum() -> None:
    """Cutting the inner one is right only if the outer one advances by single steps."""

    def case(outer_tile: int) -> Case:
        nest = Nest(
            "sum",
            (Axis("j", 4, AxisKind.REDUCTION), Axis("k", 6, AxisKind.REDUCTION)),
            (
                Operand("x", "X", Access.READ, (4, 6), (along("j"), along("k"))),
                Operand("y", "Y", Access.WRITE, (1,), (Index(),)),
            ),
        )
        loops = (Loop("j", 4, outer_tile), Loop("k", 6, 3))
        slots = {"x": Slot(0, 48, 2), "y": Slot(96, 8, 1)}
        return Case("sum", nest, Tiling(loops, slots, True, 104, TileEstimate(0, 0, 0, 0, "")), {"x": 4, "y": 4})

    case(1).verify()
    with pytest.raises(ScheduleError, match="tile 1, operand 'y': the reduction's tiles are out of order"):
        case(2).verify()


def test_long_transfers_are_found() -> None:
    case = matrix_product()
    target = replace(
        TARGET, engines=tuple(replace(e, longest_bytes=24) if e.near == "L1" else e for e in TARGET.engines)
    )
    case.verify()
    with pytest.raises(ScheduleError, match="a transfer of 48 bytes, the engine takes 24"):
        verify_nest(case.nest, case.tiling, case.element_bytes, target, "sum", case.events)


def test_more_transfers_than_counters_are_found() -> None:
    operands = tuple(Operand(f"x{i}", f"X{i}", Access.READ, (4,), (along("m"),)) for i in range(17))
    nest = Nest("many", (Axis("m", 4),), operands)
    slots = {f"x{i}": Slot(16 * i, 16, 1) for i in range(17)}
    tiling = Tiling((), slots, False, 16 * 17, TileEstimate(0, 0, 0, 0, ""))
    sizes = {f"x{i}": 4 for i in range(17)}
    events = list(nest_events(nest, tiling, sizes, LONGEST_BYTES))
    apart = [replace(event, request=i) if isinstance(event, Start) else event for i, event in enumerate(events)]
    with pytest.raises(ScheduleError, match="operand 'x16': more than 16 transfers are under way"):
        verify_nest(nest, tiling, sizes, TARGET, "many", apart)


@pytest.mark.parametrize("is_double", [False, True])
@pytest.mark.parametrize("reach", [-5, -1, 0, 1])
def test_in_place_needs_boxes_that_stay_apart(is_double: bool, reach: int) -> None:
    """y[m] = x[m + reach] may be in place if nothing is read where it was written, or is being written."""
    nest = Nest(
        "shift",
        (Axis("m", 12),),
        (
            Operand("x", "X", Access.READ, (12,), (Index((("m", 1),), reach),)),
            Operand("y", "Y", Access.WRITE, (12,), (along("m"),)),
        ),
    )
    count = 2 if is_double else 1
    slots = {"x": Slot(0, 16, count), "y": Slot(32, 16, count)}
    tiling = Tiling((Loop("m", 12, 4),), slots, is_double, 64, TileEstimate(0, 0, 0, 0, ""))
    sizes = {"x": 4, "y": 4}
    verify_nest(nest, tiling, sizes, TARGET, "shift")
    # Looking back, a tile reads what an earlier one wrote. With two slots, results leave when the next tile has come.
    if reach >= (-4 if is_double else 0):
        verify_in_place(nest, tiling, sizes, TARGET, "shift", ("x", "y"))
        return
    with pytest.raises(ScheduleError, match="operand 'x': read where the result is written in place"):
        verify_in_place(nest, tiling, sizes, TARGET, "shift", ("x", "y"))


def test_a_schedule_is_verified_when_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = compiled_for("attention", TARGET, ScheduleOptions()).plan.schedule
    step = schedule.entries["step"]
    number = next(i for i, launch in enumerate(step.launches) if launch.nests)
    launch = step.launches[number]
    for tilings, text in (
        ((None, *launch.tilings[1:]), "computes from L2, the others do not"),
        (launch.tilings[1:], "not every nest has a tiling"),
    ):
        if not tilings:
            continue
        changed = replace(launch, tilings=tilings)
        entry = replace(step, launches=(*step.launches[:number], changed, *step.launches[number + 1 :]))
        with pytest.raises(ScheduleError, match=text) as caught:
            verify_schedule(replace(schedule, entries={**schedule.entries, "step": entry}))
        assert caught.value.node == launch.node.name
    monkeypatch.setattr(events_module.Flow, "settle_loads", lambda *_: iter(()))
    with pytest.raises(ScheduleError, match="has not arrived"):
        compiled_for("attention", TARGET, ScheduleOptions())


def test_verification_is_quick() -> None:
    """Half a second on an idle machine; equal nests are verified once."""
    schedule = compiled_for("mobilenetv1", siracusa(32 * KIB)).plan.schedule
    start = time.process_time()
    verify_schedule(schedule)
    assert time.process_time() - start < 2.0
