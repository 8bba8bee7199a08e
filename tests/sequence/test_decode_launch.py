"""Launches over blocks: the words of generated C say what each block does, whatever the width."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import tilegrad as tg
from tests.schedule.programs import imported, recipe_of
from tests.sequence.decode import Machine
from tests.sequence.decode_launch import Conductor
from tests.sequence.emitted_words import Program, constants, emitted, flipped, layout, named_words
from tests.sequence.listed_actions import difference, listed_actions
from tests.sequence.test_pipes import product_then_sum
from tilegrad.compiled import Compiled
from tilegrad.ir.listing import Barrier
from tilegrad.ir.plan import Plan
from tilegrad.pipeline import compile_model
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.sequence.sequence import sequence_plan
from tilegrad.targets import base as targets
from tilegrad.targets.base import L1

MOST = 16


@cache
def compiled(name: str, blocks: str, l1_bytes: int, home: str = "auto") -> Compiled:
    most = MOST if "n" in blocks else None
    options = ScheduleOptions(blocks=blocks, most_blocks=most, home=home, fuses_update=False)
    target = targets.get("mppa").with_capacity(L1, l1_bytes)
    if name == "long_sums":
        recipe = tg.Recipe(loss="mse", batch=12)
        return tg.compile(product_then_sum(12, 400, 16), recipe, target=target, blocks=blocks, most_blocks=most)
    return compile_model(imported(name), recipe_of(name), target, options=options)


@pytest.mark.parametrize(
    ("name", "blocks", "l1_bytes", "home"),
    [
        ("simplemlp", "3", 4096, "L3"),
        ("two_heads", "4", 2048, "auto"),
        ("simplemlp", "7", 4096, "auto"),  # more than there are clusters: they take turns
        ("long_sums", "3", 2048, "auto"),  # a sum in several tiles stays with one block
        ("simplemlp", "auto", 4096, "auto"),
        ("long_sums", "auto", 2048, "auto"),
        ("two_heads", "auto", 1024, "auto"),
        pytest.param("attention", "auto", 16384, "auto", marks=pytest.mark.slow),
        pytest.param("odd_cnn", "auto", 4096, "auto", marks=pytest.mark.slow),
        pytest.param("odd_cnn", "5", 4096, "L3", marks=pytest.mark.slow),
    ],
)
def test_words_say_what_blocks_do(name: str, blocks: str, l1_bytes: int, home: str, tmp_path: Path) -> None:
    made = compiled(name, blocks, l1_bytes, home)
    program = emitted(made, tmp_path)
    assert any(nest.blocks for entry in made.listing.entries.values() for nest in entry.nests)
    for entry in made.listing.entries:
        assert difference(Conductor, program, made.listing, entry) is None


def widths(machine: Callable[..., Machine], program: Program, plan: Plan, blocks: Iterable[int]) -> dict[str, set[int]]:
    """Over how many blocks an entry's nests are launched where each of these numbers is set: as listed, so decoded."""
    found: dict[str, set[int]] = {}
    for n in blocks:
        listing = sequence_plan(replace(plan, schedule=replace(plan.schedule, blocks=n)))
        for entry, own in listing.entries.items():
            assert difference(machine, program, listing, entry, n) is None
            found.setdefault(entry, set()).update(e.blocks for e in own.events if isinstance(e, Barrier))
    return found


@pytest.mark.parametrize("blocks", ["n", "min(n/2, 6)"])
def test_one_program_has_every_width(blocks: str, tmp_path: Path) -> None:
    """The same words are the listing for each number that is set at run time."""
    made = compiled("simplemlp", blocks, 4096)
    program = emitted(made, tmp_path)
    found = widths(Conductor, program, made.plan, (2, 3, 5, 6, MOST))
    assert len(set().union(*found.values())) > 2
    assert difference(Conductor, program, made.listing, "step", MOST // 4) is not None


def test_another_listing_is_not_what_the_words_say(tmp_path: Path) -> None:
    """Each event counts, and whose it is."""
    made = compiled("simplemlp", "3", 4096)
    program, listing = emitted(made, tmp_path), made.listing
    own = listing.entries["step"]
    for i in range(0, len(own.events), 5):
        fewer = replace(own, events=own.events[:i] + own.events[i + 1 :])
        assert difference(Conductor, program, replace(listing, entries={"step": fewer}), "step") is not None
    wanted = list(listed_actions(listing, "step"))
    for at, (kind, *rest) in enumerate(wanted):
        if kind == "block" and rest[0] == 0:
            wanted[at] = (kind, 1, *rest[1:])
            break
    assert difference(Conductor, program, listing, "step", wanted=wanted) is not None


def launch_flags(program: Program, entry: str) -> list[int]:
    """Where the flags of launches are."""
    places = [at for at, field in named_words(program, entry).items() if field == "tg_call.flags"]
    return [at for at in places if program.words[at] >> constants()["TG_LIMIT_SHIFT"]]


def test_each_part_of_a_launch_is_noticed(tmp_path: Path) -> None:
    """A width is wherever it stands, and so is what is brought ahead, where anything is."""
    c, made = constants(), compiled("simplemlp", "3", 4096)
    program, listing = emitted(made, tmp_path), made.listing
    wanted, flags = list(listed_actions(listing, "step")), launch_flags(program, "step")
    launches = [nest for nest in listing.entries["step"].nests if nest.blocks]
    carried = [at for at, nest in zip(flags, launches, strict=True) if nest.ahead is not None]
    early = [at for at, nest in zip(flags, launches, strict=True) if nest.ahead]
    assert len(carried) > 3 and len(early) > 3

    def noticed(at: int, bits: int) -> bool:
        return difference(Conductor, flipped(program, at, bits), listing, "step", wanted=wanted) is not None

    names = [field for field, _ in layout("tg_call")]
    to_early = names.index("early") - names.index("flags")
    for at in flags:
        assert noticed(at, 1 << c["TG_LIMIT_SHIFT"]) and noticed(at, 1 << c["TG_LANES_SHIFT"])
    assert all(noticed(at, c["TG_CARRIED"]) and noticed(at, c["TG_BESIDE"]) for at in carried)
    assert all(noticed(at + to_early, 1) for at in early)
    assert all(noticed(at, c["TG_NEXT_LAUNCH"]) for at in flags[:-1])


def test_how_many_loops_stay_with_a_block_is_noticed(tmp_path: Path) -> None:
    c, made = constants(), compiled("long_sums", "3", 2048)
    program = emitted(made, tmp_path)
    inner = c["TG_MOST_INNER"] << c["TG_INNER_SHIFT"]
    places = [at for at in launch_flags(program, "infer") if program.words[at] & inner]
    assert places
    for at in places:
        fewer = flipped(program, at, program.words[at] & inner)
        assert difference(Conductor, fewer, made.listing, "infer") is not None
