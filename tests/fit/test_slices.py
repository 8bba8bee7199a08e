"""Operators on parts of their tensors: below the operands of one operator, with the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import tilegrad as tg
from tests.devices.boards import every_cortex_m
from tests.fit.training import results
from tests.support.models import model, node, value, weights
from tilegrad.analysis.lifetimes import read_inputs
from tilegrad.analysis.same_results import expect_same_results
from tilegrad.devices.qemu import QemuDevice
from tilegrad.errors import InternalError
from tilegrad.fit.slices import sliced
from tilegrad.fit.tape import facts_of
from tilegrad.ir.graph import Graph, Node
from tilegrad.passes.split_conv_grad import SplitConvGrad
from tilegrad.targets import base as targets
from tilegrad.targets.base import RAM

KIB = 1024
SHAPE = (1, 2, 32, 32)


@pytest.fixture(scope="module")
def tokenizer() -> onnx.ModelProto:
    """Much between a small image and a small map: 64 KiB of 16 channels, which a pooling makes 16."""
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", "x w1", "a", "conv1", **window),
        node("Relu", "a", "b", "relu1"),
        node("MaxPool", "b", "c", "pool1", strides=[2, 2], **window),
        node("Conv", "c w2", "d", "conv2", **window),
        node("GlobalAveragePool", "d", "e", "mean"),
        node("Flatten", "e", "y", "flat"),
    ]
    initial = {"w1": weights(16, 2, 3, 3) / 4, "w2": weights(4, 16, 3, 3, seed=1) / 8}
    return model(nodes, [value("x", [1, 2, 32, 32])], [value("y", [1, 4])], initial)


def largest_operands(graph: Graph) -> int:
    """Of one node, each operand counted once."""
    written = {value for value, _ in graph.writes}
    return max(
        sum(
            graph.types[name].size_bytes
            for name in {*read_inputs(graph, each), *filter(None, each.outputs)} - set(graph.state) - written
        )
        for each in graph.nodes
    )


@pytest.mark.slow
def test_a_chain_in_parts_needs_less_than_one_operator_and_learns_the_same(tokenizer: onnx.ModelProto) -> None:
    chip = targets.get("host")
    kept = tg.compile(tokenizer, target=chip)
    limit = kept.plan.memory[RAM].used_bytes - kept.plan.arena_bytes + 96 * KIB
    less = tg.compile(tokenizer, target=chip.with_capacity(RAM, limit), fit=True)
    assert less.fit is not None and less.fit.parts > 4
    step = SplitConvGrad().apply(kept.program).entries["step"]
    assert less.plan.arena_bytes <= 96 * KIB < 160 * KIB < largest_operands(step)
    assert results(less, SHAPE, 4) == results(kept, SHAPE, 4)


@pytest.mark.slow
@every_cortex_m
def test_boards_take_what_was_predicted_and_learn_the_same(
    name: str, tokenizer: onnx.ModelProto, tmp_path: Path
) -> None:
    """In parts and with recomputation: to the byte of the linked image, and to the bit of the host's program."""
    board = targets.get(QemuDevice.target_of(name))
    kept = tg.compile(tokenizer, target=board)
    limit = kept.plan.memory[RAM].used_bytes - kept.plan.arena_bytes + 96 * KIB
    less = tg.compile(tokenizer, target=board.with_capacity(RAM, limit), fit=True)
    assert less.fit is not None and less.fit.parts > 4 and less.plan.arena_bytes <= 96 * KIB
    image = QemuDevice(name).build(less, tmp_path)
    assert image.sections.ram_bytes == less.plan.memory[RAM].used_bytes <= limit
    assert results(less, SHAPE, 4, name) == results(tg.compile(tokenizer), SHAPE, 4)


def step_in_parts(tokenizer: onnx.ModelProto) -> tuple[Graph, Graph]:
    program = tg.compile(tokenizer, target=targets.get("mcu").without_limits()).program
    graph = SplitConvGrad().apply(program).entries["step"]
    return graph, sliced(graph, 96 * KIB, 8)


def changed(graph: Graph, name: str, **fields: object) -> Graph:
    def other(each: Node) -> Node:
        return replace(each, **fields) if each.name == name else each  # type: ignore[arg-type]

    return replace(graph, nodes=tuple(map(other, graph.nodes)))


def test_parts_that_are_not_those_of_the_whole_are_found(tokenizer: onnx.ModelProto) -> None:
    whole, parts = step_in_parts(tokenizer)
    assert facts_of(parts, 8).bound_bytes() < facts_of(whole, 8).bound_bytes()
    expect_same_results(whole, parts)
    concat = next(each for each in parts.nodes if each.op == "Concat")
    swapped = (concat.inputs[1], concat.inputs[0], *concat.inputs[2:])
    with pytest.raises(InternalError, match=f"first at node '{concat.name}'"):
        expect_same_results(whole, changed(parts, concat.name, inputs=swapped))
    first = next(each for each in parts.nodes if each.op == "Slice")
    length = int(first.attributes["ends"][0])  # type: ignore[index,arg-type]
    moved = {**first.attributes, "starts": (length,), "ends": (2 * length,)}
    with pytest.raises(InternalError, match="another value"):
        expect_same_results(whole, changed(parts, first.name, attributes=moved))


def test_a_reduction_is_not_cut() -> None:
    """A mean over channels needs all of them: there is no group, and the graph stays."""
    nodes = [node("Relu", "x", "a", "relu"), node("ReduceMean", "a", "y", "mean", axes=[1], keepdims=0)]
    found = tg.load(model(nodes, [value("x", [1, 64, 4])], [value("y", [1, 4])])).graph
    assert sliced(found, 256, 8) is found
