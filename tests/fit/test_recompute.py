"""Activations that are computed again: fewer bytes, the same bits, and only as much as it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilegrad as tg
from tests.fit.training import results
from tilegrad.analysis.same_results import expect_same_results
from tilegrad.errors import DoesNotFit, InternalError, UserError
from tilegrad.fit import fitted
from tilegrad.fit.recompute import recomputed
from tilegrad.ir.graph import Graph, Node
from tilegrad.passes.split_conv_grad import SplitConvGrad
from tilegrad.targets import base as targets
from tilegrad.targets.base import RAM

KIB = 1024
MOST_ADDED = 0.45


def step_of(name: str) -> Graph:
    program = tg.compile(name, target=targets.get("mcu").without_limits()).program
    return SplitConvGrad().apply(program).entries["step"]


@pytest.mark.parametrize(
    ("name", "arena_bytes"),
    [
        ("resnet8", 288 * KIB),
        ("dscnn", 256 * KIB),
        pytest.param("cct", 672 * KIB, marks=pytest.mark.slow),
        pytest.param("mobilenetv1", 512 * KIB, marks=pytest.mark.slow),
    ],
)
def test_the_zoo_trains_in_a_fraction_of_its_arena(name: str, arena_bytes: int) -> None:
    chip = targets.get("mcu").without_limits()
    compiled = tg.compile(name, target=chip)
    assert compiled.plan.arena_bytes > 1.9 * arena_bytes
    program, fit = fitted(
        compiled.program, SplitConvGrad().apply(compiled.program), chip, compiled.plan.state_bytes + arena_bytes
    )
    assert fit.after_bytes <= compiled.plan.state_bytes + arena_bytes
    assert 0 < fit.more_macs <= MOST_ADDED
    assert program.state == compiled.program.state


def test_the_bits_are_those_of_the_program_that_keeps_everything() -> None:
    chip = targets.get("host")
    kept = tg.compile("resnet8", target=chip)
    less = kept.plan.memory[RAM].used_bytes - 350 * KIB
    again = tg.compile("resnet8", target=chip.with_capacity(RAM, less), fit=True)
    assert again.fit is not None and again.fit.repeated > 5
    assert again.plan.memory[RAM].used_bytes <= less
    assert results(again, (1, 3, 32, 32), 10) == results(kept, (1, 3, 32, 32), 10)


def test_what_fits_is_left_as_it_is() -> None:
    fits = tg.compile("simplemlp", target="mcu", fit=True)
    assert fits.fit is not None and fits.fit.is_as_it_was
    assert fits.project.files == tg.compile("simplemlp", target="mcu").project.files


def test_the_same_input_gives_the_same_program() -> None:
    graph = step_of("dscnn")
    first, second = (recomputed(graph, 300 * KIB, 8) for _ in range(2))
    assert first == second


def test_less_memory_never_costs_less() -> None:
    graph = step_of("dscnn")
    found = [recomputed(graph, size * KIB, 8) for size in (500, 400, 300, 200)]
    assert [each.peak_bytes for each in found] == sorted((each.peak_bytes for each in found), reverse=True)
    assert [each.macs for each in found] == sorted(each.macs for each in found)


def test_a_copy_of_something_else_is_found() -> None:
    graph = step_of("resnet8")
    conv = next(node for node in graph.nodes if node.op == "Conv" and len(node.inputs) == 2)
    other = Node(conv.name, conv.op, (conv.inputs[0], conv.inputs[1]), conv.outputs, {**conv.attributes, "group": 3})
    broken = replace(graph, nodes=tuple(other if node is conv else node for node in graph.nodes))
    with pytest.raises(InternalError, match=f"first at node '{conv.name}'"):
        expect_same_results(graph, broken)


def test_what_cannot_be_had_is_said_with_the_bound() -> None:
    with pytest.raises(DoesNotFit, match="nothing that is computed again") as caught:
        tg.compile("simplemlp", target=targets.get("mcu").with_capacity(RAM, 2700), fit=True)
    assert "at best" in str(caught.value.got) and "the bound" in str(caught.value.got)
    assert "--ram" in str(caught.value.hint)


def test_a_target_without_a_limit_is_refused() -> None:
    with pytest.raises(UserError, match="asks for a limit"):
        tg.compile("simplemlp", target="host", fit=True)
