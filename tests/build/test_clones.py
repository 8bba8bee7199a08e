"""Frames of functions that a compiler cloned: assembly numbers them, accounts do so less exactly or not at all."""

from __future__ import annotations

import pytest

from tests.support.projects import zoo_model
from tilegrad import zoo
from tilegrad.build import frames
from tilegrad.build.frames import Listing, parse_listing
from tilegrad.errors import DeviceError
from tilegrad.stack import stack_use


def listing(**frames: int | None) -> Listing:
    return Listing({name.replace("__", "."): size for name, size in frames.items()}, {}, [], [], [])


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        ("f", 10),
        ("f.constprop.0", 20),
        ("f.constprop.0.isra.0", 30),
        ("f.constprop.12.isra.3", 30),
        ("f.part.0", 40),
        ("f.part.0.lto_priv.7", 40),  # no account of its own: the largest of all clones of f
        ("f.isra.0", 40),
        ("f.llvm.8812345678901234567", 40),
        ("f.specialized.1", 40),
    ],
)
def test_a_clone_finds_its_account(function: str, wanted: int) -> None:
    told = listing(f=10, f__constprop=20, f__constprop__isra=30, f__part=40, g=99)
    assert told.frame_bytes(function) == wanted


def test_a_function_without_any_account_is_an_error() -> None:
    with pytest.raises(DeviceError, match=r"no frame of 'h\.constprop\.0'"):
        listing(f=10).frame_bytes("h.constprop.0")


def test_a_clone_of_a_frame_that_grows_has_no_bound() -> None:
    with pytest.raises(DeviceError, match="grows"):
        listing(f__constprop=None).frame_bytes("f.constprop.0.cold")


def test_numbered_accounts_tell_of_their_own_clone() -> None:
    assembly = "".join(f"\t.type\t{name}, @function\n{name}:\n\tret\n\t.size\t{name}, 1\n" for name in ("f.isra.0",))
    assert parse_listing(assembly, "a.c:1:1:f.isra.0\t64\tstatic\na.c:1:1:f.isra.1\t900\tstatic\n").frame_bytes(
        "f.isra.0"
    ) == 64  # fmt: skip


@pytest.mark.parametrize("name", ["simplemlp", *(pytest.param(n, marks=pytest.mark.slow) for n in zoo.names()[1:])])
def test_the_stack_of_every_zoo_model_is_known_on_the_host(name: str) -> None:
    use = stack_use(zoo_model(name))
    assert use.reason is None and use.entries["step"] > 0, use


def test_accounts_are_sorted_once_however_many_clones_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def counted(name: str) -> str:
        nonlocal calls
        calls += 1
        return without_numbers(name)

    without_numbers = frames._without_numbers
    monkeypatch.setattr(frames, "_without_numbers", counted)
    told = Listing({f"f{i}.constprop": i for i in range(500)}, {}, [], [], [])
    assert [told.frame_bytes(f"f{i}.constprop.0") for i in range(500)] == list(range(500))
    assert calls <= 1000
