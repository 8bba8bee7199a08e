"""The optimizers over many steps, against PyTorch's in float64; and the accumulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import assert_same_bits_tiled, one_node_graph
from tilegrad.errors import UserError
from tilegrad.ir.graph import Attribute

SHAPE = st.lists(st.integers(1, 6), max_size=3)
SEED = st.integers(0, 2**31)
DECAY = st.sampled_from([0.0, 0.01, 0.1])
MakeOptimizer = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]


def check_optimizer(
    op: str,
    state_count: int,
    attributes: dict[str, Attribute],
    make: MakeOptimizer,
    shape: list[int],
    seed: int,
    learning_rate: float,
    steps: int = 30,
) -> None:
    draw = np.random.default_rng(seed)
    weight = draw.standard_normal(shape).astype(np.float32)
    reference = torch.tensor(weight.astype(np.float64), requires_grad=True)
    optimizer = make([reference])
    state = [np.zeros(shape, np.float32) for _ in range(state_count)]
    rate = np.array(learning_rate, np.float32)
    for step in range(steps):
        gradient = draw.standard_normal(shape).astype(np.float32)
        inputs = [weight, gradient, *state, rate, *([np.array(step, np.int64)] if op.startswith("Adam") else [])]
        graph = one_node_graph(op, inputs, attributes, outputs=(True,) * (1 + state_count))
        feeds = {f"x{i}": array for i, array in enumerate(inputs)}
        values = run_graph(graph, feeds)
        if step == 1:
            assert_same_bits_tiled(graph, feeds)
        weight, *state = (values[f"y{i}"] for i in range(1 + state_count))
        reference.grad = torch.tensor(gradient.astype(np.float64))
        optimizer.step()
        scale = max(1.0, float(reference.detach().abs().max()))
        assert np.max(np.abs(weight - reference.detach().numpy())) <= 3e-6 * scale, f"{op} step {step}"


@given(SHAPE, SEED, DECAY)
def test_sgd(shape: list[int], seed: int, decay: float) -> None:
    check_optimizer(
        "SGD", 0, {"weight_decay": decay}, lambda w: torch.optim.SGD(w, lr=0.05, weight_decay=decay), shape, seed, 0.05
    )


@given(st.integers(1, 40), st.sampled_from([2, 3]), SEED)
def test_a_group_steps_like_each_of_its_tensors(size: int, count: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    pairs = [draw.standard_normal(size).astype(np.float32) for _ in range(2 * count)]
    rate = np.array(0.05, np.float32)
    inputs = [*pairs, *[None] * (6 - 2 * count), rate]
    feeds = {f"x{i}": value for i, value in enumerate(inputs) if value is not None}
    graph = one_node_graph("SGDGroup", inputs, outputs=(True,) * count)
    got = run_graph(graph, feeds)
    for k in range(count):
        alone = one_node_graph("SGD", [pairs[2 * k], pairs[2 * k + 1], rate])
        wanted = run_graph(alone, {"x0": pairs[2 * k], "x1": pairs[2 * k + 1], "x2": rate})["y0"]
        assert got[f"y{k}"].tobytes() == wanted.tobytes()
    assert_same_bits_tiled(graph, feeds, seed)


@given(SHAPE, SEED, DECAY, st.sampled_from([0.0, 0.5, 0.9]), st.booleans())
def test_momentum(shape: list[int], seed: int, decay: float, momentum: float, nesterov: bool) -> None:
    nesterov = nesterov and momentum > 0
    check_optimizer(
        "Momentum",
        1,
        {"weight_decay": decay, "momentum": momentum, "nesterov": int(nesterov)},
        lambda w: torch.optim.SGD(w, lr=0.05, momentum=momentum, weight_decay=decay, nesterov=nesterov),
        shape,
        seed,
        0.05,
    )


@given(SHAPE, SEED, DECAY, st.sampled_from([0.0, 0.9, 0.99]))
def test_rmsprop(shape: list[int], seed: int, decay: float, alpha: float) -> None:
    check_optimizer(
        "RMSprop",
        1,
        {"weight_decay": decay, "alpha": alpha, "epsilon": 1e-3},
        lambda w: torch.optim.RMSprop(w, lr=1e-2, alpha=alpha, eps=1e-3, weight_decay=decay),
        shape,
        seed,
        1e-2,
    )


@pytest.mark.parametrize("op", ["Adam", "AdamW"])
@given(
    shape=SHAPE, seed=SEED, decay=DECAY, betas=st.sampled_from([(0.9, 0.999), (0.0, 0.9), (0.5, 0.0), (0.95, 0.9999)])
)
def test_adam(op: str, shape: list[int], seed: int, decay: float, betas: tuple[float, float]) -> None:
    make = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}[op]
    check_optimizer(
        op,
        2,
        {"weight_decay": decay, "beta1": betas[0], "beta2": betas[1], "epsilon": 1e-8},
        lambda w: make(w, lr=1e-2, betas=betas, eps=1e-8, weight_decay=decay),
        shape,
        seed,
        1e-2,
    )


def test_optimizers_refuse() -> None:
    w = np.zeros((2, 3), np.float32)
    with pytest.raises(UserError) as caught:
        one_node_graph("SGD", [w, w.T.copy(), np.array(0.1, np.float32)])
    assert str(caught.value) == (
        "node 'node': SGD: the gradient ('x1') has a wrong shape\n  expected: [2, 3]\n  got: [3, 2]"
    )
    with pytest.raises(UserError) as caught:
        one_node_graph("SGD", [w, w, np.zeros(2, np.float32)])
    assert str(caught.value) == (
        "node 'node': SGD: the learning rate ('x2') is not one element\n  expected: shape [] or [1]\n  got: [2]"
    )
    with pytest.raises(UserError, match="dampening is not supported"):
        one_node_graph("Momentum", [w, w, w, np.array(0.1, np.float32)], {"dampening": 0.5}, outputs=(True, True))
    with pytest.raises(UserError, match="bad attribute 'beta2'"):
        scalars = [np.array(0.1, np.float32), np.array(0, np.int64)]
        one_node_graph("Adam", [w, w, w, w, *scalars], {"beta2": 1.0}, outputs=(True, True, True))


@given(SHAPE, SEED, st.booleans(), st.booleans())
def test_accumulator(shape: list[int], seed: int, overwrite: bool, is_scalar: bool) -> None:
    draw = np.random.default_rng(seed)
    buffer, gradient = draw.standard_normal((2, *shape)).astype(np.float32)
    if overwrite:
        buffer = np.full_like(buffer, np.nan)  # not read
    flag = np.array(overwrite if is_scalar else [overwrite])
    graph = one_node_graph("InPlaceAccumulatorV2", [buffer, gradient, flag], outputs=(True, True))
    feeds = {"x0": buffer, "x1": gradient, "x2": flag}
    values = run_graph(graph, feeds)
    np.testing.assert_array_equal(values["y1"], gradient if overwrite else buffer + gradient)
    np.testing.assert_array_equal(values["y0"], [True])
    assert_same_bits_tiled(graph, feeds)


def test_accumulator_without_flag_and_with_one_output() -> None:
    buffer = np.ones(3, np.float32)
    for outputs in ((True, True), (False, True)):
        graph = one_node_graph("InPlaceAccumulatorV2", [buffer, buffer], outputs=outputs)
        np.testing.assert_array_equal(run_graph(graph, {"x0": buffer, "x1": buffer})["y1"], [2, 2, 2])
    graph = one_node_graph("InPlaceAccumulatorV2", [buffer, buffer], outputs=(True,))
    np.testing.assert_array_equal(run_graph(graph, {"x0": buffer, "x1": buffer})["y0"], [True])


def test_accumulator_refuses() -> None:
    eight, four = np.zeros(8, np.float32), np.zeros(4, np.float32)
    with pytest.raises(UserError) as caught:
        one_node_graph("InPlaceAccumulatorV2", [eight, four, np.array([True])], outputs=(True, True))
    assert str(caught.value) == (
        "node 'node': InPlaceAccumulatorV2: the gradient ('x1') has a wrong shape\n  expected: [8]\n  got: [4]"
    )
    with pytest.raises(UserError) as caught:
        one_node_graph("InPlaceAccumulatorV2", [eight, eight, np.array([True, False])], outputs=(True, True))
    assert str(caught.value) == (
        "node 'node': InPlaceAccumulatorV2: the overwrite flag ('x2') is not one element\n"
        "  expected: shape [] or [1]\n  got: [2]"
    )
    with pytest.raises(UserError, match="does not take element type f32 for input 2"):
        one_node_graph("InPlaceAccumulatorV2", [eight, eight, np.zeros(1, np.float32)], outputs=(True, True))
