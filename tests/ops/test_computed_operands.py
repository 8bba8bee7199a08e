"""Every float input of every differentiable operator may be a computed value, and its gradient is PyTorch's.

Driven by the registry: an operator without a case here fails, and so does one that drops the gradient of an input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.support.kernels import run_graph
from tests.support.operators import one_node_graph, with_gradient
from tilegrad.analysis.verify import verify_graph
from tilegrad.calibration.examples import graphs
from tilegrad.errors import UserError
from tilegrad.ir.graph import Attribute, Graph, Node
from tilegrad.ir.types import Constant, DType, TensorType
from tilegrad.ops import registry
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw
from tilegrad.ops.relu import Relu
from tilegrad.passes.builder import GraphBuilder

Tensor = torch.Tensor
Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """`inputs` by position (None: absent); `torch_function` takes them all (None where absent) and gives output 0."""

    inputs: Sequence[Array | None]
    torch_function: Callable[..., Tensor]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    outputs: Sequence[bool] = (True,)


# Float inputs that carry no gradient by definition, and why.
DETACHED = {
    ("BatchNormInternal", 3): "the running mean, which this operator updates and does not use",
    ("BatchNormInternal", 4): "the running variance, likewise",
}
# Operators that only passes make, behind differentiation: their `gradient` refuses.
REFUSES = {"GemmReluGrad"}


def draw(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> Array:
    """Distinct values, none near 0 or another: no kink within a finite difference, and no tie."""
    count = int(np.prod(shape))
    random = np.random.default_rng(seed + count)
    values = low + (high - low) * (random.permutation(count) + 0.37) / max(count, 1)
    values = np.where(np.abs(values) < 0.05, values + 0.11, values)
    return values.reshape(shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def by_channel(x: Tensor, value: Tensor) -> Tensor:
    return value.reshape(-1, *(1,) * (x.ndim - 2))


def normalised(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
    return (x - by_channel(x, mean)) * by_channel(x, inverse * scale) + by_channel(x, bias)


def group_norm(groups: int) -> Callable[..., Tensor]:
    return lambda x, s, b: F.group_norm(x, groups) * by_channel(x, s) + by_channel(x, b)


def weighted_nll(scores: Tensor, labels: Tensor, weights: Tensor, reduction: str = "mean") -> Tensor:
    """PyTorch's own does not differentiate the weights."""
    kept = labels != 2
    label = torch.where(kept, labels, 0)
    share = weights[label] * kept
    rows = -scores.gather(1, label.unsqueeze(1)).squeeze(1) * share
    return {"mean": lambda: rows.sum() / share.sum(), "sum": rows.sum, "none": lambda: rows}[reduction]()


def dropped(x: Tensor, counter: Tensor) -> Tensor:
    """The mask is the generator's (tests/ops/test_dropout.py); what is tested is that the gradient has the same."""
    ones = [np.ones(tuple(x.shape), np.float32), counter.numpy()]
    graph = one_node_graph("SeededDropout", ones, DROPOUT)
    return x * torch.tensor(run_graph(graph, {"x0": ones[0], "x1": ones[1]})["y0"].astype(np.float64))


DROPOUT: dict[str, Attribute] = {"ratio": 0.4, "seed": 3, "stream": 5}
X, IMAGE = draw(3, 4), draw(2, 4, 5, 6)
CHANNELS = [draw(4, low=0.5, high=1.5, seed=i) for i in range(4)]
LABELS = np.array([0, 3, 2, 1], np.int64)
POOL: dict[str, Attribute] = {"kernel_shape": (2, 2), "strides": (2, 2)}


def one(function: Callable[[Tensor], Tensor], x: Array = X, **attributes: Attribute) -> Case:
    return Case([x], function, attributes)


def two(function: Callable[..., Tensor], a: Array = X, b: Array | None = None, **attributes: Attribute) -> Case:
    return Case([a, draw(4, seed=9) if b is None else b], function, attributes)


CASES: dict[str, Case] = {
    "Abs": one(torch.abs),
    "Add": two(torch.add),
    "AddRelu": Case([X, draw(3, 4, seed=1)], lambda a, b: F.relu(a + b)),
    "AveragePool": Case([IMAGE], lambda x: F.avg_pool2d(x, 2, 2), POOL),
    "BCEWithLogitsLoss": two(F.binary_cross_entropy_with_logits, b=draw(3, 4, low=0.1, high=0.9)),
    "BatchNormInternal": Case(
        [IMAGE, *CHANNELS],
        lambda x, s, b, m, v: F.batch_norm(x, None, None, s, b, True),
        outputs=(True,) * 5,
    ),
    "BatchNormalization": Case(
        [IMAGE, *CHANNELS], lambda x, s, b, m, v: normalised(x, s, b, m, torch.rsqrt(v + 1e-2)), {"epsilon": 1e-2}
    ),
    "Cast": one(lambda x: x, to="f32"),
    "Ceil": one(torch.ceil),
    "Clip": one(lambda x: torch.clamp(x, -1.01, 1.003), min=-1.01, max=1.003),
    "Concat": two(lambda a, b: torch.cat([a, b], 1), b=draw(3, 2), axis=1),
    "Conv": Case([IMAGE, draw(6, 2, 3, 3), draw(6)], lambda x, w, b: F.conv2d(x, w, b, groups=2), {"group": 2}),
    "ConvTranspose": Case([IMAGE, draw(4, 3, 3, 3), draw(3)], F.conv_transpose2d),
    "Copy": one(lambda x: x),
    "DepthToSpace": Case([IMAGE], lambda x: F.pixel_shuffle(x, 2), {"blocksize": 2, "mode": "CRD"}),
    "Div": two(torch.div),
    "Dropout": one(lambda x: x, ratio=0.3),
    "Elu": one(F.elu),
    "Erf": one(torch.erf),
    "Exp": one(torch.exp),
    "Expand": one(lambda x: x.expand(2, 3, 4), shape=(2, 3, 4)),
    "Flatten": Case([IMAGE], lambda x: x.reshape(2, -1), {"axis": 1}),
    "Floor": one(torch.floor),
    "FrozenBatchNormalization": Case([IMAGE, *CHANNELS], lambda *v: F.relu(normalised(*v)), {"relu": 1}),
    "FusedMatMul": two(lambda a, b: 0.5 * a @ b.T, b=draw(5, 4, seed=2), transB=1, alpha=0.5),
    "Gather": Case([X, ints(2, 0, -1)], lambda x, i: x[i]),
    "GatherElements": Case([X, np.array([[0, 2], [1, 0]])], lambda x, i: x.gather(0, i)),
    "Gelu": one(F.gelu),
    "Gemm": Case(
        [X, draw(5, 4), draw(5)],
        lambda a, b, c: 0.5 * a @ b.T + 2.0 * c,
        {"transB": 1, "alpha": 0.5, "beta": 2.0},
    ),
    "GemmRelu": Case([X, draw(4, 5), draw(5)], lambda a, b, c: F.relu(a @ b + c)),
    "GlobalAveragePool": Case([IMAGE], lambda x: x.mean((2, 3), keepdim=True)),
    "GlobalMaxPool": Case([IMAGE], lambda x: x.amax((2, 3), keepdim=True)),
    "GroupNormalization": Case([IMAGE, *CHANNELS[:2]], group_norm(2), {"num_groups": 2}),
    "HardSigmoid": one(lambda x: torch.clamp(0.2 * x + 0.5, 0, 1)),
    "HardSwish": one(F.hardswish),
    "Identity": one(lambda x: x),
    "InstanceNormalization": Case([IMAGE, *CHANNELS[:2]], group_norm(4)),
    "L1Loss": two(F.l1_loss, b=draw(3, 4, low=-3.1, high=2.7, seed=4)),
    "LayerNormalization": Case([X, CHANNELS[0], CHANNELS[1]], lambda x, s, b: F.layer_norm(x, (4,)) * s + b),
    "LeakyRelu": one(F.leaky_relu),
    "HuberLoss": two(F.huber_loss, b=draw(3, 4, seed=4)),
    "Log": one(torch.log, draw(3, 4, low=0.3)),
    "LogSoftmax": one(lambda x: F.log_softmax(x, -1)),
    "MSELoss": two(F.mse_loss, b=draw(3, 4, seed=4)),
    "MatMul": two(torch.matmul, b=draw(2, 4, 5)),
    "Max": Case([X, draw(4, seed=1), draw(3, 1, seed=2)], lambda a, b, c: a.maximum(b).maximum(c)),
    "MaxPool": Case([IMAGE], lambda x: F.max_pool2d(x, 2, 2), POOL),
    "Mean": Case([X, draw(4), draw(3, 1)], lambda a, b, c: (a + b + c) / 3),
    "Min": Case([X, draw(4, seed=1), draw(3, 1, seed=2)], lambda a, b, c: a.minimum(b).minimum(c)),
    "Mul": two(torch.mul),
    "Neg": one(torch.neg),
    "NegativeLogLikelihoodLoss": Case(
        [draw(4, 4), LABELS, CHANNELS[0]],
        lambda x, y, w: weighted_nll(x, y, w, "none"),
        {"reduction": "none", "ignore_index": 2},
    ),
    "PRelu": two(lambda x, s: torch.where(x < 0, s * x, x)),
    "Pad": one(lambda x: F.pad(x, (1, 2, 0, -1), value=0.5), pads=(0, 1, -1, 2), value=0.5),
    "Pow": two(torch.pow, draw(3, 4, low=0.3)),
    "Reciprocal": one(torch.reciprocal),
    "ReduceL1": one(lambda x: x.abs().sum(1), axes=(1,), keepdims=0),
    "ReduceL2": one(lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True), axes=(1,)),
    "ReduceMax": one(lambda x: x.amax(0, keepdim=True), axes=(0,)),
    "ReduceMean": one(lambda x: x.mean(0, keepdim=True), axes=(0,)),
    "ReduceMin": one(lambda x: x.amin(0, keepdim=True), axes=(0,)),
    "ReduceSum": one(lambda x: x.sum(0, keepdim=True), axes=(0,)),
    "ReduceSumSquare": one(lambda x: (x * x).sum(0, keepdim=True), axes=(0,)),
    "Relu": one(torch.relu),
    "Reshape": one(lambda x: x.reshape(2, 6), shape=(2, 6)),
    "Round": one(torch.round),
    "SeededDropout": Case([X, np.array(0, np.int64)], dropped, DROPOUT),
    "Sigmoid": one(torch.sigmoid),
    "Sign": one(torch.sign),
    "Slice": one(lambda x: x[:, 1:3], starts=(1,), ends=(3,), axes=(1,)),
    "Softmax": one(lambda x: F.softmax(x, -1)),
    "SoftmaxCrossEntropyLoss": Case(
        [draw(4, 4), LABELS, CHANNELS[0]],
        lambda x, y, w: weighted_nll(F.log_softmax(x, 1), y, w),
        {"ignore_index": 2},
        (True, True),
    ),
    "Softplus": one(F.softplus),
    "SpaceToDepth": Case(
        [draw(1, 2, 4, 4)],
        lambda x: F.pixel_unshuffle(x.transpose(0, 1), 2).transpose(0, 1).reshape(1, 8, 2, 2),
        {"blocksize": 2},
    ),
    "Split": Case([X], lambda x: x[:, :1], {"axis": 1, "split": (1, 3)}, (True, True)),
    "Sqrt": one(torch.sqrt, draw(3, 4, low=0.3)),
    "Squeeze": one(lambda x: x.squeeze(0), draw(1, 3), axes=(0,)),
    "Sub": two(torch.sub),
    "Sum": Case([X, draw(4), draw(3, 1)], lambda a, b, c: a + b + c),
    "Tanh": one(torch.tanh),
    "Tile": one(lambda x: x.repeat(2, 3), repeats=(2, 3)),
    "Transpose": one(lambda x: x.T, perm=(1, 0)),
    "Unsqueeze": one(lambda x: x.unsqueeze(0), axes=(0,)),
    "Where": Case([np.array([True, False, True, False]), X, draw(3, 1, seed=5)], torch.where),
}

# Further forms of operators that take another way: reductions of the losses, batch statistics without running ones.
FURTHER: dict[str, tuple[str, Case]] = {
    "loss of sum": (
        "SoftmaxCrossEntropyLoss",
        Case(
            [draw(4, 4), LABELS, CHANNELS[0]],
            lambda x, y, w: weighted_nll(F.log_softmax(x, 1), y, w, "sum"),
            {"ignore_index": 2, "reduction": "sum"},
            (True, False),
        ),
    ),
    "loss of images": (
        "NegativeLogLikelihoodLoss",
        Case([draw(2, 4, 3), np.array([[0, 3, 2], [1, 1, 0]]), CHANNELS[0]], weighted_nll, {"ignore_index": 2}),
    ),
    "frozen, flat": (
        "FrozenBatchNormalization",
        Case([X, *CHANNELS], normalised),
    ),
    "own statistics only": (
        "BatchNormInternal",
        Case(
            [IMAGE, *CHANNELS[:2]],
            lambda x, s, b: F.batch_norm(x, None, None, s, b, True),
            outputs=(True, False, False, True, True),
        ),
    ),
    "Gemm, transposed": (
        "Gemm",
        Case([draw(4, 3), draw(4, 5), draw(3, 1)], lambda a, b, c: a.T @ b + c, {"transA": 1}),
    ),
    "edge pad": ("Pad", one(lambda x: F.pad(x[None], (1, 2), mode="replicate")[0], pads=(0, 1, 0, 2), mode="edge")),
}

FACTOR = 0.75


def computed_graph(op: str, case: Case) -> tuple[Graph, dict[str, Array], list[int]]:
    """Every float input is FACTOR times a leaf; the leaves' values make it what the case says."""
    builder = GraphBuilder("test")
    names: list[str] = []
    feeds: dict[str, Array] = {}
    floats = []
    builder.constants["factor"] = Constant(np.float32(FACTOR))
    builder.types["factor"] = builder.constants["factor"].type
    for position, array in enumerate(case.inputs):
        if array is None:
            names.append("")
            continue
        dtype = DType.from_numpy(array.dtype)
        assert dtype is not None
        leaf = builder.add_input(f"p{position}", TensorType(dtype, array.shape))
        feeds[leaf] = array
        if dtype is DType.F32:
            floats.append(position)
            feeds[leaf] = (array / FACTOR).astype(np.float32)
            builder.append(Node(f"compute{position}", "Mul", (leaf, "factor"), (f"x{position}",)))
            leaf = f"x{position}"
        names.append(leaf)
    outputs = tuple(f"y{i}" if wanted else "" for i, wanted in enumerate(case.outputs))
    builder.append(Node("node", op, tuple(names), outputs, dict(case.attributes)))
    return verify_graph(builder.finish(filter(None, outputs))), feeds, floats


def check(op: str, case: Case) -> None:
    graph, feeds, floats = computed_graph(op, case)
    leaves = [f"p{position}" for position in floats if (op, position) not in DETACHED]
    full, gradients = with_gradient(graph, leaves)
    zero = registry.get(op).has_zero_gradient
    assert set(gradients) == (set() if zero else set(leaves)), f"{op} drops the gradient of an input"
    random = np.random.default_rng(1)
    seed = random.standard_normal(graph.types["y0"].shape).astype(np.float32)
    values = run_graph(full, {**feeds, "seed": seed})
    weights = torch.tensor(seed.astype(np.float64))
    tensors = {
        name: torch.tensor(array.astype(np.float64) if array.dtype == np.float32 else array)
        for name, array in feeds.items()
    }

    def objective(leaf_values: Mapping[str, Tensor]) -> Tensor:
        arguments = [
            None if array is None else leaf_values[f"p{i}"] * FACTOR if i in floats else leaf_values[f"p{i}"]
            for i, array in enumerate(case.inputs)
        ]
        return (case.torch_function(*arguments) * weights).sum()

    for leaf in leaves:
        tensors[leaf].requires_grad_(True)
    wanted = torch.autograd.grad(objective(tensors), [tensors[leaf] for leaf in leaves], allow_unused=True)
    for leaf, expected in zip(leaves, wanted, strict=True):
        reference = np.zeros(feeds[leaf].shape) if expected is None else expected.numpy()
        got = values[gradients[leaf]].astype(np.float64) if leaf in gradients else np.zeros(feeds[leaf].shape)
        scale = max(float(np.abs(reference).max()), 1e-3)
        assert np.abs(got - reference).max() <= 2e-4 * scale, f"{op}: gradient of {leaf}"
        direction = torch.tensor(random.standard_normal(reference.shape))
        with torch.no_grad():
            ahead, behind = (objective({**tensors, leaf: tensors[leaf] + d * direction}) for d in (1e-6, -1e-6))
        slope = float(ahead - behind) / 2e-6
        along = float((got * direction.numpy()).sum())
        size = float(np.linalg.norm(got) * np.linalg.norm(direction.numpy())) + 1e-3
        assert abs(along - slope) <= 5e-4 * size, f"{op}: gradient of {leaf} against finite differences"


def differentiable() -> list[str]:
    return [name for name in registry.names() if type(registry.get(name)).gradient is not Operator.gradient]


def input_count(name: str) -> int:
    """Of an example of an operator; 0 where none is found."""
    graph = next(graphs(registry.get(name), Draw(0, largest=6)), None)
    return 0 if graph is None else len(next(node for node in graph.nodes if node.op == name).inputs)


def test_every_differentiable_operator_has_a_case() -> None:
    """But for those of one input: that it is computed changes nothing, and the operator's own test has its gradient."""
    known = {name for name in differentiable() if "." not in name}
    assert known >= {*CASES, *REFUSES}
    assert [name for name in sorted(known - {*CASES, *REFUSES}) if input_count(name) != 1] == []


def test_every_float_input_is_in_a_case() -> None:
    """The widest form of each operator: a case that leaves an optional float operand out would hide it."""
    widest = {"Conv": 3, "ConvTranspose": 3, "Gemm": 3, "GemmRelu": 3, "LayerNormalization": 3}
    widest |= {"BatchNormalization": 5, "FrozenBatchNormalization": 5, "BatchNormInternal": 5, "PRelu": 2}
    widest |= {"SoftmaxCrossEntropyLoss": 3, "NegativeLogLikelihoodLoss": 3, "GroupNormalization": 3}
    for name, count in widest.items():
        assert len([array for array in CASES[name].inputs if array is not None]) == count, name
    for name in CASES:
        positions = {*registry.get(name).parameter_inputs, *registry.get(name).nondifferentiable_inputs}
        assert all(position < len(CASES[name].inputs) for position in positions), name


@pytest.mark.parametrize("op", sorted(CASES))
def test_computed_operands(op: str) -> None:
    check(op, CASES[op])


@pytest.mark.parametrize("form", sorted(FURTHER))
def test_further_forms(form: str) -> None:
    check(*FURTHER[form])


def test_a_dropped_gradient_is_refused() -> None:
    """What an operator's author would see who forgot an input."""

    class Forgetful(Relu):
        def gradient(
            self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
        ) -> Sequence[str | None]:
            return (None,)

    Forgetful.name = "test.Forgetful"
    registry.register(Forgetful, registry.kernel_source("Relu"))
    try:
        with pytest.raises(UserError) as caught:
            with_gradient(one_node_graph("test.Forgetful", [X]), ["x0"])
    finally:
        registry.unregister("test.Forgetful")
    assert str(caught.value).startswith("node 'node': test.Forgetful passes no gradient to its input 0 ('x0')")


def test_updated_statistics_are_not_differentiated() -> None:
    graph = one_node_graph("BatchNormInternal", CASES["BatchNormInternal"].inputs, outputs=(True,) * 5)
    with pytest.raises(UserError, match="statistics that BatchNormalization updates cannot be differentiated"):
        with_gradient(graph, ["x0"], "y1")
