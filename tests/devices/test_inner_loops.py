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
# Planes of depthwise convolutions: columns of the map, stride, and padding above, left, below and right. Outputs are
# made in strips of two and of three columns, with and without a tap beyond either edge, in the forward pass and in the
# input gradient: all of them are here. A core begins and ends at any row, and with an edge above or below, or none.
PLANES = (
    *((3, 1, (1, 1, 1, 1)), (4, 1, (1, 1, 1, 1)), (5, 1, (1, 1, 1, 1)), (6, 1, (0, 0, 0, 0)), (9, 1, (1, 1, 1, 1))),
    *((7, 1, (0, 0, 1, 1)), (8, 1, (1, 1, 0, 0)), (4, 1, (2, 2, 2, 2)), (7, 1, (1, 2, 2, 1)), (9, 1, (2, 1, 1, 2))),
    *((5, 2, (1, 1, 1, 1)), (7, 2, (0, 1, 1, 1)), (9, 2, (0, 0, 0, 0)), (8, 2, (1, 1, 1, 1)), (12, 2, (0, 0, 1, 1))),
    (12, 2, (1, 1, 0, 0)),
)
HEIGHT, WIDEST = 6, max(width for width, *_ in PLANES)


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


def planes() -> onnx.ModelProto:
    """Each on a map of its own width, which a convolution makes, so that each has an input gradient; what comes back
    differs from element to element."""
    nodes, initializers, flat, features = [], [], [], 0
    for i, (width, stride, pads) in enumerate(PLANES):
        across = WIDEST - width + 1
        nodes += [
            node("Conv", ["x", f"v{i}"], [f"m{i}"], f"map{i}", kernel_shape=[1, across]),
            node("Conv", [f"m{i}", f"w{i}"], [f"c{i}"], f"c{i}", group=3, strides=[stride, stride], pads=pads),
            node("Flatten", [f"c{i}"], [f"f{i}"], f"flatten{i}"),
        ]
        initializers += [weights(f"v{i}", 3, 2, 1, across), weights(f"w{i}", 3, 1, 3, 3)]
        flat.append(f"f{i}")
        above, left, below, right = pads
        features += 3 * ((HEIGHT + above + below - 3) // stride + 1) * ((width + left + right - 3) // stride + 1)
    nodes.append(node("Concat", flat, ["f"], "concat", axis=1))
    nodes.append(node("Gemm", ["f", "v"], ["y"], "fc"))
    return model(nodes, ["N", 2, HEIGHT, WIDEST], ["N", 3], [*initializers, weights("v", features, 3)])


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


MODELS = {"strided": strided, "planes": planes, "rows": rows}


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
