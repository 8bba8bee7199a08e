"""Values kept in two bytes: the rounding, what is rounded, the same bits on every device, PyTorch's own with hooks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

import tilegrad as tg
from tests.support.command_line import CommandLine
from tests.support.kernels import run_graph
from tests.support.models import model, node, value, weights
from tests.support.operators import assert_same_bits_tiled, one_node_graph
from tilegrad.analysis.same_results import expect_same_results
from tilegrad.analysis.verify import verify_graph
from tilegrad.compiled import Compiled
from tilegrad.devices.registry import device_kind
from tilegrad.errors import InternalError, UserError
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import DType, TensorType
from tilegrad.passes.store import saved_bytes, saved_values, store_settings
from tilegrad.training.train import train

Array = np.ndarray
HALVES = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}


class Net(nn.Module):
    """Convolution, normalisation, Relu, overlapping pool, layer norm, GELU, a skipped branch and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 5, 3, padding=1), nn.BatchNorm2d(5)
        self.second, self.pool = nn.Conv2d(5, 5, 3, padding=1), nn.MaxPool2d(3, 2, 1)
        self.rows, self.head = nn.LayerNorm(45), nn.Linear(45, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        x = self.pool(torch.relu(self.second(x) + x)).flatten(1)
        return self.head(nn.functional.gelu(self.rows(x)) * torch.sigmoid(x))


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(3)
    return Net().eval()


def compiled(
    net: nn.Module, store: str, target: str = "host", optimizer: tg.Momentum | tg.SGD | None = None
) -> Compiled:
    recipe = tg.Recipe(batch=2, optimizer=optimizer or tg.Momentum(lr=0.05), store=tg.Stored.parse(store))
    return tg.compile(tg.load(net, example=torch.zeros(2, 2, 6, 6), batch=2), recipe, target)


def floats_of_all_kinds() -> Array:
    """Random bit patterns, and those next to where rounding turns."""
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32)
    halves = np.arange(0, 2**16, 7, dtype=np.uint32)
    near = [(halves << 16) + np.uint32(offset) for offset in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    small = np.float32(2.0**-24) * np.arange(0, 3000, 0.25, dtype=np.float32)
    large = np.array([65504, 65519.996, 65520, 65536, 3.3895314e38, 3.4e38, np.inf, -np.inf, np.nan], np.float32)
    return np.concatenate([bits.view(np.float32), *(each.view(np.float32) for each in near), small, -small, large])


@pytest.mark.parametrize("kept_as", HALVES)
def test_rounding_is_that_of_numpy(kept_as: str) -> None:
    x = floats_of_all_kinds()
    types = {"x": TensorType(DType.F32, x.shape)}
    half = next(dtype for dtype in DType if dtype.short == kept_as)
    types |= {"h": TensorType(half, x.shape), "y": types["x"]}
    nodes = (Node("s", "Store16", ("x",), ("h",), {"to": kept_as}), Node("l", "Load16", ("h",), ("y",)))
    graph = verify_graph(Graph("g", ("x",), ("h", "y"), nodes, types))
    found = run_graph(graph, {"x": x})
    with np.errstate(all="ignore"):
        wanted = x.astype(HALVES[kept_as])
    is_nan = np.isnan(x)
    assert (found["h"].view(np.uint16)[~is_nan] == wanted.view(np.uint16)[~is_nan]).all()
    assert np.isnan(found["y"][is_nan]).all()
    assert (found["y"][~is_nan] == wanted.astype(np.float32)[~is_nan]).all()
    assert_same_bits_tiled(graph, {"x": x}, rounds=1)


@pytest.mark.parametrize(("kernel", "stride", "pad"), [(3, 2, 1), (2, 2, 0), (3, 1, 1), (5, 3, 2)])
def test_remembered_maxima_give_the_same_gradient(kernel: int, stride: int, pad: int) -> None:
    draw = np.random.default_rng(kernel)
    x = draw.integers(-2, 3, (2, 3, 9, 8)).astype(np.float32)  # with many ties
    attributes = {"kernel_shape": (kernel,) * 2, "strides": (stride,) * 2, "pads": (pad,) * 4}
    y = run_graph(one_node_graph("MaxPool", [x], attributes), {"x0": x})["y0"]
    dy = draw.standard_normal(y.shape).astype(np.float32)
    tap = run_graph(one_node_graph("MaxPoolTap", [x, y], attributes), {"x0": x, "x1": y})["y0"]
    graph = one_node_graph("MaxPoolTapGrad", [dy, tap], {**attributes, "shape": x.shape})
    assert tap.dtype == np.uint8
    found = run_graph(graph, {"x0": dy, "x1": tap})["y0"]
    wanted = run_graph(one_node_graph("MaxPoolGrad", [dy, x, y], attributes), {"x0": dy, "x1": x, "x2": y})["y0"]
    assert found.tobytes() == wanted.tobytes()
    assert_same_bits_tiled(graph, {"x0": dy, "x1": tap})


def test_only_the_backward_pass_reads_what_is_rounded(net: Net) -> None:
    plain, stored = compiled(net, "f32").program, compiled(net, "bf16").program
    step = stored.entries["step"]
    loads = {node.outputs[0] for node in step.nodes if node.op == "Load16"}
    assert loads and saved_values(step) == ()
    needed = set(step.outputs)
    for each in reversed(step.nodes):
        if needed & set(each.outputs):
            assert not loads & set(each.inputs), each.name
            needed |= set(each.inputs)
    assert saved_bytes(step) <= saved_bytes(plain.entries["step"]) / 2 + 8 * 2  # labels
    slots = [tensor for tensor in stored.state if tensor.role.value == "optimizer"]
    assert slots and all(tensor.type.dtype is DType.BF16 for tensor in slots)
    assert stored.entries["infer"] == plain.entries["infer"]


@pytest.mark.parametrize("store", ["activations=bf16", "activations=fp16,optimizer=bf16", "optimizer=fp16"])
def test_pytorch_with_hooks_agrees(net: Net, store: str) -> None:
    with tg.open_device("host") as device:
        run = train(compiled(net, store), device, steps=4)
    assert run.verdict is not None and run.verdict.verified and store in run.verdict.reference
    gradients = run.verdict.worst("gradient")
    assert gradients is not None and gradients.error < 1e-5


def test_the_reference_tells_rounded_from_not(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that does not round is found out, and so is one that rounds where nobody asked."""
    from tilegrad.verify import torch_stored

    monkeypatch.setattr(torch_stored, "rounded", lambda tensor, kept_as: tensor)
    with tg.open_device("host") as device:
        run = train(compiled(net, "activations=bf16"), device, steps=1)
    assert run.verdict is not None and run.verdict.outcome == "disagrees"


class Bent(nn.Module):
    """Activations of which PyTorch's own modules keep what tilegrad keeps: Elu in place its output."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.second = nn.Conv2d(2, 5, 3, padding=1), nn.Conv2d(5, 3, 3)
        self.elu, self.swish, self.head = nn.ELU(1.5, inplace=True), nn.Hardswish(), nn.Linear(48, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.swish(3 * self.second(self.elu(self.conv(x)))).flatten(1))


def test_every_form_of_the_reference_agrees() -> None:
    """Operators of which PyTorch's usual form keeps something else (`verify/torch_forms.py`)."""
    nodes = [
        node("Conv", "x w1", "a", "conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Elu", "a", "b", "elu", alpha=1.5),
        node("HardSwish", "b", "c", "swish"),
        node("GroupNormalization", "c s1 b1", "d", "groups", num_groups=2),
        node("InstanceNormalization", "d s2 b2", "e", "instances"),
        node("Softplus", "e", "f", "plus"),
        node("Div", "d f", "g", "quotient"),
        node("Flatten", "g", "h", "flat"),
        node("Gemm", "h w2", "y", "head"),
    ]
    initial = {"w1": weights(4, 2, 3, 3), "w2": weights(144, 4, seed=1) / 9}
    initial |= {name: weights(4, seed=7) ** 2 + 0.5 for name in ("s1", "b1", "s2", "b2")}
    made = model(nodes, [value("x", [2, 2, 6, 6])], [value("y", [2, 4])], initial, opset=21)
    program = tg.compile(made, tg.Recipe(batch=2, optimizer=tg.SGD(lr=0.05), store=tg.Stored.parse("activations=bf16")))
    with tg.open_device("host") as device:
        run = train(program, device, steps=3)
    assert run.verdict is not None and run.verdict.verified
    gradients = run.verdict.worst("gradient")
    assert gradients is not None and gradients.error < 1e-5


@pytest.mark.parametrize(
    ("op", "kinks"),
    [("HardSigmoid", (-2.5, 2.5)), ("HardSwish", (-3.0, 3.0)), ("Clip", (0.0, 6.0)), ("Softsign", (0.0, 4.0))],
)
def test_what_rounds_onto_a_kink(op: str, kinks: tuple[float, ...], tmp_path: Path) -> None:
    """Eight bits of precision put many values exactly where a slope jumps: there it has to be the reference's, too."""
    draw = np.random.default_rng(0)
    w = (draw.choice(kinks, 256) + draw.normal(0.0, 0.01, 256)).astype(np.float32)[None]
    bounds = {"low": np.float32(0).reshape(()), "high": np.float32(6).reshape(())} if op == "Clip" else {}
    inputs = " ".join(["a", *bounds])
    nodes = [node("Mul", "x w", "a", "mul"), node(op, inputs, "b", "op"), node("Mul", "b b", "y", "square")]
    made = model(nodes, [value("x", [1, 256])], [value("y", [1, 256])], {"w": w, **bounds})
    np.savez(tmp_path / "data.npz", x=np.ones_like(w), y=draw.standard_normal(w.shape).astype(np.float32))
    recipe = tg.Recipe(optimizer=tg.SGD(lr=0.01), loss="mse", store=tg.Stored.parse("activations=bf16"))
    with tg.open_device("host") as device:
        run = train(tg.compile(made, recipe), device, steps=1, data=str(tmp_path / "data.npz"))
    assert run.verdict is not None and run.verdict.verified


@pytest.mark.parametrize("kind", [Net, Bent])
def test_hooks_written_by_hand(kind: type[nn.Module]) -> None:
    """One step of the module itself under `saved_tensors_hooks`: gradients differ from those of float32, as ours do."""
    torch.manual_seed(3)
    net = kind().eval()
    draw = np.random.default_rng(4)
    x, y = draw.standard_normal((2, 2, 6, 6)).astype(np.float32), draw.integers(0, 4, 2)
    own = {parameter.data_ptr() for parameter in (*net.parameters(), *net.buffers())}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        is_kept = tensor.data_ptr() in own or not tensor.is_floating_point() or tensor.dim() == 0
        return tensor if is_kept else tensor.to(torch.bfloat16).to(tensor.dtype)

    net.zero_grad()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = nn.functional.cross_entropy(net(torch.tensor(x)), torch.tensor(y))
    loss.backward()
    with tg.open_device("host") as device, device.load(compiled(net, "activations=bf16")) as session:
        session.step(x, y)
        found = session.gradients()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None
        wanted = parameter.grad.numpy()
        assert np.linalg.norm(found[name] - wanted) <= 2e-5 * max(np.linalg.norm(wanted), 1e-3), name


def trained(program: Compiled, device_name: str) -> tuple[list[float], dict[str, bytes]]:
    draw = np.random.default_rng(0)
    with tg.open_device(device_name) as device, device.load(program) as session:
        losses = []
        for _ in range(3):
            losses.append(float(session.step(draw.standard_normal((2, 2, 6, 6)), draw.integers(0, 4, 2))))
            session.update()
        state = {**session.weights(), **session.optimizer_state()}
        assert all(array.dtype in (np.float32, np.int64, np.bool_) for array in state.values())
        return losses, {name: array.tobytes() for name, array in state.items() if not name.startswith("tg.")}


@pytest.mark.slow
@pytest.mark.parametrize("store", ["bf16", "fp16"])
def test_a_cluster_has_the_same_bits(net: Net, store: str) -> None:
    """It works on tiles, and its update is fused."""
    assert trained(compiled(net, store, "siracusa"), "sim:siracusa") == trained(compiled(net, store), "host")


@pytest.mark.slow
def test_opencl_has_the_same_bits(net: Net) -> None:
    missing = device_kind("opencl:0").missing("opencl:0")
    if missing:
        pytest.skip(missing)
    store = "activations=fp16,optimizer=bf16"
    assert trained(compiled(net, store, "opencl"), "opencl:0") == trained(compiled(net, store), "host")


def test_a_value_that_is_not_rounded_is_another(net: Net) -> None:
    """What proves that something computed again is the same tells the fault by the node."""
    step = compiled(net, "activations=bf16").program.entries["step"]
    stored = {node.outputs[0]: node.inputs[0] for node in step.nodes if node.op == "Store16"}
    exact = {node.outputs[0]: stored[node.inputs[0]] for node in step.nodes if node.op == "Load16"}
    expect_same_results(step, step)
    at = next(i for i, node in enumerate(step.nodes) if node.op == "ConvGrad" and set(exact) & set(node.inputs))
    node = step.nodes[at]
    wrong = node.with_inputs(tuple(exact.get(name, name) for name in node.inputs))
    with pytest.raises(InternalError, match=f"is another value, first at node '{node.name}'"):
        expect_same_results(step, replace(step, nodes=(*step.nodes[:at], wrong, *step.nodes[at + 1 :])))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--store", "activations=int8"), "there is no such storage type"),
        (("--store", "weights=bf16"), "there is no such storage"),
        (("--store", "bfloat"), "there is no such storage"),
        (("--store", "optimizer=bf16"), "the optimizer sgd has no state to store"),
        (("--store", "activations=bf16,activations=fp16"), "activations can be stored in one way only"),
    ],
)
def test_bad_settings(tilegrad: CommandLine, arguments: tuple[str, ...], message: str) -> None:
    answer = tilegrad("inspect", "simplemlp", "--device", "host", *arguments)
    assert answer.status == 2
    assert message in answer.err and answer.err.count("error:") == 1


def test_the_setting_is_part_of_the_program(net: Net, tmp_path: Path, tilegrad: CommandLine) -> None:
    recipe = ("--device", "host", "--optimizer", "momentum", "--no-verify", "--steps", 2)
    kept = tmp_path / "kept"
    stored = ("--store", "activations=bf16,optimizer=bf16")
    assert tilegrad("train", "simplemlp", *recipe, *stored, "--checkpoint", kept).status == 0
    same = ("train", "simplemlp", *recipe[:-1], 3, "--resume", kept)
    assert tilegrad(*same, *stored).status == 0
    for other in ("f32", "activations=fp16,optimizer=bf16"):
        answer = tilegrad(*same, "--store", other)
        assert answer.status == 2 and "checkpoint" in answer.err
    folder = tmp_path / "c"
    assert tilegrad("compile", "simplemlp", *recipe[:4], *stored, "-o", folder).status == 0
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["recipe"]["store"] == "activations=bf16,optimizer=bf16"
    assert {t["dtype"] for t in manifest["tensors"] if t["role"] == "optimizer"} == {"bf16"}


def test_inspect_tells_the_bytes_and_explore_varies_them(tilegrad: CommandLine, tmp_path: Path) -> None:
    found = {}
    for store in ("f32", "bf16"):
        answer = tilegrad("inspect", "mlp", "--device", "host", "--store", store, "--json", "-").json
        found[answer["store"]] = answer["saved_activation_bytes"]
    assert list(found) == ["f32", "activations=bf16"]
    assert found["activations=bf16"] - 8 == (found["f32"] - 8) / 2  # the label stays


def test_what_could_be_stored(net: Net) -> None:
    """For who looks for what fits."""
    settings = {str(each) for each in store_settings(compiled(net, "f32").program)}
    assert "activations=bf16" in settings and "activations=bf16,optimizer=bf16" in settings
    plain = {str(each) for each in store_settings(compiled(net, "f32", optimizer=tg.SGD()).program)}
    assert plain == {"activations=bf16", "activations=fp16"}


def test_training_graphs_say_what_they_keep() -> None:
    from tilegrad.passes.store import refuse_stored

    with pytest.raises(UserError, match="a training graph says itself"):
        refuse_stored(tg.Recipe(store=tg.Stored("bf16")), "a training graph says itself what it keeps")
