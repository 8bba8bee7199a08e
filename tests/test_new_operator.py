"""A new operator is a pair of files: everything else follows from it, and its cycles are shown as uncounted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import tilegrad as tg
from tests.conftest import NO_TORCH
from tests.support.command_line import CommandLine
from tests.support.in_place import assert_in_place
from tests.support.small_models import saved
from tilegrad.calibration.examples import graphs
from tilegrad.ops import registry
from tilegrad.ops._pointwise import Activation, InputActivationGradient
from tilegrad.ops.example import Draw
from tilegrad.report.picture.record import read_record

C_FILE = """\
/* Mish: y = x tanh(softplus(x)). MishGrad, with s = softplus(x), t = tanh(s): dx = dy (t + x (1 - t^2) (1 - e^-s)). */
#include "tg_elementwise.h"
#include "tg_math.h"

TG_KERNEL void tg_mish(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(y[i] = x[i] * tg_tanh(tg_softplus(x[i]));)
}

TG_KERNEL void tg_mish_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM float *dx,
                            TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(float s = tg_softplus(x[i]); float t = tg_tanh(s);
           dx[i] = dy[i] * TG_FMA(x[i] * TG_FMA(-t, t, 1.0f), -tg_expm1(-s), t);)
}
"""


class Mish(Activation):
    name = "Mish"
    kernel = "mish"
    saves_output = False


class MishGrad(InputActivationGradient):
    name = "MishGrad"
    kernel = "mish_grad"


@pytest.fixture
def mish(tmp_path: Path) -> Iterator[None]:
    kernels = tmp_path / "mish.c"
    kernels.write_text(C_FILE, encoding="utf-8")
    for operator in (Mish, MishGrad):
        tg.register(operator, kernels=kernels)
    yield
    for operator in (Mish, MishGrad):
        registry.unregister(operator.name)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    text = """<ir_version: 8, opset_import: ["" : 18]>
    mish (float[1,24] x) => (float[1,4] y) <float[16,24] w, float[4,16] v>
    { h = Gemm<transB=1>(x, w)  a = Mish(h)  y = Gemm<transB=1>(a, v) }"""
    proto = onnx.parser.parse_model(text)
    draw = np.random.default_rng(0)
    for name, shape in (("w", (16, 24)), ("v", (4, 16))):
        array = draw.uniform(-0.4, 0.4, shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return saved(proto, tmp_path)


@pytest.mark.skipif(NO_TORCH, reason="PyTorch defines it")
@pytest.mark.usefixtures("mish")
def test_forward_and_gradient() -> None:
    import torch

    from tests.support.operators import check_operator

    x = np.random.default_rng(0).standard_normal((3, 37)).astype(np.float32)
    check_operator("Mish", [x], torch.nn.functional.mish)


@pytest.mark.usefixtures("mish")
def test_examples_and_in_place_follow() -> None:
    graph = next(graph for graph in graphs(registry.get("Mish"), Draw(0, largest=9)) if len(graph.nodes) == 2)
    assert [node.op for node in graph.nodes] == ["Mish", "MishGrad"]
    feeds = {name: np.ones(graph.types[name].shape, np.float32) for name in graph.inputs}
    assert assert_in_place(graph, feeds) > 0


@pytest.mark.usefixtures("mish")
def test_its_cycles_are_shown_as_uncounted(tilegrad: CommandLine, model: Path, tmp_path: Path) -> None:
    names = ["mish", "mish_grad"]
    chosen = ("--device", "sim:siracusa", "--no-verify", "--steps", 1)
    run = tilegrad("train", model, *chosen, "--json", "-").json
    assert run["uncounted"] == names and run["cycles"]["step"] > 0
    assert "uncounted, a guess from other kernels: mish, mish_grad" in tilegrad("train", model, *chosen).out
    facts = tilegrad("inspect", model, "--target", "siracusa", "--tiles", "--json", "-").json
    assert facts["uncounted"] == names
    assert {row["kernel"] for row in facts["tiles"] if row["uncounted"]} == set(names)
    shown = tilegrad("inspect", model, "--target", "siracusa", "--tiles").out
    assert "uncounted, a guess from other kernels: mish, mish_grad" in shown
    assert shown.count(" uncounted") >= 2
    written = tilegrad("compile", model, "--target", "siracusa", "-o", tmp_path / "c")
    assert "uncounted, a guess from other kernels: mish, mish_grad" in written.out
    tilegrad("train", model, *chosen, "-o", tmp_path / "r")
    (mode,) = read_record(tmp_path / "r")["modes"]
    assert mode["estimates_are"] == "estimated, uncounted: mish, mish_grad"  # which pages and pictures say
    compared = tilegrad("compare", model, "--device", "sim:siracusa", "--json", "-").json
    assert compared["uncounted"] == names


def test_what_is_counted_is_not_marked(tilegrad: CommandLine) -> None:
    run = tilegrad("train", "simplemlp", "--device", "sim:siracusa", "--no-verify", "--steps", 1)
    assert "uncounted" not in run.out
    assert tilegrad("inspect", "simplemlp", "--target", "siracusa", "--json", "-").json["uncounted"] == []
