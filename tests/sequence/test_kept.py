"""Results that never leave scratchpad, of two nests by hand: y = x, then z = y, which is what the caller wants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.sequence.toy import ENTRY, Toy, copy_nest, tiling_of
from tilegrad.ir.graph import Node
from tilegrad.ir.listing import ListedNest
from tilegrad.ir.nest import Range
from tilegrad.ir.plan import Plan, Staging
from tilegrad.ir.schedule import Panel
from tilegrad.ir.types import DType
from tilegrad.sequence.handover import Handover
from tilegrad.sequence.kept import kept_results

FIRST, SECOND = copy_nest(4, "X", "Y"), copy_nest(4, "Y", "Z")
TAKEN = (Handover(), Handover(taken={"x": 0}))  # the second nest reads Y where the first one made it
TOY = Toy([(FIRST, tiling_of(FIRST, {})), (SECOND, tiling_of(SECOND, {}))])

_Given = tuple[Plan, tuple[ListedNest, ...], tuple[Handover, ...]]


def given(toy: Toy = TOY, handovers: tuple[Handover, ...] = TAKEN, **entry: Any) -> _Given:
    """With some of what the schedule of the entry has in another way."""
    plan = toy.plan()
    own = replace(plan.schedule.entries[ENTRY], **entry)
    return replace(plan, schedule=replace(plan.schedule, entries={ENTRY: own})), toy.listed(), handovers


def over_blocks() -> _Given:
    plan, (first, second), own = given()
    return plan, (replace(first, blocks=2), second), own


def also_wanted(value: str, *views: Node) -> _Given:
    graph = TOY.plan().schedule.entries[ENTRY].graph
    return given(graph=replace(graph, nodes=(*graph.nodes, *views), outputs=(*graph.outputs, value)))


def test_what_is_read_where_it_was_made_stays() -> None:
    assert kept_results(given()[0], ENTRY, *given()[1:]) == [{"y"}, set()]


WAYS: dict[str, Callable[[], _Given]] = {
    "another nest brings it": lambda: given(handovers=(Handover(), Handover())),
    "the caller wants it": lambda: also_wanted("Y"),
    "the caller wants a view of it": lambda: also_wanted("V", Node("/v", "Identity", ("Y",), ("V",))),
    "it goes to L3": lambda: given(replace(TOY, staging=(Staging("Y", 16, 0, 16, 1, 2, inward=False),))),
    "nothing overlaps": lambda: given(replace(TOY, overlaps=False)),
    "there are parts of tensors": lambda: given(panels={"P": Panel("X", (8,), (Range(0, 4),), DType.F32)}),
    "it is made in several tiles": lambda: given(
        replace(TOY, nests=[(FIRST, tiling_of(FIRST, {"m": 2})), TOY.nests[1]])
    ),
    "blocks make it": over_blocks,
}


@pytest.mark.parametrize("way", WAYS)
def test_it_leaves_where(way: str) -> None:
    plan, nests, own = WAYS[way]()
    assert kept_results(plan, ENTRY, nests, own) == [set(), set()]


def test_a_view_that_nobody_wants_changes_nothing() -> None:
    """And what is wanted by another name is not what has none."""
    plan, nests, own = also_wanted("Z", Node("/v", "Identity", ("Y",), ("V",)))
    assert kept_results(plan, ENTRY, nests, own) == [{"y"}, set()]
