"""Nests that pipes join: the words of generated C say what passes through which ring, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest

from tests.sequence.decode_pipes import PipedConductor
from tests.sequence.emitted_words import Pipe, constants, emitted, flipped, named_words
from tests.sequence.listed_actions import difference, listed_actions
from tests.sequence.test_decode_launch import launch_flags, widths
from tests.sequence.test_near_pipes import chain, joined
from tests.sequence.test_pipes import compiled, product_then_sum, sharing_l1, small_npu
from tilegrad.compiled import Compiled

ROWS = 251
SLOW = small_npu(2, 3, elements_per_cycle=1.0)  # whose vector engine needs several lanes to keep up


def pair(rows: int = ROWS, *, is_backwards: bool = False) -> Callable[..., Compiled]:
    return lambda **options: compiled(product_then_sum(rows, 24, 16, is_backwards), rows, **options)


def three(*, is_two_way: bool) -> Callable[..., Compiled]:
    model = chain(ROWS, 24, 16, is_two_way=is_two_way)
    return lambda target: joined(model, ROWS, target, is_two_way)


WAYS: dict[str, Callable[[], Compiled]] = {
    "a pair": pair(),
    "a pair over two blocks": lambda: pair(is_backwards=True)(depth=4, blocks=2),
    "a pair in L1": lambda: pair()(target=sharing_l1(small_npu())),
    "readers on several lanes": lambda: pair()(target=SLOW),
    "makers on several lanes": lambda: pair(is_backwards=True)(target=SLOW),
    "readers on several lanes, in L1": lambda: pair()(target=sharing_l1(SLOW)),
    "makers on several lanes, in L1": lambda: pair(61, is_backwards=True)(target=sharing_l1(SLOW)),
    "three in a row": lambda: three(is_two_way=True)(target=small_npu()),
    "two into one": lambda: three(is_two_way=False)(target=small_npu()),
    "two into one, in L1": lambda: three(is_two_way=False)(target=sharing_l1(small_npu())),
    "no pipes": lambda: pair()(depth=None),
}


@cache
def made(way: str) -> Compiled:
    return WAYS[way]()


@pytest.mark.parametrize("way", WAYS)
def test_words_say_what_passes_through_pipes(way: str, tmp_path: Path) -> None:
    listing = made(way).listing
    program = emitted(made(way), tmp_path)
    assert any(nest.is_joined for nest in listing.entries["infer"].nests) is (way != "no pipes")
    assert all((pipe.near > 0) is way.endswith("in L1") for pipe in program.pipes)
    for entry in listing.entries:
        assert difference(PipedConductor, program, listing, entry) is None


def test_one_program_has_every_width(tmp_path: Path) -> None:
    program_of = pair()(blocks="n")
    found = widths(PipedConductor, emitted(program_of, tmp_path), program_of.plan, range(1, 4))
    assert len(found["infer"]) == 3


@pytest.mark.parametrize("way", ["a pair", "a pair in L1"])
def test_another_listing_is_not_what_the_words_say(way: str, tmp_path: Path) -> None:
    program, listing = emitted(made(way), tmp_path), made(way).listing
    wanted = list(listed_actions(listing, "infer"))
    for i in range(0, len(wanted), 3):
        assert difference(PipedConductor, program, listing, "infer", wanted=wanted[:i] + wanted[i + 1 :]) is not None


@pytest.mark.parametrize(
    ("way", "unused"), [("readers on several lanes", "near_lanes"), ("readers on several lanes, in L1", "slices")]
)
def test_each_field_of_a_pipe_is_noticed(way: str, unused: str, tmp_path: Path) -> None:
    """All but what only pipes elsewhere have."""
    program, listing = emitted(made(way), tmp_path), made(way).listing
    own, *others = program.pipes
    unnoticed = set()
    for field in fields(Pipe):
        value = 0 if field.name == "slices" else getattr(own, field.name) + 1
        changed = replace(program, pipes=(replace(own, **{field.name: value}), *others))
        if difference(PipedConductor, changed, listing, "infer") is None:
            unnoticed.add(field.name)
    assert unnoticed == {unused}


def test_what_joins_nests_is_noticed(tmp_path: Path) -> None:
    """Whether and over what nests are joined, by how many lanes, and through which pipe."""
    c, way = constants(), "two into one"
    program, listing = emitted(made(way), tmp_path), made(way).listing
    flags = launch_flags(program, "infer")
    assert [bool(program.words[at] & c["TG_JOINS"]) for at in flags] == [True, True, False]
    for at in flags:
        for bit in (c["TG_JOINS"], 1 << c["TG_LIMIT_SHIFT"], 1 << c["TG_LANES_SHIFT"]):
            assert difference(PipedConductor, flipped(program, at, bit), listing, "infer") is not None
    homes = [at for at, field in named_words(program, "infer").items() if field == "home"]
    piped = [at for at in homes if c["TG_IN_PIPE"] <= program.words[at] < c["TG_ABSENT"]]
    assert sorted(program.words[at] - c["TG_IN_PIPE"] for at in piped) == [0, 0, 1, 1]
    for at in piped:
        assert difference(PipedConductor, flipped(program, at, 1), listing, "infer") is not None
