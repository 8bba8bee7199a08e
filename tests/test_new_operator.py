"""A new operator is a pair of files: everything else follows from it, and its cycles are shown as uncounted."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tilegrad as tg
from tests.conftest import NO_TORCH
from tests.support.command_line import CommandLine
from tests.support.in_place import assert_in_place
from tests.support.small_models import saved
from tilegrad.calibration.examples import graphs
from tilegrad.commands import explore
from tilegrad.exploration.pool import Job
from tilegrad.exploration.store import Row
from tilegrad.ops import registry
from tilegrad.ops._pointwise import Activation, InputActivationGradient
from tilegrad.ops.example import Draw
from tilegrad.report.comparison_text import formatted
from tilegrad.report.picture.plots import plot_bytes
from tilegrad.report.picture.record import read_record
from tilegrad.report.picture.trace import trace_bytes

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


GUESS = "estimated, uncounted: mish, mish_grad"


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
    assert {row["kernel"].split("+")[-1] for row in facts["tiles"] if row["uncounted"]} == set(names)
    shown = tilegrad("inspect", model, "--target", "siracusa", "--tiles").out
    assert "uncounted, a guess from other kernels: mish, mish_grad" in shown
    assert shown.count(" uncounted") >= 2
    written = tilegrad("compile", model, "--target", "siracusa", "-o", tmp_path / "c")
    assert "uncounted, a guess from other kernels: mish, mish_grad" in written.out
    compared = tilegrad("compare", model, "--device", "sim:siracusa", "--format", "csv", "--json", tmp_path / "c.json")
    document = json.loads((tmp_path / "c.json").read_text())
    assert document["uncounted"] == names
    markdown = formatted(document, None, "markdown")
    for text, named in ((compared.out, '"mish, mish_grad"'), (markdown, "| mish, mish_grad |")):
        head, *rows = text.splitlines()
        assert "uncounted" in head and sum(named in row for row in rows) == len(document["rows"])


@pytest.mark.usefixtures("mish")
def test_pages_pictures_and_traces_name_it(tilegrad: CommandLine, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    chosen = ("--device", "sim:siracusa", "--no-verify", "--steps", 1)
    tilegrad("train", model, *chosen, "-o", tmp_path / "r")
    (mode,) = read_record(tmp_path / "r")["modes"]
    assert mode["estimates_are"] == GUESS  # which pages and pictures say
    shown = {row["kernel"].split("+")[-1] for row in mode["operators"] if row["uncounted"]}
    assert shown == {"mish", "mish_grad"}  # maybe behind the product that makes what it reads
    for kind in ("memory", "timeline", "roofline"):
        assert GUESS in plot_bytes(kind, Path("p.svg"), read_record(tmp_path / "r")).decode()
    trace = json.loads(trace_bytes(Path("t.json"), read_record(tmp_path / "r")))
    assert {e["args"]["cycles_are"] for e in trace["traceEvents"] if e.get("cat") == "entry"} == {GUESS}


class Here:
    """A pool in this process, which knows the operators that were registered in it."""

    def __init__(self, work: Callable[[Any], Row], count: int) -> None:
        self.work = work

    def results(self, jobs: Iterable[Job]) -> Iterator[tuple[str, Row]]:
        return ((key, self.work(task)) for key, task in jobs)

    def close(self) -> None: ...


@pytest.mark.usefixtures("mish")
def test_an_exploration_marks_its_cycles(
    tilegrad: CommandLine, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each point by itself: the host has no cycles, so nothing of it is a guess."""
    monkeypatch.setattr(explore, "LocalPool", Here)
    names, folder = ["mish", "mish_grad"], tmp_path / "points"
    words = ("explore", model, "--vary", "target=siracusa,host", "--objective", "cycles", "-o", folder)
    shown = tilegrad(*words).out
    assert "uncounted, a guess from other kernels: mish, mish_grad" in shown
    document = tilegrad(*words, "--json", "-").json
    on_chip, on_host = document["rows"]
    assert document["uncounted"] == on_chip["uncounted"] == names and on_host["uncounted"] == []
    assert f"{on_chip['figures']['cycles']:,} uncounted" in shown
    with (folder / "points.csv").open() as file:
        assert [line["uncounted"] for line in csv.DictReader(file)] == ["mish, mish_grad", ""]
    page = (folder / "pareto.html").read_text()
    assert f">{on_chip['figures']['step_cycles']:,} uncounted</td>" in page and GUESS in page
    tilegrad("report", folder, "--plot", "pareto", "-o", tmp_path / "p.svg")
    assert GUESS in (tmp_path / "p.svg").read_text()


@pytest.mark.usefixtures("mish")
def test_a_budget_marks_its_cycles(tilegrad: CommandLine, model: Path, tmp_path: Path) -> None:
    budget = tmp_path / "budget.toml"
    limits = '[new]\nmodel = "{}"\nl1 = "64K"\n[new.limits]\nL2 = "1M"\nstep_cycles = {}\n'
    budget.write_text(limits.format(model.name, 10_000_000))
    document = tilegrad("check", budget, "--json", "-").json
    found = {one["figure"]: one for one in document["figures"]}
    assert found["step_cycles"]["uncounted"] == ["mish", "mish_grad"] and found["L2"]["uncounted"] == []
    marked = f"{found['step_cycles']['value']:,} uncounted"
    shown = tilegrad("check", budget).out
    assert shown.count(marked) == 1 and "new: uncounted, a guess from other kernels: mish, mish_grad" in shown
    budget.write_text(limits.format(model.name, 100))
    assert f"got: {marked}" in tilegrad("check", budget).err


@pytest.mark.usefixtures("mish")
def test_notebooks_mark_its_cycles(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs, listings and runs, in tables and in the pictures' axes."""
    labels: list[str] = []
    axes = pytest.importorskip("matplotlib.axes", reason="matplotlib is not installed").Axes
    monkeypatch.setattr(axes, "set_xlabel", lambda self, text: labels.append(text))
    program = tg.compile(model, target="siracusa")
    for shown in (program, program.listing):  # a plan alone has no clock
        text = shown._repr_html_()
        assert text is not None and text.count(" uncounted</td>") == 2 and f"<p>cycles are {GUESS}</p>" in text
        assert labels == [f"cycles of a step, {GUESS}"] * 2
        labels.clear()
    with tg.open_device("sim:siracusa") as device:
        run = tg.train(program, device, steps=1, verify=False)
    assert f"cycles a step ({GUESS})" in repr(run)
    text = run._repr_html_()
    assert text is not None and f">{GUESS}</td>" in text and labels == ["mini-batch", f"cycles of a step, {GUESS}"]


def test_what_is_counted_is_not_marked(tilegrad: CommandLine, tmp_path: Path) -> None:
    run = tilegrad("train", "simplemlp", "--device", "sim:siracusa", "--no-verify", "--steps", 1)
    assert "uncounted" not in run.out
    assert tilegrad("inspect", "simplemlp", "--target", "siracusa", "--json", "-").json["uncounted"] == []
    (tmp_path / "budget.toml").write_text('[a]\nmodel = "simplemlp"\n[a.limits]\nstep_cycles = 10_000_000\n')
    assert "uncounted" not in tilegrad("check", tmp_path / "budget.toml").out
    explored = tilegrad("explore", "simplemlp", "--vary", "cores=8", "--jobs", 1, "-o", tmp_path / "points")
    assert "uncounted" not in explored.out and "uncounted:" not in (tmp_path / "points" / "pareto.html").read_text()
    program = tg.compile("simplemlp", target="siracusa")
    text = program._repr_html_()
    assert text is not None and "uncounted" not in text and "<p>cycles are estimated</p>" in text
