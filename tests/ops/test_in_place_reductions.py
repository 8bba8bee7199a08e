from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from tests.support.in_place import assert_in_place
from tests.support.operators import one_node_graph, with_gradient
from tilegrad.ir.graph import Attribute

RANDOM = np.random.default_rng(0)


def _draw(*shape: int) -> np.ndarray:
    return RANDOM.uniform(0.5, 2.0, shape).astype(np.float32)


X = _draw(3, 4, 5)
CHANNELS = [_draw(4) for _ in range(4)]
LABELS = RANDOM.integers(0, 4, (3, 5))

# operator, inputs, attributes, outputs, inputs to differentiate, at least so many in-place pairs
CASES: Sequence[tuple[str, list[np.ndarray], Mapping[str, Attribute], int, tuple[int, ...], int]] = [
    ("Softmax", [X], {"axis": 1}, 1, (0,), 3),
    ("LogSoftmax", [X], {"axis": -1}, 1, (0,), 3),
    ("ReduceMax", [X], {"axes": (1,)}, 1, (0,), 1),
    ("SoftmaxCrossEntropyLoss", [X, LABELS], {}, 2, (0,), 2),
    ("MSELoss", [X, X + 1], {}, 1, (0,), 2),
    ("BatchNormalization", [X, *CHANNELS], {}, 1, (0, 1, 2), 3),
    ("BatchNormalization", [X[:, :, 0], *CHANNELS], {}, 1, (0, 1, 2), 3),
    ("BatchNormInternal", [X, *CHANNELS], {}, 5, (0, 1, 2), 5),
    ("LayerNormalization", [X, _draw(5), _draw(5)], {}, 1, (0, 1, 2), 3),
    ("GroupNormalization", [X, *CHANNELS[:2]], {"num_groups": 2}, 1, (0, 1, 2), 3),
    ("InstanceNormalization", [X, *CHANNELS[:2]], {}, 1, (0, 1, 2), 3),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_outputs_over_inputs_give_the_same_bits(
    case: tuple[str, list[np.ndarray], Mapping[str, Attribute], int, tuple[int, ...], int],
) -> None:
    op, inputs, attributes, outputs, differentiate, pairs = case
    graph = one_node_graph(op, inputs, attributes, outputs=(True,) * outputs)
    full, _ = with_gradient(graph, [f"x{i}" for i in differentiate])
    feeds = {f"x{i}": array for i, array in enumerate(inputs)}
    feeds["seed"] = _draw(*graph.types["y0"].shape)
    assert assert_in_place(full, feeds) >= pairs
