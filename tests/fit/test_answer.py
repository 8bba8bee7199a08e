"""What would make training fit: ranked, planned, and true when it is followed."""

from __future__ import annotations

import shlex

import pytest

import tilegrad as tg
from tests.support.command_line import CommandLine
from tilegrad.errors import DoesNotFit
from tilegrad.frontend import load
from tilegrad.pipeline import ways_to_fit
from tilegrad.recipe import Adam, Recipe
from tilegrad.targets import base as targets
from tilegrad.targets.base import RAM

KIB = 1024


def test_each_way_takes_what_it_says(tilegrad: CommandLine) -> None:
    """The options are typed as they stand, and the program that they lead to has these bytes and MACs."""
    asked = ("mlp", "--target", "mcu", "--ram", "500K", "--lr", "0.001")
    found = tilegrad("inspect", *asked, "--optimizer", "adam", "--fit", "--json", "-")
    assert found.status == 2
    ways = found.json["ways"]
    assert not ways["fits"] and ways["bound_bytes"] <= ways["least_bytes"] > 500 * KIB
    helping = [way for way in ways["ways"] if way["fits"]]
    assert {way["results"] for way in helping} == {"other"} and len(helping) >= 3
    assert [way["trained"] for way in helping] == sorted((way["trained"] for way in helping), reverse=True)
    for way in helping[:3]:
        optimizer = () if "--optimizer" in way["options"] else ("--optimizer", "adam")
        facts = tilegrad("inspect", *asked, *optimizer, *shlex.split(way["options"]), "--json", "-")
        assert facts.status == 0, way
        assert facts.json["memory"]["RAM"]["used"] == way["used_bytes"] <= 500 * KIB
        assert facts.json["macs"]["step"] == way["macs"]


@pytest.mark.slow
def test_what_keeps_the_results_comes_first(tilegrad: CommandLine) -> None:
    found = tilegrad("inspect", "dscnn", "--target", "mcu", "--ram", "400K", "--fit", "--json", "-")
    assert found.status == 0
    first, *others = found.json["ways"]["ways"]
    assert (first["options"], first["results"], first["fits"]) == ("--fit", "same", True)
    assert first["used_bytes"] == found.json["memory"]["RAM"]["used"] <= 400 * KIB
    assert first["macs"] == found.json["macs"]["step"]
    fit = found.json["fit"]
    assert fit["after_bytes"] == first["used_bytes"] < fit["before_bytes"] and fit["repeated_operators"] > 0
    assert fit["after_macs"] == first["macs"] >= fit["before_macs"]
    assert others and all(way["results"] == "other" for way in others)


def test_what_fits_needs_nothing() -> None:
    chip = targets.get("mcu")
    found = ways_to_fit(load("simplemlp"), Recipe(), chip)
    assert found.as_is.fits and found.fits and found.ways == () and found.hints == ()
    assert found.bound_bytes <= found.as_is.used_bytes


def test_a_hint_is_there_only_if_it_closes_the_gap() -> None:
    """Adam's state is most of it: a stateless optimizer helps where the rest fits, and is not named where not."""
    model, recipe, chip = load("mlp"), Recipe(optimizer=Adam(lr=0.001)), targets.get("mcu")
    with pytest.raises(DoesNotFit) as enough:
        tg.compile(model, recipe, target=chip)
    assert "--optimizer sgd (" in str(enough.value.hint)
    with pytest.raises(DoesNotFit) as short:
        tg.compile(model, recipe, target=chip.with_capacity(RAM, 400 * KIB))
    assert "--optimizer sgd" not in str(short.value.hint) and "--train last:" in str(short.value.hint)


def test_smaller_batches_are_among_the_ways() -> None:
    chip = targets.get("mcu").with_capacity(RAM, 10 * KIB)
    found = ways_to_fit(load("simplemlp", batch=64), Recipe(batch=64), chip)
    assert not found.as_is.fits
    assert next(way.options for way in found.helping if way.trained == found.trainable) == "--batch 16"


def test_the_table_has_eighty_columns(tilegrad: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    found = tilegrad("inspect", "simplemlp", "--target", "mcu", "--ram", "2800", "--fit")
    assert found.status == 0 and max(map(len, found.out.splitlines())) <= 80
    assert "ways to fit into 2,800 bytes of RAM" in found.out and "--train bias" in found.out
    assert "with the same results nothing needs less than" in found.out


@pytest.mark.parametrize("size", ["many", "-3K", "0", "12Q", ""])
def test_what_is_no_size_is_one_message(tilegrad: CommandLine, size: str) -> None:
    found = tilegrad("inspect", "simplemlp", "--target", "mcu", f"--ram={size}", "--fit")
    assert found.status == 2 and found.out == ""
    assert found.err.count("error:") == 1 and "Traceback" not in found.err


def test_a_budget_of_ram_and_flash_needs_no_chip(tilegrad: CommandLine) -> None:
    """What is asked for is a microcontroller; what runs it is the host, or a board where flash is asked for."""
    asked = ("--ram", "256K", "--flash", "1M")
    found = tilegrad("inspect", "simplemlp", *asked, "--fit", "--json", "-")
    assert found.status == 0 and found.json["target"] == "mcu"
    assert [found.json["memory"][name]["capacity"] for name in ("RAM", "FLASH")] == [256 * KIB, 1024 * KIB]
    trained = tilegrad("train", "simplemlp", "--ram", "256K", "--fit", "--steps", "1", "--json", "-")
    assert trained.status == 0 and trained.json["device"] == "host"


def test_where_nothing_helps_what_comes_nearest_is_told(tilegrad: CommandLine) -> None:
    found = tilegrad("inspect", "simplemlp", "--ram", "300", "--fit", "--json", "-")
    assert found.status == 2
    ways = [way for way in found.json["ways"]["ways"] if way["results"] == "other"]
    assert ways and not any(way["fits"] for way in ways)
    assert min(way["used_bytes"] for way in ways) < found.json["ways"]["least_bytes"]
