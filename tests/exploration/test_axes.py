"""Axes, grids and fronts, on paper."""

from __future__ import annotations

from typing import Any

import pytest

from tilegrad.commands.explore import axis_kinds
from tilegrad.errors import UserError
from tilegrad.exploration.axes import grid, parse_axes
from tilegrad.exploration.pareto import available, marked

KINDS = axis_kinds()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("l1=16K:256K", ("16K", "32K", "64K", "128K", "256K")),
        ("l1=16K:40K", ("16K", "32K", "40K")),
        ("l2=1000,1M", ("1000", "1M")),
        ("cores=1,2,4:6", (1, 2, 4, 5, 6)),
        ("lr=0.1,1e-3", (0.1, 0.001)),
        ("nesterov=true,false", (True, False)),
        ("blocks=1:3,auto", ("1", "2", "3", "auto")),
        ("store=f32,bf16", ("f32", "bf16")),
        ("train=all,last:2,lora:4", ("all", "last:2", "lora:4")),
        ("buffering=l2=single,l3=double;double", ("l2=single,l3=double", "double")),
        ("target=siracusa,gap9,siracusa", ("siracusa", "gap9")),
    ],
)
def test_values(text: str, values: tuple[object, ...]) -> None:
    assert parse_axes([text], KINDS)[0].values == values


WRONG = {
    "core=1": "there is no axis 'core'",
    "blocks=5:1": "words",
    "cores=": "got: no value",
    "cores=4:1": "whole numbers",
    "cores=two": "got: two",
    "l1=256K:16K": "sizes",
    "l1=16K,,32K": "got: no value",
    "lr=nan": "got: nan",
    "nesterov=yes": "true,false",
    "cores=1:1000 batch=1:1000": "at most 100000 points",
    "cores=1 cores=2": "'cores' is there twice",
    "": "there is nothing to vary",
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_no_grid(words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_axes(words.split(), KINDS)
    assert WRONG[words] in str(caught.value) and caught.value.exit_status == 2


def test_the_last_axis_is_the_fastest() -> None:
    points = list(grid(parse_axes(["cores=1,8", "l1=4K,8K"], KINDS)))
    assert points == [{"cores": c, "l1": l1} for c in (1, 8) for l1 in ("4K", "8K")]


def row(status: str = "ok", **figures: float) -> dict[str, Any]:
    return {"status": status, "figures": figures}


def test_the_front() -> None:
    rows = [
        row(memory=1, cycles=9), row(memory=2, cycles=9), row(memory=2, cycles=5), row(memory=2, cycles=5),
        row(memory=9, cycles=5), row("failed"), row(memory=0.5),
    ]  # fmt: skip
    assert [one["pareto"] for one in marked(rows, ("memory", "cycles"))] == [1, 0, 1, 1, 0, 0, 0]
    assert [one["pareto"] for one in marked([row(accuracy=0.5), row(accuracy=0.9)], ("accuracy",))] == [0, 1]
    assert available(("memory", "cycles", "loss"), rows) == ("memory", "cycles")
