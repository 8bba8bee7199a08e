"""Faults that are put into programs with recomputation, and who finds them."""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilegrad as tg
from tilegrad.analysis.same_results import expect_same_results
from tilegrad.errors import InternalError
from tilegrad.fit.fitted import fitted, planned
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import Program
from tilegrad.ir.types import DType, TensorType
from tilegrad.passes.split_conv_grad import SplitConvGrad
from tilegrad.place.validate import PlanError, validate_plan
from tilegrad.targets import base as targets

KIB = 1024
CHIP = targets.get("mcu").without_limits()


@pytest.fixture(scope="module")
def kept() -> Program:
    return tg.compile("dscnn", target=CHIP).program


@pytest.fixture(scope="module")
def again(kept: Program) -> Program:
    found, fit = fitted(kept, SplitConvGrad().apply(kept), CHIP, 400 * KIB)
    assert fit.repeated > 3
    return found


def copies(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if ".again" in node.name]


def test_a_recomputation_from_an_updated_weight_is_found() -> None:
    """A copy behind the update of what it reads is another value, by the name of the copy."""
    row = TensorType(DType.F32, (4,))
    made, update = Node("made", "Relu", ("w",), ("a",)), Node("update", "Sub", ("w", "a"), ("v",))
    used, copy = Node("used", "Neg", ("a",), ("y",)), Node("made.again1", "Relu", ("w",), ("a.again1",))
    types = dict.fromkeys(("w", "a", "v", "y", "a.again1"), row)
    graph = Graph("step", (), ("y",), (made, update, used), types, {}, ("w",), (("v", "w"),))
    reading = used.with_inputs(("a.again1",))
    expect_same_results(graph, replace(graph, nodes=(made, copy, update, reading)))
    with pytest.raises(InternalError, match=r"'y' is another value, first at node 'made\.again1'"):
        expect_same_results(graph, replace(graph, nodes=(made, update, copy, reading)))


def test_a_recomputation_from_a_rounded_value_is_found() -> None:
    """Rounded to two bytes and back, a value is another one."""
    wide = TensorType(DType.F32, (4,))
    made, used = Node("made", "Relu", ("x",), ("a",)), Node("used", "Neg", ("a",), ("y",))
    types = dict.fromkeys(("x", "a", "y", "a.again1", "rounded"), wide)
    graph = Graph("step", ("x",), ("y",), (made, used), types)
    copy = Node("made.again1", "Relu", ("x",), ("a.again1",))
    right = replace(graph, nodes=(made, copy, used.with_inputs(("a.again1",))))
    expect_same_results(graph, right)
    rounded = Node("round", "Round", ("x",), ("rounded",))
    wrong = replace(graph, nodes=(made, rounded, copy.with_inputs(("rounded",)), used.with_inputs(("a.again1",))))
    with pytest.raises(InternalError, match="'y' is another value, first at node 'round'"):
        expect_same_results(graph, wrong)


def test_a_recomputation_from_a_freed_operand_is_found(again: Program) -> None:
    """The plan's own validator: what a copy reads was overwritten by what ran before it."""
    plan = planned(again, CHIP)
    graph = again.entries["step"]
    made = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs}
    copy, source, other = next(
        (node, node.inputs[0], between)
        for i, node in enumerate(graph.nodes)
        for between in graph.nodes[made.get(node.inputs[0], i) + 1 : i]
        if ".again" in node.name and between.op in ("Conv", "ConvGrad") and node.inputs[0] not in between.inputs
        and between.outputs[0] and between.outputs[0] not in node.inputs
    )  # fmt: skip
    with pytest.raises(PlanError, match=f"node '{copy.name}' of step finds '{source}' overwritten"):
        validate_plan(moved(plan, other.outputs[0], onto=source))


def test_a_recomputation_behind_the_update_is_found_by_the_plan(again: Program) -> None:
    """State that was written over is not what a node reads, whatever the graph says."""
    graph = again.entries["step"]
    updated = {state for _, state in graph.writes}
    reader = next(node for node in graph.nodes if updated & set(node.inputs) and node.op == "Conv")
    late = Node("late", reader.op, reader.inputs, ("late",), reader.attributes)
    types = {**graph.types, "late": graph.types[reader.outputs[0]]}
    plan = planned(again, CHIP)
    step = plan.schedule.entries["step"]
    broken = replace(graph, nodes=(*graph.nodes, late), types=types)
    addresses = {**plan.entries["step"].addresses, "late": plan.address("step", reader.outputs[0])}
    entries = {**plan.entries, "step": replace(plan.entries["step"], addresses=addresses)}
    schedules = {**plan.schedule.entries, "step": replace(step, graph=broken)}
    with pytest.raises(PlanError, match=r"node 'late' of step finds '.*' overwritten"):
        validate_plan(replace(plan, schedule=replace(plan.schedule, entries=schedules), entries=entries))


def moved(plan: Plan, value: str, onto: str) -> Plan:
    """With one value at another's address."""
    step = plan.entries["step"]
    addresses = {**step.addresses, value: step.addresses[onto]}
    return replace(plan, entries={**plan.entries, "step": replace(step, addresses=addresses)})
