"""Reshape, Flatten, Squeeze and Unsqueeze: the views."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.operators import check_operator, one_node_graph
from tilegrad.errors import UserError

SHAPE = st.lists(st.integers(1, 4), max_size=4)


def _normal(shape: list[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@given(SHAPE, st.randoms(use_true_random=False))
def test_reshape(shape: list[int], random: object) -> None:
    x = _normal(shape)
    target = list(shape)
    random.shuffle(target)  # type: ignore[attr-defined]
    asked = list(target)
    if target:
        hidden = random.randrange(len(target))  # type: ignore[attr-defined]
        asked[hidden] = -1
    asked = [0 if d < len(shape) and extent == shape[d] else extent for d, extent in enumerate(asked)]
    check_operator("Reshape", [x], lambda x: x.reshape(target), {"shape": tuple(asked)})


@given(SHAPE, st.integers(-4, 4))
def test_flatten(shape: list[int], axis: int) -> None:
    axis = max(-len(shape), min(axis, len(shape)))
    split = axis if axis >= 0 else axis + len(shape)

    def reference(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(int(np.prod(shape[:split])), int(np.prod(shape[split:])))

    check_operator("Flatten", [_normal(shape)], reference, {"axis": axis})


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=4), st.booleans())
def test_squeeze(dims: list[tuple[int, bool]], has_axes: bool) -> None:
    shape = [1 if dropped else extent for extent, dropped in dims]
    axes = tuple(d - len(dims) if d % 2 else d for d, (_, dropped) in enumerate(dims) if dropped)
    kept = [extent for d, extent in enumerate(shape) if not (dims[d][1] if has_axes else extent == 1)]
    attributes = {"axes": axes} if has_axes else {}
    check_operator("Squeeze", [_normal(shape)], lambda x: x.reshape(kept), attributes)


@given(SHAPE, st.sets(st.integers(0, 5), max_size=2), st.booleans())
def test_unsqueeze(shape: list[int], axes: set[int], from_the_end: bool) -> None:
    rank = len(shape) + len(axes)
    wanted = sorted({axis % rank for axis in axes} if rank else set())
    rank = len(shape) + len(wanted)
    wanted = [axis for axis in wanted if axis < rank]
    rank = len(shape) + len(wanted)
    if any(axis >= rank for axis in wanted):
        return
    result = np.expand_dims(_normal(shape), wanted).shape
    given_axes = tuple(axis - rank if from_the_end else axis for axis in wanted)
    check_operator("Unsqueeze", [_normal(shape)], lambda x: x.reshape(result), {"axes": given_axes})


def test_zero_sized_reshape() -> None:
    x = np.zeros((0, 3), np.float32)
    assert one_node_graph("Reshape", [x], {"shape": (3, 0), "allowzero": 1}).types["y0"].shape == (3, 0)
    assert one_node_graph("Reshape", [x], {"shape": (0, 3)}).types["y0"].shape == (0, 3)


def test_reshape_of_8_to_7_is_refused() -> None:
    with pytest.raises(UserError) as error:
        one_node_graph("Reshape", [_normal([8])], {"shape": (7,)})
    assert str(error.value) == (
        "node 'node': Reshape: [8] has 8 elements, which do not fill [7]\n"
        "  expected: 8\n"
        "  got: 7\n"
        "  hint: the input is 'x0'"
    )


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "message"),
    [
        ("Reshape", [8], {"shape": (-1, 3)}, "which do not fill"),
        ("Reshape", [8], {"shape": (-1, -1)}, "Reshape: no shape"),
        ("Reshape", [8], {"shape": (8, 0)}, "a 0 keeps a dimension that the input does not have"),
        ("Reshape", [8], {"shape": (-1, 0), "allowzero": 1}, "Reshape: no shape"),
        ("Reshape", [8], {}, "Reshape needs the attribute 'shape'"),
        ("Flatten", [8], {"axis": 2}, "axis 2 does not exist"),
        ("Squeeze", [1, 8], {"axes": (1,)}, "dimension 1 of .* cannot be dropped"),
        ("Unsqueeze", [8], {"axes": (0, -3)}, "an axis is named twice"),
    ],
)
def test_refusals(op: str, shape: list[int], attributes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        one_node_graph(op, [_normal(shape)], attributes)  # type: ignore[arg-type]
