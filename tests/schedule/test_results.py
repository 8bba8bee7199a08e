"""Results by name: what a launch gives is the graph's values, one to one; whatever else is refused, with the names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from tests.sequence.test_pipes import compiled, product_then_sum
from tests.support.operators import one_node_graph
from tilegrad.analysis.lifetimes import temporaries
from tilegrad.analysis.results import check_results
from tilegrad.calibration import examples
from tilegrad.errors import UserError
from tilegrad.ir.nest import Access, Nest
from tilegrad.ir.schedule import EntrySchedule, Launch
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView
from tilegrad.ops.example import Draw
from tilegrad.schedule.schedule import _schedule_entry


def entry() -> EntrySchedule:
    """A normalisation with all of its results, two of which have one shape, and scratch tensors of its own."""
    arrays = [np.zeros((4, 6), np.float32), np.zeros(6, np.float32), np.zeros(6, np.float32)]
    graph = one_node_graph("LayerNormalization", arrays, {"axis": -1}, outputs=(True, True, True))
    node = graph.nodes[0]
    nests = registry.get(node.op).typed_nests(NodeView(node, graph.types))
    types = {**{name: kind for name, (_, kind) in temporaries(graph).items()}, **graph.types}
    return EntrySchedule(graph, (Launch(node, nests),), types)


def renamed(nests: tuple[Nest, ...], names: dict[str, str]) -> tuple[Nest, ...]:
    """Results under other names; what reads them goes along."""
    return tuple(
        replace(nest, operands=tuple(replace(o, value=names.get(o.value or "", o.value)) for o in nest.operands))
        for nest in nests
    )


def declaring(monkeypatch: pytest.MonkeyPatch, change: Callable[[tuple[Nest, ...]], tuple[Nest, ...]]) -> None:
    kind = type(registry.get("LayerNormalization"))
    declared = kind.nests
    monkeypatch.setattr(kind, "nests", lambda self, node: change(declared(self, node)))


def refusal(found: EntrySchedule) -> UserError:
    with pytest.raises(UserError) as caught:
        check_results(found)
    assert caught.value.exit_status == 2 and caught.value.stage == "schedule"
    assert caught.value.node == found.graph.nodes[0].name
    return caught.value


def test_what_is_declared_is_launched() -> None:
    check_results(entry())


def test_results_by_position_are_refused() -> None:
    """Two results of one shape, and each in the other's place: nobody else would see it."""
    made = entry()
    (launch,) = made.launches
    _, mean, inverse = launch.node.outputs
    swapped = replace(launch, nests=renamed(launch.nests, {mean: inverse, inverse: mean}))
    error = refusal(replace(made, launches=(swapped,)))
    assert "not those of its operator" in error.message
    for value in (mean, inverse):
        assert value in (error.expected or "") and value in (error.got or "")
    assert error.expected != error.got


def test_a_result_that_nobody_writes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = entry()
    mean = made.graph.nodes[0].outputs[1]
    declaring(monkeypatch, lambda nests: renamed(nests, {mean: "elsewhere"}))
    error = refusal(made)
    assert f"results that no nest writes: '{mean}'" in error.message and "elsewhere" in (error.got or "")


def test_what_is_no_result_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = entry()
    scratch = next(iter(temporaries(made.graph)), None)
    mean = made.graph.nodes[0].outputs[1]

    def more(nests: tuple[Nest, ...]) -> tuple[Nest, ...]:
        return (*nests, *renamed(nests, {mean: "elsewhere", scratch or "": scratch or ""}))

    declaring(monkeypatch, more)
    assert "no result of the node: 'elsewhere'" in refusal(made).message


def test_two_pointers_for_one_value_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made = entry()
    _, mean, inverse = made.graph.nodes[0].outputs
    declaring(monkeypatch, lambda nests: renamed(nests, {inverse: mean}))
    error = refusal(made)
    pointers = {o.name for nest in made.launches[0].nests for o in nest.results if o.value in (mean, inverse)}
    assert f"gives '{mean}' by" in error.message and all(name in error.message for name in pointers)


def test_a_pipe_carries_what_its_sides_have_by_name() -> None:
    piped = compiled(product_then_sum(37, 12, 8), 37).plan.schedule.entries["infer"]
    check_results(piped)
    other = replace(piped, pipes=(replace(piped.pipes[0], value="r"),))
    with pytest.raises(UserError, match="pipe 0 carries a value that does not pass it") as caught:
        check_results(other)
    assert caught.value.node == "first" and (caught.value.expected, caught.value.got) == ("p", "r")


def test_a_launch_has_no_scalars() -> None:
    """What kernels are told is in their tables: a launch is given its work, and over how many blocks."""
    program = compiled(product_then_sum(37, 12, 8), 37)
    schedule = program.plan.schedule.entries["infer"]
    known = {*schedule.types, *(value for launch in schedule.launches for value in launch.node.inputs)}
    operands = [o for launch in schedule.launches for nest in launch.nests for o in nest.present]
    assert {o.value for o in operands} <= known and all(o.access in Access for o in operands)
    runtime = program.project.files["tg_tile.c"].decode() + program.project.files["tg_cluster.h"].decode()
    assert "void tg_launch(const char *name, tg_block *run, void *context, int blocks);" in runtime
    assert "typedef void tg_block(void *context, int block, int blocks, unsigned char *scratch);" in runtime


@pytest.mark.parametrize("name", examples.operators())
def test_every_operator_gives_its_results_by_name(name: str) -> None:
    """And so does its gradient, on random nodes."""
    for graph in islice(examples.graphs(registry.get(name), Draw(7, largest=6)), 4):
        check_results(_schedule_entry(graph, None, None))
