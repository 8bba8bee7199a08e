"""Random pairs of operators that pipes join, many in one program, so that one build runs them all: nothing waits for
ever, and the bits are the host's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import tilegrad as tg
from tests.sequence.test_pipes import small_npu
from tilegrad.compiled import Compiled
from tilegrad.devices import registry
from tilegrad.devices.process import HarnessSession
from tilegrad.errors import UserError
from tilegrad.ir.pipes import DEPTHS
from tilegrad.targets import base as targets
from tilegrad.targets.base import Target

PAIRS = 40
"""Of one program: what is built and started once."""
KINDS = ("product, residual", "product, activation", "activation, product", "activation, residual")
"""From the matrix engine to a vector lane, from a lane to the matrix engine, and from one lane to another."""


@dataclass(frozen=True)
class Pair:
    """Two operators: `rows` times `inner` elements come in, and `rows` times `width` leave."""

    kind: str
    rows: int
    inner: int
    width: int
    depth: int

    def nodes(self, number: int) -> list[onnx.NodeProto]:
        first, second = self.kind.split(", ")
        operators = {"product": "MatMul", "activation": "Sigmoid", "residual": "Add"}
        others = {"product": [f"w{number}"], "activation": [], "residual": [f"r{number}"]}
        return [
            helper.make_node(operators[first], [f"x{number}", *others[first]], [f"p{number}"], f"first{number}"),
            helper.make_node(operators[second], [f"p{number}", *others[second]], [f"y{number}"], f"second{number}"),
            helper.make_node("Flatten", [f"y{number}"], [f"f{number}"], f"flat{number}", axis=1),
        ]

    def parameters(self, number: int) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        if "product" in self.kind:
            found[f"w{number}"] = (self.inner, self.width)
        if "residual" in self.kind:
            found[f"r{number}"] = (self.rows, self.width)
        return found


def pairs() -> st.SearchStrategy[Pair]:
    sizes = st.builds(
        Pair, st.sampled_from(KINDS), st.integers(2, 60), st.integers(1, 32), st.integers(1, 32),
        st.sampled_from(DEPTHS),
    )  # fmt: skip
    return sizes.map(lambda one: one if "product" in one.kind else replace(one, width=one.inner))


def model_of(every: list[Pair]) -> onnx.ModelProto:
    """All pairs one behind the other; what they make is one output."""
    generator = np.random.default_rng(len(every))
    nodes, parameters = [], []
    for number, pair in enumerate(every):
        nodes += pair.nodes(number)
        for name, shape in pair.parameters(number).items():
            parameters.append(numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32), name))
    nodes.append(helper.make_node("Concat", [f"f{number}" for number in range(len(every))], ["out"], "all", axis=1))
    inputs = [
        helper.make_tensor_value_info(f"x{number}", TensorProto.FLOAT, [1, pair.rows, pair.inner])
        for number, pair in enumerate(every)
    ]
    size = sum(pair.rows * pair.width for pair in every)
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, size])
    graph = helper.make_graph(nodes, "pairs", inputs, [output], parameters)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def outputs(program: Compiled, device: str, shapes: Sequence[tuple[int, ...]], widths: tuple[int, ...]) -> list[bytes]:
    """Of each width that is set, or of the only one."""
    generator = np.random.default_rng(3)
    values = [generator.standard_normal(shape).astype(np.float32) for shape in shapes]
    found = []
    with registry.open_device(device) as opened:
        session = opened.load(program)
        for width in widths or (0,):
            if width:
                assert isinstance(session, HarnessSession)
                session.set_blocks(width)
            found.append(np.asarray(session.infer(*values)).tobytes())
    return found


def joined(every: list[Pair], target: Target, blocks: str, most: int | None) -> tuple[Compiled, list[Pair]]:
    """Without those that no cut suits: a box that no tiles of the other operator are."""
    left = list(every)
    while True:
        pipes = [(f"first{number}", f"second{number}", pair.depth) for number, pair in enumerate(left)]
        recipe = tg.Recipe(loss="mse", batch=1)
        try:
            found = tg.compile(model_of(left), recipe, target, pipes=pipes, blocks=blocks, most_blocks=most)
        except UserError as error:
            assert "no pipe" in str(error) and error.node is not None
            left.pop(int(error.node.removeprefix("second")))
        else:
            return found, left


def runs(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    drawn = given(
        st.lists(pairs(), min_size=PAIRS, max_size=PAIRS).filter(lambda every: len(set(every)) > PAIRS / 2),
        st.integers(1, 5),
        st.sampled_from(("auto", "2", "n")),
    )
    limits = settings(
        max_examples=count, deadline=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    return lambda test: limits(drawn(test))


def run(every: list[Pair], clusters: int, blocks: str) -> None:
    widths = (1, 3, 7) if blocks == "n" else ()
    program, left = joined(every, small_npu(clusters), blocks, max(widths) if widths else None)
    assert len(left) > 0.9 * len(every)
    assert len(program.plan.schedule.entries["infer"].pipes) == len(left)
    shapes = [(1, pair.rows, pair.inner) for pair in left]
    on_host = tg.compile(model_of(left), tg.Recipe(loss="mse", batch=1), targets.get("host"))
    expected = outputs(on_host, "host", shapes, ())
    assert set(outputs(program, "sim:npu", shapes, widths)) == set(expected)


@pytest.mark.slow
@runs(1)
def test_random_pipes_end_with_the_bits_of_the_host(every: list[Pair], clusters: int, blocks: str) -> None:
    run(every, clusters, blocks)


@pytest.mark.matrix
@pytest.mark.timeout(1500)
@runs(25)
def test_a_thousand_random_pipes_end_with_the_bits_of_the_host(every: list[Pair], clusters: int, blocks: str) -> None:
    run(every, clusters, blocks)
