"""On chips with L3: what is fetched, and what is made again because that is cheaper, by one clock."""

from __future__ import annotations

import onnx
import pytest

import tilegrad as tg
from tests.fit.training import results
from tests.support.models import model, node, value, weights
from tilegrad.targets import base as targets
from tilegrad.targets.base import L2, Target

KIB = 1024
SHAPE = (1, 2, 32, 32)


@pytest.fixture(scope="module")
def network() -> onnx.ModelProto:
    """Each activation has 64 KiB, is needed again on the way back, and takes less to make than to fetch."""
    nodes, initial, source = [], {}, "x"
    for k in range(4):
        nodes += [node("Conv", f"{source} w{k}", f"a{k}", f"conv{k}")]
        statistics = f"s{k} b{k} m{k} v{k}"
        nodes += [node("BatchNormalization", f"a{k} {statistics}", f"n{k}", f"norm{k}")]
        nodes += [node("Relu", f"n{k}", f"r{k}", f"relu{k}")]
        initial[f"w{k}"] = weights(16, 16 if k else 2, 1, 1, seed=k) / 3
        initial |= {name: weights(16, seed=5) ** 2 + 0.5 for name in statistics.split()}
        source = f"r{k}"
    nodes += [node("GlobalAveragePool", "r3", "e", "mean"), node("Flatten", "e", "y", "flat")]
    return model(nodes, [value("x", list(SHAPE))], [value("y", [1, 16])], initial)


def chip(l2_bytes: int) -> Target:
    return targets.get("siracusa").with_capacity(L2, l2_bytes)


@pytest.mark.slow
def test_what_is_cheaper_to_make_again_is_not_fetched(network: onnx.ModelProto) -> None:
    fetched = tg.compile(network, target=chip(320 * KIB))
    again = tg.compile(network, target=chip(320 * KIB), fit=True)
    assert again.fit is not None and again.fit.repeated > 0
    assert again.fit.before_cycles == fetched.cycles["step"]
    assert again.fit.after_cycles == again.cycles["step"]
    assert again.fit.after_cycles < again.fit.before_cycles
    assert results(again, SHAPE, 16, "sim:siracusa") == results(fetched, SHAPE, 16, "sim:siracusa")


@pytest.mark.slow
def test_what_fits_into_l2_is_left_as_it_is(network: onnx.ModelProto) -> None:
    target = chip(1536 * KIB)
    kept, fitted = tg.compile(network, target=target), tg.compile(network, target=target, fit=True)
    assert fitted.fit is not None and fitted.fit.repeated == 0
    assert fitted.project.files == kept.project.files
