"""Tables of nests, by what the runtime does with them."""

from __future__ import annotations

import pytest

from tilegrad.analysis.layout import CALL
from tilegrad.analysis.tables import Encoder, simple_steps
from tilegrad.ir.listing import ListedNest, Queue
from tilegrad.ir.nest import Access, Axis, AxisKind, Nest, Operand, along
from tilegrad.ir.plan import Address, NestPlace
from tilegrad.ir.schedule import Loop, Slot, TileEstimate, Tiling
from tilegrad.sequence.handover import Handover
from tilegrad.sequence.nest_events import Flow, NestEvents

IS_LARGE = 6  # place of the word in tg_nest


@pytest.mark.parametrize(("longest_bytes", "is_large"), [(131_071, False), (64, True)])
def test_a_nest_with_a_large_result_takes_no_simple_steps(longest_bytes: int, is_large: bool) -> None:
    """Its results leave right behind their tiles, which the quick way does not do, even if the loop moves another."""
    operands = (
        Operand("x", "x", Access.READ, (8,), (along("m"),)),
        Operand("y", "y", Access.WRITE, (8,), (along("m"),)),
        Operand("all", "all", Access.WRITE, (100,), (along("p"),)),
    )
    nest = Nest("relu", (Axis("m", 8), Axis("p", 100, AxisKind.INNER)), operands)
    slots = {"x": Slot(0, 16, 2), "y": Slot(32, 16, 2), "all": Slot(64, 400, 1)}
    tiling = Tiling((Loop("m", 8, 4),), slots, True, 464, TileEstimate(0, 0, 0, 0, ""))
    words = Encoder(nest, tiling, (), longest_bytes).words
    assert words[IS_LARGE] == is_large and simple_steps(words) == (0 if is_large else 1)
    listed = ListedNest(0, 0, nest, tiling, NestPlace(0, 0, 0, 0, 0), words)
    homes = {operand.name: Address("L2", "arena", 0) for operand in operands}
    assert NestEvents(0, listed, Handover(), homes, Flow(Queue(0, "L2-L1")), longest_bytes).is_large is is_large


def test_changing_arguments_have_a_second_place() -> None:
    """A ragged last tile has another size, so the argument that says it changes while cores read the one before."""
    index = (along("m"),)
    operands = (Operand("x", "x", Access.READ, (7,), index), Operand("y", "y", Access.WRITE, (7,), index))
    nest = Nest("relu", (Axis("m", 7),), operands)
    slots = {"x": Slot(0, 16, 2), "y": Slot(32, 16, 2)}
    fields = (("int32_t", "n_m"),)
    for loops, second in (((Loop("m", 7, 4),), 1), ((), 0)):
        tiling = Tiling(loops, slots, bool(loops), 64, TileEstimate(0, 0, 0, 0, ""))
        encoder = Encoder(nest, tiling, fields, 131_071)
        words = encoder.words
        args, args_turn, arg_count = words[3], *words[7:9]
        assert arg_count == second and args_turn == args + (len(words) if second else args)
        assert encoder.described_bytes == 4 * (CALL.words + len(operands) + len(words) + second)
