from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import assert_same_bits_tiled, check_operator, one_node_graph
from tilegrad.errors import UserError
from tilegrad.ir.graph import Attribute

SEED = st.integers(0, 2**31)
DTYPES = [np.float32, np.int8, np.int16, np.int32, np.int64, np.uint8, np.bool_]


def _torch_pad(pads: list[tuple[int, int]], mode: str, value: float) -> object:
    """Padding as indexing, which PyTorch differentiates; NumPy's own pad says which element goes where."""

    def reference(x: torch.Tensor) -> torch.Tensor:
        for d, (before, after) in enumerate(pads):
            positions = np.arange(x.shape[d])
            grown = [max(before, 0), max(after, 0)]
            if mode == "constant":
                where = np.pad(positions, grown, constant_values=-1)
            else:
                where = np.pad(positions, grown, mode=mode)  # type: ignore[call-overload]
            where = where[max(-before, 0) : len(where) - max(-after, 0)]
            source = torch.cat([x, torch.full_like(x.narrow(d, 0, 1), value)], d)
            x = source.index_select(d, torch.tensor(np.where(where < 0, x.shape[d], where)))
        return x

    return reference


PADS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=4)


@given(PADS, st.sampled_from(["constant", "reflect", "edge", "wrap"]), st.floats(-2, 2, width=32), SEED)
def test_grows(dims: list[tuple[int, int, int]], mode: str, value: float, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal([d[0] for d in dims]).astype(np.float32)
    pads = [(before, after) for _, before, after in dims]
    attributes = {"mode": mode, "pads": tuple(p[0] for p in pads) + tuple(p[1] for p in pads), "value": value}
    check_operator("Pad", [x], _torch_pad(pads, mode, value), attributes, seed=seed)  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.integers(1, 7), st.integers(-3, 4), st.integers(-3, 4)), min_size=1, max_size=3),
    st.floats(-2, 2, width=32),
    SEED,
)
def test_crops_and_grows(dims: list[tuple[int, int, int]], value: float, seed: int) -> None:
    extents = [max(extent, 1 - before, 1 - after, 1 - before - after) for extent, before, after in dims]
    x = np.random.default_rng(seed).standard_normal(extents).astype(np.float32)
    pads = [(before, after) for _, before, after in dims]
    attributes = {"pads": tuple(p[0] for p in pads) + tuple(p[1] for p in pads), "value": value}
    check_operator("Pad", [x], _torch_pad(pads, "constant", value), attributes, seed=seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_every_type(dtype: type, mode: str) -> None:
    x: np.ndarray = np.arange(24).reshape(2, 3, 4).astype(dtype)
    attributes: dict[str, Attribute] = {"mode": mode, "pads": (1, 2, 0, 1), "axes": (1, -1), "value": 1}
    graph = one_node_graph("Pad", [x], attributes)
    pads = [(0, 0), (1, 0), (2, 1)]
    wanted = np.pad(x, pads, constant_values=1) if mode == "constant" else np.pad(x, pads, mode=mode)  # type: ignore
    np.testing.assert_array_equal(run_graph(graph, {"x0": x})["y0"], wanted)
    assert_same_bits_tiled(graph, {"x0": x})


def test_large_integer_value_is_exact() -> None:
    x = np.zeros(1, np.int64)
    graph = one_node_graph("Pad", [x], {"pads": (1, 0), "value": -(2**62) - 1})
    assert run_graph(graph, {"x0": x})["y0"].tolist() == [-(2**62) - 1, 0]


def test_pads_nothing_to_something() -> None:
    x = np.zeros((0, 2), np.float32)
    graph = one_node_graph("Pad", [x], {"pads": (1, 0, 1, 0), "value": 3.0})
    assert run_graph(graph, {"x0": x})["y0"].tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_refusals() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(UserError) as error:
        one_node_graph("Pad", [x], {"pads": (-3, 0, 0, 0)})
    assert str(error.value) == (
        "node 'node': Pad: dimension 0 would be cropped below nothing\n"
        "  expected: pads that take at most 2\n"
        "  got: -3 and 0"
    )
    with pytest.raises(UserError, match="wrong number of pads"):
        one_node_graph("Pad", [x], {"pads": (1, 1)})
    with pytest.raises(UserError, match="mode reflect cannot crop"):
        one_node_graph("Pad", [x], {"pads": (-1, 0, 0, 0), "mode": "reflect"})
