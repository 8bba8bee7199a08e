from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.support.kernels import run_graph
from tilegrad.ir.graph import Attribute, Graph, Node
from tilegrad.ir.types import Constant, DType, TensorType
from tilegrad.passes.builder import GraphBuilder
from tilegrad.passes.fold_batchnorm import FoldBatchNorm

RANDOM = np.random.default_rng(0)
STATISTICS = ("bn.weight", "bn.bias", "bn.mean", "bn.var")


def _draw(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def _model(
    op: str,
    x: np.ndarray,
    weights: Sequence[np.ndarray],
    attributes: Mapping[str, Attribute],
    norm: Mapping[str, np.ndarray],
    extra_output: bool = False,
) -> Graph:
    """layer -> BatchNormalization -> Relu."""
    builder = GraphBuilder("model")
    builder.add_input("x", TensorType(DType.F32, x.shape))
    for name, array in (*zip(("w", "b"), weights, strict=False), *norm.items()):
        builder.constants[name] = Constant(array)
        builder.types[name] = builder.constants[name].type
    builder.append(Node("layer", op, ("x", *("w", "b")[: len(weights)]), ("h",), dict(attributes)))
    builder.append(Node("bn", "BatchNormalization", ("h", *norm), ("n",), {"epsilon": 1e-3}))
    builder.append(Node("relu", "Relu", ("n",), ("y",)))
    return builder.finish(("y", "h") if extra_output else ("y",))


def _norm(channels: int) -> dict[str, np.ndarray]:
    arrays = (_draw(channels), _draw(channels), _draw(channels), np.abs(_draw(channels)) + np.float32(0.5))
    return dict(zip(STATISTICS, arrays, strict=True))


CASES = {
    "conv": ("Conv", _draw(2, 4, 5, 5), [_draw(6, 4, 3, 3)], {}, 6),
    "conv with bias, grouped": ("Conv", _draw(2, 4, 5, 5), [_draw(6, 2, 3, 3), _draw(6)], {"group": 2}, 6),
    "transposed, grouped": ("ConvTranspose", _draw(2, 4, 5, 5), [_draw(4, 3, 2, 2)], {"group": 2}, 6),
    "gemm": ("Gemm", _draw(2, 4), [_draw(4, 6), _draw(6)], {"beta": 0.5}, 6),
    "gemm transposed": ("Gemm", _draw(2, 4), [_draw(6, 4)], {"transB": 1, "alpha": 0.5}, 6),
}


def _pytorch(case: str, norm: Mapping[str, np.ndarray]) -> np.ndarray:
    op, x, weights, attributes, _ = CASES[case]
    tensors = [torch.tensor(array, dtype=torch.float64) for array in (x, *weights)]
    if op == "Gemm":
        b = tensors[1].T if attributes.get("transB") else tensors[1]
        h = attributes.get("alpha", 1.0) * tensors[0] @ b
        h = h + attributes.get("beta", 1.0) * tensors[2] if len(tensors) > 2 else h
    else:
        function = F.conv2d if op == "Conv" else F.conv_transpose2d
        h = function(*tensors, groups=attributes.get("group", 1))
    scale, bias, mean, variance = (torch.tensor(norm[name], dtype=torch.float64) for name in STATISTICS)
    return torch.relu(F.batch_norm(h, mean, variance, scale, bias, eps=1e-3)).numpy()


@pytest.mark.parametrize("case", CASES)
def test_the_folded_model_computes_the_same(case: str) -> None:
    op, x, weights, attributes, channels = CASES[case]
    norm = _norm(channels)
    folded = FoldBatchNorm().apply(_model(op, x, weights, attributes, norm))
    assert [(node.op, node.outputs) for node in folded.nodes] == [(op, ("n",)), ("Relu", ("y",))]
    bias_name = "b" if len(weights) > 1 else "bn.bias"
    assert folded.nodes[0].inputs == ("x", "w", bias_name)
    assert set(folded.constants) == {"w", bias_name}
    assert np.allclose(run_graph(folded, {"x": x})["y"], _pytorch(case, norm), rtol=1e-4, atol=1e-5)


def test_a_norm_stays_where_its_input_is_needed_elsewhere() -> None:
    op, x, weights, attributes, channels = CASES["conv"]
    before = _model(op, x, weights, attributes, _norm(channels), extra_output=True)
    assert FoldBatchNorm().apply(before) == before


def test_a_shared_weight_is_copied() -> None:
    op, x, weights, attributes, channels = CASES["conv"]
    builder = GraphBuilder.from_graph(_model(op, x, weights, attributes, _norm(channels)))
    builder.append(Node("second", op, ("x", "w"), ("z",), dict(attributes)))
    before = builder.finish(("y", "z"))
    folded = FoldBatchNorm().apply(before)
    assert folded.nodes[0].inputs == ("x", "w.folded", "bn.bias")
    assert folded.constants["w"] == before.constants["w"]
    assert np.array_equal(run_graph(folded, {"x": x})["z"], run_graph(before, {"x": x})["z"])
