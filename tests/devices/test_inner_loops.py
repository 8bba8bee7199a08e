"""The chip's own innermost loops (targets/siracusa/kernels/tg_inner.h) give the host's bits: on shapes with rests."""

from __future__ import annotations

import onnx
import pytest

from tests.devices.siracusa import needs_compiler
from tests.schedule.programs import KIB, siracusa
from tests.support.small_models import model, node, weights
from tilegrad import frontend
from tilegrad.devices.host import HostDevice
from tilegrad.devices.iss import IssDevice
from tilegrad.pipeline import compile_model
from tilegrad.recipe import Recipe
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.targets import base as targets
from tilegrad.training.train import train

pytestmark = needs_compiler
# Channels out, window, padding on the left and on the right: taps of a column are one or two, or three of five; rows of
# outputs end in any rest of four, and elements beyond either edge are met or not.
STRIDED = ((6, 3, 1, 1), (9, 3, 0, 1), (5, 2, 0, 0), (7, 5, 2, 2), (4, 1, 0, 0))
ROWS = (5, 9, 34, 7, 70, 3)


def strided() -> onnx.ModelProto:
    """Side by side on one map, so that each has an input gradient; their sum is the map's."""
    nodes = [node("Conv", ["x", "w"], ["c"], "first", kernel_shape=[1, 1])]
    initializers = [weights("w", 5, 2, 1, 1)]
    pooled = []
    for i, (channels, window, low, high) in enumerate(STRIDED):
        pads = [low, low, high, high]
        window_shape = [window, window]
        nodes.append(
            node("Conv", ["c", f"w{i}"], [f"c{i}"], f"c{i}", kernel_shape=window_shape, strides=[2, 2], pads=pads)
        )
        nodes.append(node("GlobalAveragePool", [f"c{i}"], [f"p{i}"], f"pool{i}"))
        initializers.append(weights(f"w{i}", channels, 5, window, window))
        pooled.append(f"p{i}")
    total = sum(channels for channels, *_ in STRIDED)
    nodes.append(node("Concat", pooled, ["p"], "concat", axis=1))
    nodes.append(node("Flatten", ["p"], ["f"], "flatten"))
    nodes.append(node("Gemm", ["f", "v"], ["y"], "fc"))
    return model(nodes, ["N", 2, 13, 19], ["N", 3], [*initializers, weights("v", total, 3)])


def rows() -> onnx.ModelProto:
    """A single row times matrices that lie along and across k, of sizes with every rest."""
    nodes, initializers, value, before = [], [], "x", 6
    for i, features in enumerate(ROWS):
        is_last = i == len(ROWS) - 1
        along = i % 2
        shape = (features, before) if along else (before, features)
        nodes.append(node("Gemm", [value, f"w{i}", f"b{i}"], ["y" if is_last else f"h{i}"], f"fc{i}", transB=along))
        initializers += [weights(f"w{i}", *shape), weights(f"b{i}", features)]
        value, before = f"h{i}", features
    return model(nodes, ["N", 6], ["N", ROWS[-1]], initializers)


MODELS = {"strided": strided, "rows": rows}


@pytest.mark.parametrize(
    "l1_kib", [pytest.param(2, marks=pytest.mark.slow), pytest.param(64, marks=pytest.mark.matrix)]
)
@pytest.mark.parametrize("name", MODELS)
def test_the_hosts_bits(name: str, l1_kib: int) -> None:
    """In little scratchpad sums are cut into tiles, and go on from what is there."""
    given = frontend.load(MODELS[name]())
    chip = compile_model(given, Recipe(), siracusa(l1_kib * KIB), options=ScheduleOptions(fuses_update=False))
    with IssDevice() as device:
        ran = train(chip, device, steps=2, verify=False, keep_gradients=False)
    flat = compile_model(given, Recipe(), targets.get("host"))
    with HostDevice() as host:
        expected = train(flat, host, steps=2, verify=False)
    assert ran.losses == expected.losses and ran.weights_sha256 == expected.weights_sha256
