"""Random operators that pipes join, many groups in one program, so that one build runs them all: nothing waits for
ever, and the bits are the host's."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import tilegrad as tg
from tests.sequence.test_pipes import sharing_l1, small_npu
from tilegrad.compiled import Compiled
from tilegrad.devices import registry
from tilegrad.devices.process import HarnessSession
from tilegrad.devices.sim import SimSession
from tilegrad.errors import UserError
from tilegrad.ir.pipes import DEPTHS
from tilegrad.targets import base as targets
from tilegrad.targets.base import Target

GROUPS = 40
"""Of one program: what is built and started once."""
KINDS: dict[str, tuple[str, ...]] = {
    "product, residual": ("first MatMul x w > p", "second Add p r > y"),
    "product, activation": ("first MatMul x w > p", "second Sigmoid p > y"),
    "activation, product": ("first Sigmoid x > p", "second MatMul p w > y"),
    "activation, residual": ("first Sigmoid x > p", "second Add p s > y"),
    "there and back": ("first MatMul x w > p", "second Sigmoid p > q", "third MatMul q v > y"),
    "one behind the other": ("first Sigmoid x > p", "second MatMul p w > q", "third Add q r > y"),
    "two products": ("first MatMul x w > p", "second MatMul x u > q", "third Add p q > y"),
}
"""Operators, what they read and make: from the matrix engine to a vector lane and from a lane to it, from one lane to
another, both ways at once, and two pipes into one operator."""


@dataclass(frozen=True)
class Group:
    """Operators that are joined: `rows` times `inner` elements come in. All parameters have `inner` or `width`."""

    kind: str
    rows: int
    inner: int
    width: int
    depth: int

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all parameters that some kind has."""
        product = (self.inner, self.width)
        return {"w": product, "u": product, "v": product[::-1], "r": (self.rows, self.width), "s": self.given}

    @property
    def given(self) -> tuple[int, ...]:
        return (self.rows, self.inner)

    @property
    def leaves(self) -> int:
        """Elements."""
        return self.rows * (self.inner if self.kind in ("there and back", "activation, residual") else self.width)

    def steps(self) -> list[tuple[str, str, list[str], str]]:
        """Name, operator, what it reads, what it makes."""
        words = [step.split() for step in KINDS[self.kind]]
        return [(name, op, [*read], made) for name, op, *read, _, made in words]

    def nodes(self, number: int) -> list[onnx.NodeProto]:
        found = [
            helper.make_node(op, [f"{one}{number}" for one in read], [f"{made}{number}"], f"{name}{number}")
            for name, op, read, made in self.steps()
        ]
        return [*found, helper.make_node("Flatten", [f"y{number}"], [f"f{number}"], f"flat{number}", axis=1)]

    def parameters(self, number: int) -> dict[str, tuple[int, ...]]:
        read = {one for _, _, names, _ in self.steps() for one in names}
        return {f"{name}{number}": shape for name, shape in self.shapes.items() if name in read}

    def pipes(self, number: int) -> list[tuple[str, str, int]]:
        makers = {made: name for name, _, _, made in self.steps()}
        return [
            (f"{makers[one]}{number}", f"{name}{number}", self.depth)
            for name, _, read, _ in self.steps()
            for one in read
            if one in makers
        ]


def some_groups() -> st.SearchStrategy[Group]:
    return st.builds(
        Group, st.sampled_from(list(KINDS)), st.integers(2, 60), st.integers(1, 32), st.integers(1, 32),
        st.sampled_from(DEPTHS),
    )  # fmt: skip


def model_of(every: list[Group]) -> onnx.ModelProto:
    """All groups one behind the other; what they make is one output."""
    generator = np.random.default_rng(len(every))
    nodes, parameters = [], []
    for number, group in enumerate(every):
        nodes += group.nodes(number)
        for name, shape in group.parameters(number).items():
            parameters.append(numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32), name))
    nodes.append(helper.make_node("Concat", [f"f{number}" for number in range(len(every))], ["out"], "all", axis=1))
    inputs = [
        helper.make_tensor_value_info(f"x{number}", TensorProto.FLOAT, [1, *group.given])
        for number, group in enumerate(every)
    ]
    size = sum(group.leaves for group in every)
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, size])
    graph = helper.make_graph(nodes, "groups", inputs, [output], parameters)
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
        if isinstance(session, SimSession):
            assert session.timings()["infer"].cycles > 0  # the driver did what is listed
    return found


def joined(every: list[Group], target: Target, blocks: str, most: int | None) -> tuple[Compiled, list[Group]]:
    """Without those that no cut suits: a box that no tiles of the other operator are."""
    left = list(every)
    while True:
        pipes = [pipe for number, group in enumerate(left) for pipe in group.pipes(number)]
        recipe = tg.Recipe(loss="mse", batch=1)
        try:
            found = tg.compile(model_of(left), recipe, target, pipes=pipes, blocks=blocks, most_blocks=most)
        except UserError as error:
            assert "no pipe" in str(error) and error.node is not None
            left.pop(int(re.sub(r"\D", "", error.node)))
        else:
            return found, left


def runs(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    drawn = given(
        st.lists(some_groups(), min_size=GROUPS, max_size=GROUPS).filter(lambda every: len(set(every)) > GROUPS / 2),
        st.builds(small_npu, st.integers(1, 5), st.integers(1, 4), st.sampled_from((64.0, 1.0))),
        st.booleans(),
        st.sampled_from(("auto", "2", "n")),
    )
    limits = settings(
        max_examples=count, deadline=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    return lambda test: limits(drawn(test))


def run(every: list[Group], target: Target, is_near: bool, blocks: str) -> None:
    """Lanes that are slow are all taken, those that are not, one of each block."""
    widths = (1, 3, 7) if blocks == "n" else ()
    program, left = joined(every, sharing_l1(target) if is_near else target, blocks, max(widths, default=None))
    pipes = program.plan.schedule.entries["infer"].pipes
    assert len(pipes) == sum(len(group.pipes(0)) for group in left)
    assert any(pipe.is_near for pipe in pipes) is is_near
    shapes = [(1, *group.given) for group in left]
    on_host = tg.compile(model_of(left), tg.Recipe(loss="mse", batch=1), targets.get("host"))
    expected = outputs(on_host, "host", shapes, ())
    assert set(outputs(program, "sim:npu", shapes, widths)) == set(expected)


@pytest.mark.slow
@runs(1)
def test_random_pipes_end_with_the_bits_of_the_host(
    every: list[Group], target: Target, is_near: bool, blocks: str
) -> None:
    run(every, target, is_near, blocks)


@pytest.mark.matrix
@pytest.mark.timeout(1500)
@runs(25)
def test_a_thousand_random_pipes_end_with_the_bits_of_the_host(
    every: list[Group], target: Target, is_near: bool, blocks: str
) -> None:
    run(every, target, is_near, blocks)
