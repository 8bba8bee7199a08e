"""Plans for L1, L2 and L3: right whatever L2 has, and every fault put into one is found."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from tests.schedule.programs import KIB, UNTILED, compiled_for, host_state, imported, recipe_of, sim_state, siracusa
from tests.support.models import model, node, value, weights
from tilegrad import frontend, zoo
from tilegrad.errors import DoesNotFit, InternalError
from tilegrad.ir.listing import Begin, Enter, Move, Wait
from tilegrad.ir.plan import Address, EntryPlan, MemoryUse, Plan, Staging
from tilegrad.pipeline import compile_model
from tilegrad.place.plan import plan_memory
from tilegrad.recipe import Recipe
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.sequence import fastest
from tilegrad.sequence.replay import ListingError
from tilegrad.sequence.sequence import sequence_plan
from tilegrad.targets.base import L1, L2, L3, get

MODELS = ("odd_cnn", "attention")


def checked(plan: Plan) -> Plan:
    """What follows from a plan, proved."""
    return sequence_plan(plan).plan


@cache
def plan_of(name: str, home: str) -> Plan:
    return compiled_for(name, siracusa(), replace(UNTILED, home=home)).plan


def with_entry(plan: Plan, entry: str, changed: EntryPlan) -> Plan:
    return replace(plan, entries={**plan.entries, entry: changed})


def with_move(plan: Plan, entry: str, number: int, *moves: Staging) -> Plan:
    old = plan.entries[entry]
    return with_entry(plan, entry, replace(old, staging=(*old.staging[:number], *moves, *old.staging[number + 1 :])))


def last_launch(plan: Plan, entry: str) -> int:
    return len(plan.schedule.entries[entry].launches)


def late(plan: Plan, entry: str, move: Staging) -> Staging:
    """What comes is waited for behind its use; what goes starts before it is there."""
    return replace(move, wait=last_launch(plan, entry)) if move.inward else replace(move, start=0)


MOVES: dict[str, Callable[[Plan, str, Staging], tuple[Staging, ...]]] = {
    "missing": lambda plan, entry, move: (),
    "twice": lambda plan, entry, move: (move, move),
    "out of time": lambda plan, entry, move: (late(plan, entry, move),),
    "the wrong way": lambda plan, entry, move: (replace(move, inward=not move.inward),),
    "short": lambda plan, entry, move: (replace(move, size_bytes=move.size_bytes - 8),),
    "elsewhere in L2": lambda plan, entry, move: (replace(move, l2_offset=move.l2_offset + 8),),
    "elsewhere in L3": lambda plan, entry, move: (replace(move, l3_offset=move.l3_offset + 8),),
    "not aligned": lambda plan, entry, move: (replace(move, l2_offset=move.l2_offset + 4),),
    "past the end of L2": lambda plan, entry, move: (replace(move, l2_offset=plan.arena_bytes - 8),),
    "past the end of L3": lambda plan, entry, move: (replace(move, l3_offset=plan.memory[L3].used_bytes),),
    "waited for before it starts": lambda plan, entry, move: (
        replace(move, start=(move.wait if move.inward else last_launch(plan, entry)) + 1),
    ),
    "never waited for": lambda plan, entry, move: (replace(move, wait=last_launch(plan, entry) + 1),),
}


def is_idle(plan: Plan, entry: str, number: int) -> bool:
    """Whether a transfer brings what is there already, or what no nest reads: it may as well be left out."""
    try:
        checked(with_move(plan, entry, number))
    except ListingError:
        return False
    return True


@cache
def busy_moves(name: str) -> tuple[tuple[str, int], ...]:
    plan = plan_of(name, "L3")
    moves = [(entry, number) for entry, found in plan.entries.items() for number in range(len(found.staging))]
    idle = [(entry, number) for entry, number in moves if is_idle(plan, entry, number)]
    assert all(plan.entries[entry].staging[number].inward for entry, number in idle)
    assert len(moves) > 20 and len(idle) < len(moves) / 5
    return tuple(move for move in moves if move not in idle)


@pytest.mark.parametrize("fault", MOVES)
@pytest.mark.parametrize("name", MODELS)
def test_every_transfer_matters(name: str, fault: str) -> None:
    plan = plan_of(name, "L3")
    checked(plan)
    for entry, number in busy_moves(name):
        move = plan.entries[entry].staging[number]
        with pytest.raises(ListingError, match=f"listing of {entry}: "):
            checked(with_move(plan, entry, number, *MOVES[fault](plan, entry, move)))


def test_a_launch_finds_what_it_needs_in_l2() -> None:
    plan = plan_of("odd_cnn", "L3")
    for entry, entry_plan in plan.entries.items():
        for name in entry_plan.stays:
            shortened = {**entry_plan.stays, name: entry_plan.stays[name][:-1]}
            read_later = any(
                name in (operand.value for nest in launch.nests for operand in nest.operands)
                for launch in plan.schedule.entries[entry].launches[entry_plan.stays[name][-1].first :]
            )
            if read_later:
                with pytest.raises(InternalError, match="is not in L2"):
                    checked(with_entry(plan, entry, replace(entry_plan, stays=shortened)))


def test_values_in_use_at_once_do_not_share_bytes() -> None:
    """Whatever a node reads is put where another of its operands lies."""
    plan = plan_of("odd_cnn", "L2")
    tried = 0
    for entry, entry_plan in plan.entries.items():
        for graph_node in plan.schedule.entries[entry].graph.nodes:
            values = [name for name in (*graph_node.inputs, *graph_node.outputs) if name in entry_plan.addresses]
            here = [name for name in values if entry_plan.addresses[name].region == "arena"]
            for name, other in pairwise(here):
                if entry_plan.addresses[name] == entry_plan.addresses[other]:
                    continue
                tried += 1
                moved = {**entry_plan.addresses, name: entry_plan.addresses[other]}
                with pytest.raises(ListingError):
                    checked(with_entry(plan, entry, replace(entry_plan, addresses=moved)))
    assert tried > 20


def test_state_is_where_the_next_call_looks_for_it() -> None:
    plan = plan_of("attention", "L2")
    names = list(plan.state_addresses)
    for name, other in pairwise(names):
        addresses = {**plan.state_addresses, name: plan.state_addresses[other]}
        with pytest.raises(ListingError):
            checked(replace(plan, state_addresses=addresses))
    entry = plan.entries["update"]
    written = [value for value, _ in plan.schedule.entries["update"].graph.writes]
    for value_name in written:
        addresses = {**entry.addresses, value_name: Address(L2, "arena", 0)}
        with pytest.raises(ListingError):
            checked(with_entry(plan, "update", replace(entry, addresses=addresses)))


FUSED = ScheduleOptions(fuses_update=True)
# Where L2 is full most of the time: gradients in memory, and all or much of it coming and going.
CROWDED = [("mobilenetv1", replace(UNTILED, home="L3")), ("mobilenetv1", ScheduleOptions()), ("cct", UNTILED)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [*((name, FUSED) for name in zoo.names()), *CROWDED])
def test_memories_are_used_next_to_their_lower_bound(name: str, options: ScheduleOptions) -> None:
    memory = compiled_for(name, siracusa(), options).plan.memory
    for level in (L2, L3):
        use = memory[level]
        assert use.lower_bound_bytes <= use.used_bytes <= 1.06 * use.lower_bound_bytes, level
        assert use.used_bytes <= (use.capacity_bytes or 0)


def rehomed(plan: Plan, name: str) -> Plan:
    """A state tensor in the other memory, behind all else there, with its bytes in the image: nothing else is wrong."""
    size = next(tensor.type.size_bytes for tensor in plan.schedule.program.state if tensor.name == name)
    size += -size % 8
    to_l3 = plan.state_addresses[name].memory == L2
    level = L3 if to_l3 else L2
    used = plan.memory[level]
    memory = {**plan.memory, level: replace(used, used_bytes=used.used_bytes + size, capacity_bytes=1 << 30)}
    if to_l3:
        address = Address(L3, "l3", used.used_bytes)
        grown = replace(plan, memory=memory, l3_image_bytes=used.used_bytes + size)
    else:
        address = Address(L2, "state", plan.state_bytes)
        end = plan.state_bytes + size
        grown = replace(plan, memory=memory, state_bytes=end, image_bytes=end)
    return replace(grown, state_addresses={**plan.state_addresses, name: address})


@pytest.mark.parametrize("home", ["L2", "L3"])
def test_what_is_updated_in_place_is_in_one_memory(home: str) -> None:
    """`weight` in one memory and `weight_updated`, which is to be the same bytes, in another."""
    plan = checked(plan_of("odd_cnn", home))
    updated = {state for entry in plan.schedule.entries.values() for _, state in entry.graph.writes}
    assert len(updated) > 20 and home in {plan.state_addresses[name].memory for name in updated}
    for name in sorted(updated):
        with pytest.raises(ListingError, match=f"'{re.escape(name)}'"):
            checked(rehomed(plan, name))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda plan: {"arena_bytes": plan.arena_bytes - 8}, "is at arena.*, where no core finds it"),
        (lambda plan: {"state_bytes": plan.state_bytes - 8}, "lies beyond its region"),
        (lambda plan: {"image_bytes": plan.image_bytes - 8}, "the initial values of '.*' are not in the image"),
        (lambda plan: {"arena_bytes": plan.arena_bytes + 8}, "L2 is said to use less than the state and the arena"),
        (
            lambda plan: {"memory": {**plan.memory, L3: MemoryUse(9_000_000, 8_388_608, 0)}},
            "L3 holds 8388608 bytes, the plan uses 9000000",
        ),
    ],
)
def test_sizes_are_those_of_the_memories(change: Callable[[Plan], dict[str, object]], text: str) -> None:
    plan = plan_of("attention", "L2")
    with pytest.raises(ListingError, match=text):
        checked(replace(plan, **change(plan)))  # type: ignore[arg-type]


def test_the_scratchpad_is_large_enough_for_every_nest() -> None:
    plan = compiled_for("attention", siracusa(4096)).plan
    small = MemoryUse(plan.memory[L1].used_bytes - 8, 4096, 0)
    with pytest.raises(ListingError, match="lies beyond L1"):
        checked(replace(plan, memory={**plan.memory, L1: small}))


def test_events_keep_the_order_of_the_plan() -> None:
    """Each transfer starts once and is waited for once, behind its start; launches run in order."""
    plan = plan_of("odd_cnn", "L3")
    for entry, entry_plan in plan.entries.items():
        listing = sequence_plan(plan).entries[entry]
        launched = [listing.nests[event.nest].launch for event in listing.events if isinstance(event, Enter)]
        assert launched == sorted(launched)
        started = [event.transfer for event in listing.events if isinstance(event, Move)]
        waited = [event.transfer for event in listing.events if isinstance(event, Wait)]
        assert sorted(started) == sorted(waited) == list(range(len(entry_plan.staging)))
        assert sum(isinstance(event, Begin) for event in listing.events) == len(listing.nests)


@pytest.mark.parametrize("name", [*MODELS, "simplemlp", "dscnn", "cct_lora"])
def test_any_l2_is_planned_or_refused(name: str) -> None:
    """From plenty to nothing: a valid plan (the planner validates its own), or the budget that does not fit."""
    schedule = compiled_for(name, siracusa(), UNTILED).plan.schedule
    plenty = replace(schedule, target=siracusa(l2_bytes=8 * KIB * KIB))
    needed = plan_memory(plenty, "auto").memory[L2].used_bytes
    outcomes = []
    for percent in range(100, 0, -4):
        target = siracusa(l2_bytes=max(needed * percent // 100, 1))
        try:
            plan = plan_memory(replace(schedule, target=target), "auto")
        except DoesNotFit as error:
            assert error.node is not None and error.expected is not None and error.got is not None
            outcomes.append(0)
        else:
            outcomes.append(1 if plan.memory[L3].used_bytes == 0 else 2)
    assert outcomes[0] == 1 and outcomes[-1] == 0
    assert outcomes == sorted(outcomes, key=lambda outcome: {1: 0, 2: 1, 0: 2}[outcome])
    assert 2 in outcomes


@pytest.mark.parametrize(("name", "share"), [("odd_cnn", 0.97), ("attention", 0.97), ("autoencoder_tiny", 0.5)])
def test_a_tight_l2_gives_the_same_bits(name: str, share: float) -> None:
    """Some tensors live in L3, some in L2, as the planner decides."""
    needed = plan_of(name, "L2").memory[L2].used_bytes
    compiled = compiled_for(name, siracusa(4096, l2_bytes=int(needed * share)), ScheduleOptions(buffering="double"))
    assert 0 < compiled.plan.memory[L3].used_bytes < plan_of(name, "L3").memory[L3].used_bytes
    assert sim_state(compiled, 2) == host_state(name, 2)


@pytest.mark.slow
def test_a_plan_that_fits_stands_where_a_smaller_share_of_l2_would_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest node takes 80 % of L2, and the allocator is left with gaps. One plan is enough to see it."""
    monkeypatch.setattr(fastest, "WAITS_FOR_L3", 1.0)
    recipe = Recipe(batch=2)
    made = compile_model(frontend.load("mobilenetv1", batch=2), recipe, get("pulp_small"))
    use = made.plan.memory[L2]
    assert use.capacity_bytes is not None and use.used_bytes <= use.capacity_bytes


def test_an_operators_scratch_is_never_moved() -> None:
    """It is in use the moment it exists; the loss of many rows has one that is worth moving."""
    rows = 1024
    source = model(
        [node("LayerNormalization", "x g b", "h", "/norm", axis=-1), node("Gemm", "h w c", "y", "/fc", transB=1)],
        [value("x", ["batch", 2])],
        [value("y", ["batch", 2])],
        {"g": weights(2), "b": weights(2), "w": weights(2, 2), "c": weights(2)},
    )
    imported_model, recipe = frontend.load(source, batch=rows), Recipe(batch=rows)
    full = compile_model(imported_model, recipe, siracusa(), options=UNTILED).plan.memory[L2].used_bytes
    for l2_bytes in range(full - 1024, full // 2, -2048):
        try:
            compile_model(imported_model, recipe, siracusa(l2_bytes=l2_bytes), options=UNTILED)
        except DoesNotFit as error:
            assert "does not fit into L2" in error.message


def test_planning_is_deterministic() -> None:
    name = "odd_cnn"
    plans = [
        compile_model(imported(name), recipe_of(name), siracusa(4096), options=ScheduleOptions(home="L3"))
        for _ in range(2)
    ]
    assert plans[0].project.files == plans[1].project.files
