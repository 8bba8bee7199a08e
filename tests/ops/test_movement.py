"""Operators that are strided copies: Transpose, Expand, Concat, Split, Tile, DepthToSpace, SpaceToDepth."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import run_graph
from tests.support.operators import assert_same_bits_tiled, check_operator, one_node_graph, with_gradient
from tilegrad.errors import UserError
from tilegrad.ops import registry
from tilegrad.ops.base import NodeView

EXTENT = st.integers(1, 4)
SEED = st.integers(0, 2**31)


def _normal(shape: list[int] | tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@given(st.lists(EXTENT, max_size=5).flatmap(lambda s: st.tuples(st.just(s), st.permutations(range(len(s))))), SEED)
def test_transpose(case: tuple[list[int], list[int]], seed: int) -> None:
    shape, perm = case
    check_operator("Transpose", [_normal(shape, seed)], lambda x: x.permute(perm), {"perm": tuple(perm)}, seed=seed)


def test_transpose_reverses_by_default_and_merges_neighbours() -> None:
    x = _normal((2, 3, 4, 5))
    np.testing.assert_array_equal(run_graph(one_node_graph("Transpose", [x]), {"x0": x})["y0"], x.T)
    graph = one_node_graph("Transpose", [x], {"perm": (2, 3, 0, 1)})
    (nest,) = registry.get("Transpose").nests(NodeView(graph.nodes[0], graph.types))
    assert [axis.extent for axis in nest.axes] == [1, 1, 1, 1, 1, 1, 20, 6]


@given(st.lists(st.tuples(EXTENT, st.booleans()), max_size=5), st.integers(0, 2), SEED)
def test_expand(dims: list[tuple[int, bool]], dropped: int, seed: int) -> None:
    shape = [extent for extent, _ in dims]
    x = _normal([1 if is_new else extent for extent, is_new in dims][dropped:] if dropped <= len(dims) else [], seed)
    asked = tuple(1 if d >= len(shape) - x.ndim and not dims[d][1] else extent for d, extent in enumerate(shape))
    check_operator("Expand", [x], lambda x: x.expand(shape), {"shape": asked}, seed=seed)


@given(st.lists(EXTENT, min_size=1, max_size=4), st.lists(st.integers(0, 4), min_size=1, max_size=4), st.data(), SEED)
def test_concat(shape: list[int], sizes: list[int], data: st.DataObject, seed: int) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    inputs = []
    for i, size in enumerate(sizes):
        part = list(shape)
        part[axis] = size
        inputs.append(_normal(part, seed + i))
    check_operator(
        "Concat",
        inputs,
        lambda *parts: torch.cat(parts, axis),
        {"axis": axis},
        differentiate=data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1).map(sorted)),
        seed=seed,
    )


@given(st.lists(EXTENT, min_size=1, max_size=4), st.lists(st.integers(0, 4), min_size=1, max_size=4), st.data(), SEED)
def test_split(shape: list[int], sizes: list[int], data: st.DataObject, seed: int) -> None:
    """Only output 0 is differentiated here; see below for several."""
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    shape[axis] = sum(sizes)
    check_operator(
        "Split",
        [_normal(shape, seed)],
        lambda x: torch.split(x, sizes, axis)[0],
        {"axis": axis, "split": tuple(sizes)},
        outputs=(True,) * len(sizes),
        seed=seed,
    )


@given(st.integers(1, 12), st.integers(1, 5))
def test_split_into_equal_pieces(extent: int, count: int) -> None:
    x = np.arange(extent, dtype=np.int16)
    each = -(-extent // count)
    graph = one_node_graph("Split", [x], {"num_outputs": count}, outputs=(True,) * count)
    values = run_graph(graph, {"x0": x})
    for i in range(count):
        np.testing.assert_array_equal(values[f"y{i}"], x[i * each : (i + 1) * each])


def test_split_gradient_of_some_outputs() -> None:
    x = _normal((2, 6))
    graph = one_node_graph("Split", [x], {"axis": 1, "split": (1, 2, 3)}, outputs=(True, True, True))
    full, gradients = with_gradient(graph, ["x0"], output="y1")
    assert [node.op for node in full.nodes] == ["Split", "Pad"]
    seed = _normal((2, 2), 1)
    wanted = np.zeros_like(x)
    wanted[:, 1:3] = seed
    np.testing.assert_array_equal(run_graph(full, {"x0": x, "seed": seed})[gradients["x0"]], wanted)


@given(st.lists(st.tuples(EXTENT, st.integers(1, 3)), max_size=4), SEED)
def test_tile(dims: list[tuple[int, int]], seed: int) -> None:
    x = _normal([extent for extent, _ in dims], seed)
    repeats = tuple(count for _, count in dims)
    check_operator("Tile", [x], lambda x: x.tile(repeats) if repeats else x.clone(), {"repeats": repeats}, seed=seed)


@given(EXTENT, EXTENT, EXTENT, EXTENT, st.integers(1, 3), st.sampled_from(["DCR", "CRD"]), SEED)
def test_depth_to_space(n: int, c: int, h: int, w: int, block: int, mode: str, seed: int) -> None:
    x = _normal((n, c * block * block, h, w), seed)

    def reference(x: torch.Tensor) -> torch.Tensor:
        if mode == "CRD":
            return torch.nn.functional.pixel_shuffle(x, block)
        parts = x.reshape(n, block, block, c, h, w).permute(0, 3, 4, 1, 5, 2)
        return parts.reshape(n, c, h * block, w * block)

    check_operator("DepthToSpace", [x], reference, {"blocksize": block, "mode": mode}, seed=seed)


@given(EXTENT, EXTENT, EXTENT, EXTENT, st.integers(1, 3), SEED)
def test_space_to_depth(n: int, c: int, h: int, w: int, block: int, seed: int) -> None:
    def reference(x: torch.Tensor) -> torch.Tensor:
        parts = x.reshape(n, c, h, block, w, block).permute(0, 3, 5, 1, 2, 4)
        return parts.reshape(n, c * block * block, h, w)

    check_operator("SpaceToDepth", [_normal((n, c, h * block, w * block), seed)], reference, {"blocksize": block})


CASES = [
    ("Transpose", {"perm": (1, 2, 0)}, lambda x: x.transpose(1, 2, 0)),
    ("Expand", {"shape": (2, 2, 3, 4)}, lambda x: np.broadcast_to(x, (2, 2, 3, 4))),
    ("Concat", {"axis": 1}, lambda x: x),
    ("Split", {"axis": 2}, lambda x: x),
    ("Tile", {"repeats": (1, 2, 3)}, lambda x: np.tile(x, (1, 2, 3))),
    ("DepthToSpace", {"blocksize": 1}, lambda x: x),
]


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint16, np.int32, np.int64, np.uint64, np.bool_])
@pytest.mark.parametrize(("op", "attributes", "reference"), CASES)
def test_every_type(op: str, attributes: dict[str, object], reference: object, dtype: type) -> None:
    x: np.ndarray = np.arange(24).reshape((2, 3, 4) if op != "DepthToSpace" else (1, 2, 3, 4)).astype(dtype)
    graph = one_node_graph(op, [x], attributes)  # type: ignore[arg-type]
    np.testing.assert_array_equal(run_graph(graph, {"x0": x})["y0"], reference(x))  # type: ignore[operator]
    assert_same_bits_tiled(graph, {"x0": x})


@pytest.mark.parametrize(("op", "attributes", "reference"), CASES[:5])
def test_zero_sized(op: str, attributes: dict[str, object], reference: object) -> None:
    x = np.zeros((2, 0, 4), np.float32)
    if op == "Expand":
        attributes = {"shape": (2, 0, 4)}
    graph = one_node_graph(op, [x], attributes)  # type: ignore[arg-type]
    values = run_graph(graph, {"x0": x})
    assert values["y0"].size == prod(graph.types["y0"].shape) == 0


def test_refusals() -> None:
    x = _normal((2, 3))
    with pytest.raises(UserError) as error:
        one_node_graph("Concat", [x, _normal((3, 3))], {"axis": 1})
    assert str(error.value) == (
        "node 'node': Concat: input 1 ('x1') does not fit beside the first along axis 1\n"
        "  expected: [2, any]\n"
        "  got: [3, 3]"
    )
    with pytest.raises(UserError, match="perm is no permutation"):
        one_node_graph("Transpose", [x], {"perm": (0, 0)})
    with pytest.raises(UserError, match="shapes do not broadcast"):
        one_node_graph("Expand", [x], {"shape": (2, 4)})
    with pytest.raises(UserError, match="the pieces do not make up the input"):
        one_node_graph("Split", [x], {"axis": 1, "split": (1, 1)}, outputs=(True, True))
    with pytest.raises(UserError, match="repeats do not fit"):
        one_node_graph("Tile", [x], {"repeats": (1,)})
    with pytest.raises(UserError, match="channels do not fill blocks"):
        one_node_graph("DepthToSpace", [_normal((1, 3, 1, 1))], {"blocksize": 2})
    with pytest.raises(UserError, match="Transpose: too many dimensions move apart"):
        one_node_graph("Transpose", [_normal((2,) * 9)], {"perm": tuple(reversed(range(9)))})
