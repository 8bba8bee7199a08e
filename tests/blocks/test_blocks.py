"""Launches over blocks: the host's bits for every width, widths that are set at run time, and races that are caught."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from tests.schedule.programs import host_state, imported, patched, recipe_of, run_once
from tilegrad import zoo
from tilegrad.build.toolchain import host_toolchain
from tilegrad.codegen.project import generate
from tilegrad.compiled import Compiled
from tilegrad.costs.clock import SharedMemory
from tilegrad.data.samples import make_batches
from tilegrad.devices.host import HostDevice
from tilegrad.devices.process import HarnessSession
from tilegrad.devices.sim import SimDevice
from tilegrad.errors import DeviceError, UserError
from tilegrad.frontend import load
from tilegrad.ir.blocks import Width, parse_width, share
from tilegrad.ir.listing import Barrier, Enter, EntryListing, Event, Listing, Load, Store, Wait
from tilegrad.ir.nest import AxisKind
from tilegrad.pipeline import compile_model
from tilegrad.recipe import Recipe
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.sequence.needs import Needs
from tilegrad.sequence.replay import ListingError, _Replay, replay
from tilegrad.sequence.sequence import sequence_plan
from tilegrad.sequence.timing import time_listing
from tilegrad.targets import base as targets
from tilegrad.targets.base import L1, Target
from tilegrad.training.train import Run, train

CLUSTERS = 5
MOST = 16
CONSTANT = ("1", "2", "3", "4", "5", "7", "16")
QUICK = ("1", "3", "7")
EXPRESSIONS = ("n", "n/2", "min(n, 3)", "min(n/2, 6)/2")


def mppa(l1_bytes: int | None = 4096) -> Target:
    target = targets.get("mppa")
    return target if l1_bytes is None else target.with_capacity(L1, l1_bytes)


def with_width(compiled: Compiled, blocks: str, most_blocks: int | None) -> Compiled:
    """The same program, launched over another number of blocks: nothing but widths is another."""
    options = replace(compiled.options, blocks=blocks, most_blocks=most_blocks)
    width, most = options.width(compiled.target)
    plan = compiled.plan
    entries = {}
    for name, entry in plan.schedule.entries.items():
        launches = [replace(one, widths=tuple(own and width for own in one.widths)) for one in entry.launches]
        entries[name] = replace(entry, launches=tuple(launches))
    schedule = replace(plan.schedule, entries=entries, width=width, blocks=most)
    listing = sequence_plan(replace(plan, schedule=schedule))
    return replace(compiled, listing=listing, project=generate(listing), options=options)


def fresh_program(name: str, blocks: str, home: str = "auto") -> Compiled:
    options = ScheduleOptions(blocks=blocks, most_blocks=most_of(blocks), home=home, fuses_update=False)
    return compile_model(imported(name), recipe_of(name), mppa(), options=options)


def most_of(blocks: str) -> int | None:
    width = parse_width(blocks)
    return MOST if width is not None and width.divisor else None


@cache
def program(name: str, blocks: str, home: str = "auto") -> Compiled:
    """What takes time is searched once for all widths."""
    if blocks == "5":
        return fresh_program(name, "5", home)
    return with_width(program(name, "5", home), blocks, most_of(blocks))


def quick_sim() -> SimDevice:
    """What nobody has set is neither zero nor what was there before: a conductor's stack is full of other numbers."""
    tools = host_toolchain()
    flags = tuple("-O1" if flag == "-O3" else flag for flag in tools.flags)
    return SimDevice("sim:mppa", toolchain=replace(tools, flags=(*flags, "-ftrivial-auto-var-init=pattern")))


def bits(run: Run) -> dict[str, bytes]:
    found = {"losses": repr(run.losses).encode()}
    return found | {name: array.tobytes() for name, array in (run.weights | run.statistics).items()}


# ---- Widths.


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("4", Width(4)),
        ("n", Width(128, 1)),
        ("n/2", Width(64, 2)),
        (" min( n , 3 ) ", Width(3, 1)),
        ("min(n/2, 6)/2", Width(3, 4)),
        ("min(min(n, 9), n/3)", Width(9, 3)),
        ("min(2, 3)", Width(2)),
    ],
)
def test_expressions_are_quotients_with_a_limit(text: str, width: Width) -> None:
    assert parse_width(text) == width


@pytest.mark.parametrize("text", ["", "n/0", "n*2", "n+1", "min(n)", "min(n,3", "3n", "-1", "n/n", "auto", "1.5"])
def test_what_is_no_width(text: str) -> None:
    assert parse_width(text) is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"blocks": "0"}, "--blocks cannot be '0'"),
        ({"blocks": "-1"}, "--blocks cannot be '-1'"),
        ({"blocks": "129"}, "--blocks cannot be '129'"),
        ({"blocks": "min(n, 0)"}, "cannot be"),
        ({"blocks": "n/9", "most_blocks": 8}, "no block for any n up to 8"),
        ({"blocks": "n", "most_blocks": 0}, "--most-blocks cannot be '0'"),
        ({"blocks": "4", "most_blocks": 4}, "set at run time"),
    ],
)
def test_widths_that_cannot_be_are_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(UserError) as caught:
        ScheduleOptions(**options)  # type: ignore[arg-type]
    assert text in caught.value.message


def test_shares_are_all_units_once() -> None:
    for units in (1, 2, 5, 16, 97):
        for blocks in range(1, 20):
            taken = [unit for block in range(blocks) for unit in range(*share(units, block, blocks))]
            assert taken == list(range(units))


# ---- Programs.


def test_reductions_are_never_split() -> None:
    for name in ("odd_cnn", "attention"):
        for entry in program(name, "5").listing.entries.values():
            launched = [listed for listed in entry.nests if listed.blocks]
            assert entry.nests == () or launched
            for listed in launched:
                reduced = {axis.name for axis in listed.nest.axes if axis.kind is AxisKind.REDUCTION}
                blocks: dict[object, set[int]] = {}
                for event in entry.events:
                    if isinstance(event, Store) and entry.nests[event.nest] is listed:
                        blocks.setdefault((event.operand, event.box), set()).add(event.queue.block)
                assert all(len(own) == 1 for own in blocks.values()), reduced


WAYS = [
    *((blocks, "odd_cnn", "auto") for blocks in CONSTANT),
    *((blocks, "attention", "L3") for blocks in CONSTANT),
]


@pytest.mark.parametrize(
    ("blocks", "name", "home"),
    [pytest.param(*way, marks=() if way[0] in QUICK else pytest.mark.slow) for way in WAYS],
)
def test_every_width_gives_the_hosts_bits(blocks: str, name: str, home: str) -> None:
    with quick_sim() as device:
        run = train(program(name, blocks, home), device, steps=2, verify=False)
    assert bits(run) == host_state(name, 2)


@pytest.mark.parametrize(
    "blocks", [pytest.param(one, marks=() if one == "n/2" else pytest.mark.slow) for one in EXPRESSIONS]
)
def test_a_width_that_is_set_at_run_time_gives_the_hosts_bits(blocks: str) -> None:
    compiled = program("odd_cnn", blocks)
    width = compiled.plan.schedule.width
    assert width is not None
    with quick_sim() as device:
        session = device.load(compiled)
        assert isinstance(session, HarnessSession)
        for updates, n in enumerate((width.divisor, 7, MOST)):
            session.set_blocks(n)
            for k in range(2):
                session.step(*make_batches(compiled, None).batch(2 * updates + k))
            session.update()
        found = {name: array.tobytes() for name, array in session.weights().items()}
        assert session.timings()["step"].cycles > 0  # the trace of the first call is that of its width
        for wrong in (0, -1, width.divisor - 1, MOST + 1, 1 << 40):
            with pytest.raises(UserError, match="TG_BAD_BLOCKS") as caught:
                session.set_blocks(wrong)
            assert caught.value.expected == f"{width.divisor} to {MOST}"
        assert {name: array.tobytes() for name, array in session.weights().items()} == found
    assert all(host_state("odd_cnn", 3)[name] == data for name, data in found.items())


def test_only_a_number_tells_widths_apart() -> None:
    """Of constant widths and of expressions: one model.c, and constants in its header."""
    made = {blocks: program("odd_cnn", blocks).project.files for blocks in (*QUICK, "5", "n/2")}
    first = made["1"]
    for files in made.values():
        assert files.keys() == first.keys()
        other = [name for name in files if files[name] != first[name] and name not in ("model.h", "manifest.json")]
        assert not other
        lines = zip(files["model.h"].decode().split("\n"), first["model.h"].decode().split("\n"), strict=True)
        assert all(re.sub(r"\d+|\s+", "", a) == re.sub(r"\d+|\s+", "", b) for a, b in lines)


def test_one_cluster_runs_blocks_in_rounds() -> None:
    options = ScheduleOptions(blocks="3", fuses_update=False)
    chip = targets.get("siracusa").with_capacity(L1, 4096)
    compiled = compile_model(imported("odd_cnn"), recipe_of("odd_cnn"), chip, options=options)
    with SimDevice("sim:siracusa") as device:
        assert bits(train(compiled, device, steps=2, verify=False)) == host_state("odd_cnn", 2)


def test_a_program_without_blocks_says_nothing_of_them() -> None:
    compiled = compile_model(imported("odd_cnn"), recipe_of("odd_cnn"), targets.get("siracusa"))
    assert b"BLOCKS" not in compiled.project.files["model.h"] + compiled.project.files["model.c"]
    with SimDevice("sim:siracusa") as device:
        session = device.load(compiled)
        assert isinstance(session, HarnessSession)
        with pytest.raises(UserError, match="at run time"):
            session.set_blocks(2)


def test_blocks_are_for_tiles() -> None:
    with pytest.raises(UserError, match="programs in tiles"):
        ScheduleOptions(is_tiled=False, blocks="2").check(mppa())
    with pytest.raises(UserError, match="one memory"):
        ScheduleOptions(blocks="2").check(targets.get("host"))


# ---- The clock.


@pytest.mark.slow
def test_more_clusters_take_less_time_and_memory_bounds_them() -> None:
    cycles = []
    for clusters in (1, 2, 5):
        chip = targets.get("mppa").with_clusters(clusters)
        options = ScheduleOptions(blocks="10")
        compiled = compile_model(imported("dscnn"), recipe_of("dscnn"), chip, options=options)
        timing = time_listing(compiled.listing)["step"]
        moved = timing.hops["L2-L1"].size_bytes
        assert timing.cycles >= moved / 32.0
        parts = timing.compute_cycles + timing.conduct_cycles + timing.dma_wait_cycles + timing.l3_wait_cycles
        assert parts == pytest.approx(timing.cycles)
        cycles.append(timing.cycles)
    assert cycles[0] > cycles[1] > cycles[2]


def test_shared_memory_never_rests_while_something_is_asked_for() -> None:
    """Engines are played in turns: what one asks for early, behind another that asked for later, is done early."""
    memory = SharedMemory(2.0)
    assert memory.take(10.0, 20) == 20.0
    assert memory.take(30.0, 20) == 40.0
    assert memory.take(0.0, 20) == 10.0
    assert memory.take(5.0, 30) == 45.0  # ten cycles between both, and five behind
    assert memory.take(0.0, 2) == 46.0
    assert memory.busy == [(0.0, 46.0)]


def test_a_launch_is_no_faster_than_its_roofline() -> None:
    for entry, timing in time_listing(program("odd_cnn", "5").listing).items():
        roof = timing.roofline
        assert roof is not None or (entry == "update" and not timing.nests)
        if roof is not None:
            assert (roof.clusters, roof.memory) == (CLUSTERS, "L2")
            assert max(roof.compute_cycles, roof.memory_cycles) <= roof.least_cycles <= roof.cycles <= timing.cycles
            assert 0 <= roof.bound_launches <= roof.launches <= len(timing.nests)
    alone = compile_model(imported("odd_cnn"), recipe_of("odd_cnn"), mppa().with_clusters(1))
    assert all(timing.roofline is None for timing in time_listing(alone.listing).values())


# ---- Faults: in the C, which the simulator stops, and in the listing, which the replay refuses.

SHARE = "(int)((block + 1) * units / blocks * tiles)"
FAULTS = {
    "no barrier": ("tg_barrier();", ";", r"the 5 blocks of the launch of \w+ have not met at a barrier"),
    "two blocks on one tile": (
        SHARE, "(int)(((block + 1) * units / blocks + (block + 1 < blocks)) * tiles)",
        r"launch of \w+: block \d writes L2 (arena|state)\+\d+, byte \d+ of \d+, which block \d writes",
    ),
    "every block does all": (
        "*first = (int)(block * units / blocks * tiles);\n    *stop = " + SHARE,
        "(void)block, (void)blocks; *first = 0;\n    *stop = (int)(units * tiles)",
        r"launch of \w+: block \d writes L2 (arena|state)\+\d+, byte \d+ of \d+, which (block \d writes|.*reads)",
    ),
    "a block does not wait": (
        "    carried->loading = t->loading;\n#endif\n    settle(&t->storing);",
        "    carried->loading = t->loading;\n#endif",
        r"is still under way when the block ends",
    ),
    "the table of another tile": (
        "        seek(words, nest, first);", "        seek(words, nest, 0);",
        r"hazard in \w+, nest \w+, tile \d+, block",
    ),
    "asked ahead for what blocks write": (
        "    load_first(t, next, words, 1, &t->loading);",
        "    settle(&t->storing);\n    load_first(t, next, words, 0, &t->loading);",
        r"launch of \w+: block \d (reads|writes) L2 (arena|state)\+\d+, byte \d+ of \d+, which|is still reading",
    ),
    "brought ahead for another tile": (
        "        take_tiles(words, t->next_first, t->next_stop);", "        take_tiles(words, 0, t->next_stop);",
        r"hazard in \w+, nest \w+, tile \d+, block",
    ),
    "asked ahead and never waited": (
        "    t->loading = carried->loading;", "    t->loading = NONE;", r"under way|was not brought|has not arrived",
    ),
    "another cluster's scratchpad": (
        "t->scratch = scratch;", "t->scratch = scratch + (block == 1 ? -64 : 0);", r"passes the end of L1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_launches_stop_the_run(fault: str) -> None:
    old, new, text = FAULTS[fault]
    faulty = patched(program("odd_cnn", "5"), "tg_tile.c", old, new)
    with quick_sim() as device, pytest.raises(DeviceError) as caught:
        run_once(device.load(faulty))
    assert re.search(text, caught.value.got or ""), caught.value.got
    assert re.search(r"hazard in (infer|step|update), nest \w+", caught.value.got or "")


def faulty_listings(listing: Listing) -> dict[str, tuple[Listing, str]]:
    own = listing.entries["step"]

    def changed(events: Sequence[Event]) -> Listing:
        entry = replace(own, events=tuple(events))
        return replace(listing, entries={"step": entry})

    events = list(own.events)
    barrier = next(i for i, event in enumerate(events) if isinstance(event, Barrier))
    launched = next(i for i, event in enumerate(events) if isinstance(event, Enter) and own.nests[event.nest].blocks)
    nest = events[launched].nest  # type: ignore[union-attr]
    blocks = {event.queue.block for event in events[launched + 1 : barrier]}  # type: ignore[union-attr]
    last = [i for i in range(launched + 1, barrier) if events[i].queue.block == max(blocks)]  # type: ignore[union-attr]
    inside = events[launched + 1 : barrier]
    stores = [i for i in range(launched + 1, barrier) if isinstance(events[i], Store)]
    first, other = events[stores[0]], events[stores[-1]]
    assert isinstance(first, Store) and isinstance(other, Store) and first.queue != other.queue
    twice = replace(other, far=first.far, box=first.box)
    leaving = [e for e in events if isinstance(e, Store) and own.nests[e.nest].blocks and e.queue.block == 0][-1]
    return {
        "no barrier": (changed(events[:barrier] + events[barrier + 1 :]), "not met at a barrier|outside of a launch"),
        "a block left out": (
            changed([e for i, e in enumerate(events) if i not in last]), "not the whole nest|leaves|finds nothing",
        ),
        "a barrier of fewer": (changed([*events[:barrier], Barrier(nest, 2), *events[barrier + 1 :]]), "no launch"),
        "two blocks store one box": (
            changed([*events[: stores[-1]], twice, *events[stores[-1] + 1 :]]), "may use|leaves twice|is not there",
        ),
        "a block comes twice": (changed([*events[:barrier], *inside, *events[barrier:]]), "comes twice"),
        "a block does not wait for its last store": (
            changed([e for e in events if not is_wait(e, leaving)]), "block 0 ends while a transfer is under way",
        ),
        "asked ahead for what blocks write": (changed(asked_too_early(own)), "another block may (write|use)|finds"),
        "brought ahead and never waited for": (changed(never_waited(own)), "not arrived|never waited|under way"),
    }  # fmt: skip


def ahead_loads(own: EntryListing) -> list[int]:
    """Where operands are asked for before a barrier that their nest is behind."""
    turn, found = -1, []
    for i, event in enumerate(own.events):
        turn = event.nest if isinstance(event, Enter) else turn
        if isinstance(event, Load) and event.nest > turn and own.nests[event.nest].blocks:
            found.append(i)
    return found


def asked_too_early(own: EntryListing) -> list[Event]:
    """An operand that the launch before writes, with one that it does not."""
    for i in ahead_loads(own):
        early, events = own.events[i], list(own.events)
        assert isinstance(early, Load)
        for k in range(i + 1, len(events)):
            late = events[k]
            if not isinstance(late, Load) or (late.queue, late.transfer) != (early.queue, early.transfer):
                continue
            if late.operand not in (own.nests[late.nest].ahead or ()):
                return [*events[: i + 1], late, *events[i + 1 : k], *events[k + 1 :]]
    raise AssertionError("nothing is asked for late")


def never_waited(own: EntryListing) -> list[Event]:
    early = own.events[ahead_loads(own)[0]]
    assert isinstance(early, Load)
    return [one for one in own.events if not is_wait(one, early)]


def is_wait(event: Event, transfer: Load | Store) -> bool:
    return isinstance(event, Wait) and (event.queue, event.transfer) == (transfer.queue, transfer.transfer)


def test_faults_of_launches_in_a_listing_are_refused() -> None:
    listing = program("odd_cnn", "5").listing
    for fault, (faulty, text) in faulty_listings(listing).items():
        with pytest.raises(ListingError) as caught:
            replay(faulty)
        assert re.search(text, caught.value.message), (fault, caught.value.message)
        assert caught.value.node is not None, fault


def test_operands_that_other_blocks_write_are_seen() -> None:
    """A result in the place of an operand of which a tile reads more than it writes."""
    listing = program("odd_cnn", "5").listing
    own = listing.entries["step"]
    store = next(e for e in own.events if isinstance(e, Store) and own.nests[e.nest].blocks)
    loads = [e for e in own.events if isinstance(e, Load) and e.nest == store.nest and e.queue != store.queue]
    assert loads
    replaying = _Replay(listing, "step", Needs())
    replaying.turn = store.nest
    replaying.begin_launch(Enter(store.nest))
    replaying.claim(store)
    with pytest.raises(ListingError, match="reads what another block may write"):
        replaying.claim(replace(loads[0], region=store.region, far=store.far, parts=store.parts))


# ---- Whole models.


@pytest.mark.parametrize("blocks", ["7", "n/2"])
def test_a_width_is_nothing_but_a_number(blocks: str) -> None:
    assert program("odd_cnn", blocks).project.files == fresh_program("odd_cnn", blocks).project.files


def recipe_for(name: str) -> Recipe:
    return Recipe(batch=5 if name in ("resnet8", "cct") else 10)


@cache
def host_bits(name: str, updates: int) -> dict[str, bytes]:
    recipe = recipe_for(name)
    compiled = compile_model(load(name, batch=recipe.batch, seed=recipe.seed), recipe, targets.get("host"))
    with HostDevice() as device:
        return bits(train(compiled, device, steps=updates, verify=False))


@cache
def over(name: str, blocks: str) -> Compiled:
    recipe, options = recipe_for(name), ScheduleOptions(blocks=blocks)
    return compile_model(load(name, batch=recipe.batch, seed=recipe.seed), recipe, mppa(None), options=options)


@pytest.mark.matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("blocks", [*CONSTANT, *EXPRESSIONS, "auto"])
@pytest.mark.parametrize("name", ["mlp", "dscnn", "resnet8", "cct"])
def test_models_give_the_hosts_bits_on_every_width(name: str, blocks: str) -> None:
    """After ten updates: constant widths, what is best for each operator, and expressions of a number that is another
    for each update."""
    compiled = over(name, "auto" if blocks == "auto" else "5")
    if blocks not in ("auto", "5"):
        compiled = with_width(compiled, blocks, MOST if "n" in blocks else None)
    expected = host_bits(name, 10)
    with SimDevice("sim:mppa") as device:
        if "n" not in blocks:
            assert bits(train(compiled, device, steps=10, verify=False)) == expected
            return
        session, width, batches = device.load(compiled), compiled.plan.schedule.width, make_batches(compiled, None)
        assert isinstance(session, HarnessSession) and width is not None
        for update in range(10):
            session.set_blocks(min(MOST, width.divisor * int(CONSTANT[update % len(CONSTANT)])))
            session.step(*batches.batch(update))
            session.update()
        found = {name: array.tobytes() for name, array in session.weights().items()}
    assert found.keys() <= expected.keys() and all(expected[name] == data for name, data in found.items())


@pytest.mark.matrix
@pytest.mark.parametrize("name", zoo.names())
def test_auto_is_never_slower_than_one_cluster(name: str) -> None:
    """Not even than the best program for a chip with one cluster, whose nests hand over to each other."""
    recipe = Recipe()
    model = load(name, batch=recipe.batch, seed=recipe.seed)
    cycles = []
    for clusters in (1, CLUSTERS):
        timing = time_listing(compile_model(model, recipe, mppa(None).with_clusters(clusters)).listing)
        cycles.append({entry: one.cycles for entry, one in timing.items()})
    assert all(cycles[1][entry] <= cycles[0][entry] for entry in cycles[0])
