"""Random small models, compiled in random ways as far as their listing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx

from tests.support.models import model, node, value, weights
from tilegrad import frontend
from tilegrad.errors import DoesNotFit
from tilegrad.ir.listing import Listing
from tilegrad.pipeline import Observer, compile_model
from tilegrad.recipe import SGD, Adam, Recipe
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.targets import base as targets
from tilegrad.targets.base import L1, L2, Target

L1_BYTES = (1280, 1536, 2048, 3072, 4096, 8192, 131072)
L2_BYTES = (None, 6144, 16384, 65536)


class _Model:
    """Nodes as they are added; `seen` are tensors that a later node may join again."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, object] = {}
        self.shape: tuple[int, ...] = ()
        self.at = "x"
        self.seen: dict[tuple[int, ...], list[str]] = {}

    def pick(self, *choices: int) -> int:
        return int(self.random.choice(choices))

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.initializers)}"
        self.initializers[name] = weights(*shape, seed=len(self.initializers)) * 0.3
        return name

    def add(self, op: str, inputs: str, shape: tuple[int, ...], **attributes: object) -> None:
        output = f"t{len(self.nodes)}"
        self.nodes.append(node(op, f"{self.at} {inputs}", output, f"/{op.lower()}{len(self.nodes)}", **attributes))
        self.seen.setdefault(self.shape, []).append(self.at)
        self.at, self.shape = output, shape

    def same_shape(self) -> None:
        """What works on any shape, a join of two branches among them."""
        others = self.seen.get(self.shape, [])
        if others and self.random.random() < 0.5:
            self.add(("Add", "Mul")[self.pick(0, 1)], others[self.random.integers(len(others))], self.shape)
            return
        self.add(("Relu", "Sigmoid", "Tanh")[self.pick(0, 1, 2)], "", self.shape)

    def dense(self) -> None:
        columns = self.shape[1]
        kind = self.pick(0, 1, 2, 3, 4)
        if kind <= 1:
            rows = self.pick(3, 5, 8, 12)
            self.add("Gemm", f"{self.weight(rows, columns)} {self.weight(rows)}", (self.shape[0], rows), transB=1)
        elif kind == 2:
            self.add("LayerNormalization", f"{self.weight(columns)} {self.weight(columns)}", self.shape, axis=-1)
        elif kind == 3:
            self.add("Softmax", "", self.shape, axis=-1)
        else:
            self.same_shape()

    def image(self) -> None:
        batch, channels, height, width = self.shape
        kind = self.pick(0, 1, 2, 3, 4)
        if kind <= 1:
            rows, size, stride = self.pick(2, 3, 5), self.pick(1, 3), self.pick(1, 2)
            pad = size // 2
            shape = (batch, rows, (height - 1) // stride + 1, (width - 1) // stride + 1)
            attributes = {"kernel_shape": [size, size], "strides": [stride, stride], "pads": [pad] * 4}
            weight = self.weight(rows, channels, size, size)
            self.add("Conv", f"{weight} {self.weight(rows)}", shape, **attributes)
        elif kind == 2 and min(height, width) >= 2:
            op = ("MaxPool", "AveragePool")[self.pick(0, 1)]
            shape = (batch, channels, height - 1, (width - 2) // 2 + 1)
            self.add(op, "", shape, kernel_shape=[2, 2], strides=[1, 2])
        elif kind == 3:
            extra = " ".join([*(self.weight(channels) for _ in range(3)), "variance"])
            self.initializers.setdefault("variance", np.ones(64, np.float32))
            variance = f"v{len(self.initializers)}"
            self.initializers[variance] = np.ones(channels, np.float32)
            self.add("BatchNormalization", extra.replace("variance", variance), self.shape)
        else:
            self.same_shape()

    def build(self, batch: int) -> onnx.ModelProto:
        is_image = self.random.random() < 0.5
        self.shape = (batch, *((2, 7, 5) if is_image else (self.pick(4, 7, 10),)))
        first = self.shape
        for _ in range(self.pick(1, 2, 3, 4)):
            (self.image if is_image else self.dense)()
        if is_image:
            self.add("GlobalAveragePool", "", (*self.shape[:2], 1, 1))
            self.add("Flatten", "", self.shape[:2])
        self.add("Gemm", f"{self.weight(3, self.shape[1])} {self.weight(3)}", (batch, 3), transB=1)
        self.initializers.pop("variance", None)
        shapes = [["batch", *first[1:]], ["batch", 3]]
        return model(self.nodes, [value("x", shapes[0])], [value(self.at, shapes[1])], self.initializers)


class _Done(Exception):
    def __init__(self, listing: Listing) -> None:
        super().__init__()
        self.listing = listing


def _stop(stage: str, result: object) -> None:
    if stage == "sequence":
        assert isinstance(result, Listing)
        raise _Done(result)


def random_target(random: np.random.Generator, l1_bytes: int, l2_bytes: int | None) -> Target:
    target = targets.get("siracusa").with_capacity(L1, l1_bytes).with_cores(int(random.choice([1, 8])))
    target = target if l2_bytes is None else target.with_capacity(L2, l2_bytes)
    longest, depth = int(random.choice([56, 1000, 131071])), int(random.choice([1, 2, 4, 34]))
    own = {L1: {"longest_bytes": longest}, L2: {"queue_depth": depth}}
    engines = tuple(replace(engine, **own[engine.near]) for engine in target.engines)
    return replace(target, engines=engines)


def random_listing(seed: int) -> Listing:
    """Always the same for a seed. Where scratchpad or L2 is too small for the model, the next larger one is taken."""
    random = np.random.default_rng(seed)
    batch = int(random.choice([1, 2, 3]))
    source = _Model(random).build(batch)
    optimizer = (SGD(lr=0.1), Adam(lr=0.1))[int(random.integers(2))]
    has_norm = any(node.op_type == "BatchNormalization" for node in source.graph.node)
    policy = "train" if random.random() < 0.5 and has_norm else "frozen"
    recipe = Recipe(batch=batch, optimizer=optimizer, batchnorm=policy)
    options = ScheduleOptions(
        is_tiled=bool(random.random() < 0.85),
        buffering=str(random.choice(["auto", "single", "double"])),
        home=str(random.choice(["auto", "L2", "L3"])),
        fuses_update=bool(random.random() < 0.3),
    )
    l1, l2 = int(random.integers(len(L1_BYTES))), L2_BYTES[int(random.integers(len(L2_BYTES)))]
    imported = frontend.load(source, batch=batch, seed=0)
    state = random.bit_generator.state
    for l1_bytes in L1_BYTES[l1:]:
        for l2_bytes in (l2, None):
            random.bit_generator.state = state
            target = random_target(random, l1_bytes, l2_bytes)
            try:
                compile_model(imported, recipe, target, Observer(_stop), options=options)
            except _Done as done:
                return done.listing
            except DoesNotFit:
                continue
    raise AssertionError(f"nothing fits seed {seed}")
