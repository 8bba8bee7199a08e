from __future__ import annotations

from zlib import crc32

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import assert_same_bits_tiled, check_operator, one_node_graph, with_gradient
from tilegrad import random
from tilegrad.errors import UserError
from tilegrad.ir.graph import Node
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops import registry
from tilegrad.ops.base import MINIBATCH_COUNTER, NodeView

SHAPE = st.lists(st.integers(0, 9), max_size=3)


def mask_of(seed: int, stream: int, minibatch: int, ratio: float, shape: list[int]) -> np.ndarray:
    """By the generator's Python twin, which is tested against Philox's published vectors."""
    drawn = random.words(seed, random.family(random.Purpose.DROPOUT, stream), minibatch, int(np.prod(shape)))
    return (random.to_unit(drawn) >= np.float32(ratio)).reshape(shape)


@given(SHAPE, st.integers(0, 2**31))
def test_identity_at_inference(shape: list[int], seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    check_operator("Dropout", [x], torch.clone, {"ratio": 0.75}, seed=seed)
    graph = one_node_graph("Dropout", [x], outputs=(True, True))
    np.testing.assert_array_equal(run_graph(graph, {"x0": x})["y1"], np.ones(shape, bool))


@given(
    SHAPE,
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**24 - 1),
    st.integers(0, 2**31),
    st.floats(0, 0.9),
    st.integers(0, 99),
)
def test_training(shape: list[int], seed: int, stream: int, minibatch: int, ratio: float, draw_seed: int) -> None:
    draw = np.random.default_rng(draw_seed)
    x, upstream = draw.standard_normal((2, *shape)).astype(np.float32)
    counter = np.array(minibatch, np.int64)
    attributes = {"ratio": ratio, "seed": seed, "stream": stream}
    graph, gradients = with_gradient(
        one_node_graph("SeededDropout", [x, counter], attributes, outputs=(True, True)), ["x0"]
    )
    feeds = {"x0": x, "x1": counter, "seed": upstream}
    values = run_graph(graph, feeds)
    kept = mask_of(seed, stream, minibatch, ratio, shape)
    scale = np.float32(1 / (1 - ratio))
    np.testing.assert_array_equal(values["y0"], np.where(kept, x * scale, 0))
    np.testing.assert_array_equal(values["y1"], kept)
    np.testing.assert_array_equal(values[gradients["x0"]], np.where(kept, upstream * scale, 0))
    assert_same_bits_tiled(graph, feeds)


def test_the_share_kept_is_the_ratio_and_masks_differ() -> None:
    first, second = (mask_of(0, 7, minibatch, 0.3, [100_000]) for minibatch in (0, 1))
    assert abs(first.mean() - 0.7) < 0.01
    assert abs((first == second).mean() - (0.7**2 + 0.3**2)) < 0.01


def test_training_form() -> None:
    types = {"x": TensorType(DType.F32, (2,)), "y": TensorType(DType.F32, (2,))}
    dropout = registry.get("Dropout")
    node = Node("drop", "Dropout", ("x",), ("y",), {"ratio": (0.25,), "training_mode": 1})
    assert dropout.training_form(NodeView(node, types), 9) == Node(
        "drop",
        "SeededDropout",
        ("x", MINIBATCH_COUNTER),
        ("y",),
        {"ratio": 0.25, "seed": 9, "stream": crc32(b"drop") % 2**24},
    )
    assert dropout.training_form(NodeView(Node("d", "Dropout", ("x",), ("y",), {"ratio": 0.0}), types), 9) is None


def test_refusals() -> None:
    x = np.zeros(3, np.float32)
    with pytest.raises(UserError) as caught:
        one_node_graph("Dropout", [x], {"ratio": 1.0})
    assert str(caught.value) == (
        "node 'node': Dropout: bad ratio\n  expected: a number from 0 up to, not including, 1\n  got: 1.0"
    )
    with pytest.raises(UserError, match="is not one element"):
        one_node_graph("SeededDropout", [x, np.zeros(2, np.int64)], {"seed": 0, "stream": 0})
