"""Small models that meet every kind of nest, compiled for the simulated cluster in any way a user may ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import onnx

from tests.support.models import ints, model, node, value, weights
from tilegrad import frontend
from tilegrad.build.toolchain import host_toolchain
from tilegrad.compiled import Compiled
from tilegrad.data.samples import infer_inputs, make_batches
from tilegrad.devices.base import Session
from tilegrad.devices.host import HostDevice
from tilegrad.devices.sim import SimDevice
from tilegrad.frontend import ImportedModel
from tilegrad.pipeline import compile_model
from tilegrad.recipe import SGD, Adam, Momentum, Rate, Recipe
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.targets import base as targets
from tilegrad.targets.base import L1, L2, Target
from tilegrad.training.train import train

KIB = 1024
SIRACUSA = "sim:siracusa"
UNTILED = ScheduleOptions(is_tiled=False)


def odd_cnn() -> onnx.ModelProto:
    """Odd sizes, stride 2, padding on both sides and on one, depthwise, both poolings, two consumers, a skip."""
    return model(
        [
            node("Conv", "x w1 b1", "c1", "/conv1", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
            node("BatchNormalization", "c1 g1 s1 m1 v1", "n1", "/norm1"),
            node("Relu", "n1", "r1", "/relu1"),
            node("Conv", "r1 w2 b2", "c2", "/depthwise", kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=5),
            node("Add", "c2 r1", "a2", "/skip"),
            node("MaxPool", "a2", "p2", "/pool", kernel_shape=[3, 2], strides=[2, 1], pads=[0, 0, 1, 1]),
            node("Conv", "p2 w3 _", "c3", "/conv3", kernel_shape=[2, 3], strides=[1, 2], pads=[0, 1, 0, 0]),
            node("Clip", "c3 low high", "r3", "/clip"),
            node("AveragePool", "r3", "p3", "/average", kernel_shape=[2, 1], strides=[1, 1]),
            node("Concat", "p3 p3", "d3", "/twice", axis=1),
            node("GlobalAveragePool", "d3", "g3", "/global"),
            node("Flatten", "g3", "f3", "/flatten"),
            node("Gemm", "f3 w4 b4", "y", "/fc", transB=1),
        ],
        [value("x", ["batch", 3, 13, 11])],
        [value("y", ["batch", 3])],
        {
            "w1": weights(5, 3, 3, 3, seed=1) * 0.3,
            "b1": weights(5, seed=2),
            "g1": weights(5, seed=3),
            "s1": weights(5, seed=4),
            "m1": weights(5, seed=5) * 0.1,
            "v1": abs(weights(5, seed=6)) + 0.5,
            "w2": weights(5, 1, 3, 3, seed=7) * 0.3,
            "b2": weights(5, seed=8),
            "w3": weights(6, 5, 2, 3, seed=9) * 0.3,
            "w4": weights(3, 12, seed=10) * 0.3,
            "b4": weights(3, seed=11),
            "low": 0.0,
            "high": 6.0,
        },
    )


def attention() -> onnx.ModelProto:
    """An embedding of integers, layer norm, split heads, softmax over scores, slices and a concatenation, a mean."""
    return model(
        [
            node("Gather", "table x", "e", "/embed", axis=0),
            node("LayerNormalization", "e g b", "n", "/norm", axis=-1),
            node("MatMul", "n wqkv", "qkv", "/qkv"),
            node("Split", "qkv sizes", "q k v", "/split", axis=-1),
            node("Transpose", "k", "kt", "/transpose", perm=[0, 2, 1]),
            node("MatMul", "q kt", "s", "/scores"),
            node("Mul", "s scale", "t", "/scale"),
            node("Softmax", "t", "p", "/softmax", axis=-1),
            node("MatMul", "p v", "o", "/mix"),
            node("Add", "o e", "r", "/residual"),
            node("Slice", "r from0 to1 axis2", "left", "/left"),
            node("Slice", "r from1 to2 axis2", "right", "/right"),
            node("Gelu", "left", "gelu", "/gelu"),
            node("Concat", "right gelu", "c", "/concat", axis=2),
            node("ReduceMean", "c axis1", "mean", "/mean", keepdims=0),
            node("Gemm", "mean w h", "y", "/head", transB=1),
        ],
        [value("x", ["batch", 7], "i64")],
        [value("y", ["batch", 4])],
        {
            "table": weights(11, 10, seed=1),
            "g": weights(10, seed=2),
            "b": weights(10, seed=3),
            "wqkv": weights(10, 30, seed=4) * 0.3,
            "sizes": ints(10, 10, 10),
            "scale": 0.3,
            "from0": ints(0),
            "to1": ints(3),
            "from1": ints(3),
            "to2": ints(10),
            "axis2": ints(2),
            "axis1": ints(1),
            "w": weights(4, 10, seed=5) * 0.3,
            "h": weights(4, seed=6),
        },
        opset=20,
    )


def own_loss() -> onnx.ModelProto:
    """Two inputs that are data, one that holds labels, and the loss as an output beside the scores."""
    return model(
        [
            node("Gemm", "left w1 b1", "h1", "/left", transB=1),
            node("Gemm", "right w2 _", "h2", "/right", transB=1),
            node("Mul", "h1 h2", "m", "/gate"),
            node("Tanh", "m", "t", "/tanh"),
            node("Gemm", "t w3 b3", "scores", "/head", transB=1),
            node("SoftmaxCrossEntropyLoss", "scores classes", "entropy log", "/entropy", reduction="mean"),
            node("Mul", "t t", "t2", "/square"),
            node("ReduceMean", "t2 axes", "size", "/size", keepdims=0),
            node("Mul", "size share", "penalty", "/penalty"),
            node("Add", "entropy penalty", "total", "/total"),
        ],
        [value("left", ["batch", 6]), value("right", ["batch", 4]), value("classes", ["batch"], "i64")],
        [value("scores", ["batch", 3]), value("total", [])],
        {
            "w1": weights(5, 6, seed=1),
            "b1": weights(5, seed=2),
            "w2": weights(5, 4, seed=3),
            "w3": weights(3, 5, seed=4),
            "b3": weights(3, seed=5),
            "axes": ints(0, 1),
            "share": 0.01,
        },
        opset=20,
    )


def two_heads() -> onnx.ModelProto:
    """Two inputs and two outputs, each with a loss of its own."""
    return model(
        [
            node("Concat", "left right", "both", "/both", axis=1),
            node("Gemm", "both w1 b1", "h", "/trunk", transB=1),
            node("Relu", "h", "r", "/relu"),
            node("Gemm", "r w2 b2", "logits", "/classes", transB=1),
            node("Gemm", "r w3 _", "image", "/image", transB=1),
        ],
        [value("left", ["batch", 6]), value("right", ["batch", 4])],
        [value("logits", ["batch", 3]), value("image", ["batch", 7])],
        {
            "w1": weights(9, 10, seed=1) * 0.4,
            "b1": weights(9, seed=2),
            "w2": weights(3, 9, seed=3) * 0.4,
            "b2": weights(3, seed=4),
            "w3": weights(7, 9, seed=5) * 0.4,
        },
    )


HAND_MADE: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "odd_cnn": odd_cnn,
    "attention": attention,
    "own_loss": own_loss,
    "two_heads": two_heads,
}
RECIPES: Mapping[str, Recipe] = {
    "odd_cnn": Recipe(batch=3, optimizer=Adam(lr=0.01), accumulate=2, batchnorm="train"),
    "attention": Recipe(batch=3, optimizer=SGD(lr=0.05)),
    "own_loss": Recipe(batch=4, optimizer=SGD(lr=0.05), loss="output:total"),
    "two_heads": Recipe(
        batch=4,
        optimizer=SGD(lr=0.05),
        loss="cross_entropy:smoothing=0.1,weight=1/2/0.5,ignore=2+0.5*huber:delta=0.3@image",
    ),
    "adapted": Recipe(
        batch=2, optimizer=SGD(lr=0.05), train="lora:3:6+bias", rate=Rate("cosine", warmup=1, updates=3, floor=0.1)
    ),
    "clipped": Recipe(
        batch=2,
        optimizer=Momentum(lr=0.05, nesterov=True, weight_decay=0.1),
        clip=0.5,
        decay="weights",
        rate=Rate("step", every=1, factor=0.5),
    ),
}
SAME_MODEL = {"adapted": "simplemlp", "clipped": "simplemlp"}


def recipe_of(name: str) -> Recipe:
    return RECIPES.get(name, Recipe())


@cache
def imported(name: str) -> ImportedModel:
    recipe = recipe_of(name)
    source = HAND_MADE[name]() if name in HAND_MADE else SAME_MODEL.get(name, name)
    return frontend.load(source, batch=recipe.batch, seed=recipe.seed)


def siracusa(l1_bytes: int = 128 * KIB, cores: int = 8, l2_bytes: int | None = None) -> Target:
    target = targets.get("siracusa").with_capacity(L1, l1_bytes).with_cores(cores)
    return target if l2_bytes is None else target.with_capacity(L2, l2_bytes)


def compiled_for(name: str, target: Target, options: ScheduleOptions | None = None) -> Compiled:
    """Unfused unless the options say otherwise: more operators, whose gradients can be read."""
    asked = options or ScheduleOptions()
    asked = replace(asked, fuses_update=bool(asked.fuses_update))
    return compile_model(imported(name), recipe_of(name), target, options=asked)


def quick_sim(environment: Mapping[str, str] | None = None) -> SimDevice:
    """Compiles in a third of the time; -ffp-contract=off makes the bits those of any other optimisation."""
    tools = host_toolchain()
    flags = tuple("-O1" if flag == "-O3" else flag for flag in tools.flags)
    device = SimDevice(SIRACUSA, toolchain=replace(tools, flags=flags))
    device.environment |= environment or {}
    return device


def sim_state(compiled: Compiled, steps: int) -> dict[str, bytes]:
    """Weights and losses after some updates on the simulator."""
    with quick_sim() as device:
        run = train(compiled, device, steps=steps, verify=False)
    found = {"losses": repr(run.losses).encode()}
    return found | {name: array.tobytes() for name, array in (run.weights | run.statistics).items()}


@cache
def host_state(name: str, steps: int) -> dict[str, bytes]:
    """What the host device computes, which the simulator must reproduce bit by bit."""
    compiled = compiled_for(name, targets.get("host"))
    with HostDevice() as device:
        run = train(compiled, device, steps=steps, verify=False)
    found = {"losses": repr(run.losses).encode()}
    return found | {name: array.tobytes() for name, array in (run.weights | run.statistics).items()}


def run_once(session: Session) -> None:
    """A step, an update and an inference."""
    batch = make_batches(session.compiled, None).batch(0)
    session.step(*batch)
    session.update()
    session.infer(*infer_inputs(session.compiled, batch))


def patched(compiled: Compiled, file: str, old: str, new: str, *, occurrence: int = 0) -> Compiled:
    """The same program with one place of its C changed: a seeded fault."""
    text = compiled.project.files[file].decode()
    pieces = text.split(old)
    assert len(pieces) > occurrence + 1, f"{file} has no occurrence {occurrence} of: {old}"
    changed = old.join(pieces[: occurrence + 1]) + new + old.join(pieces[occurrence + 1 :])
    files = {**compiled.project.files, file: changed.encode()}
    return replace(compiled, project=replace(compiled.project, files=files))
