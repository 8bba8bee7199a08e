"""An operator from outside the package: a class and a C file, by a call or by an entry point. It imports, it is
differentiated, compiled and trained, and its gradient stands up to finite differences like any other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tilegrad as tg
from tests.support.models import model, node, value, weights
from tests.support.projects import CONTRACT_FLAGS, opened, toolchain
from tilegrad.devices.host import HostDevice
from tilegrad.errors import UserError
from tilegrad.ir.nest import Nest, map_nest
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops import registry
from tilegrad.ops.base import GradientBuilder, NodeView
from tilegrad.training import train as training
from tilegrad.training.gradcheck import check_gradients

SOFTSIGN_C = """\
/* Softsign: y = x / (1 + |x|). SoftsignGrad: dx = dy (1 - |y|)^2. */
#include "tg_elementwise.h"

TG_INLINE float tg_magnitude(float x) { return x < 0.0f ? -x : x; }

TG_KERNEL void tg_softsign(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                           int core_count)
{
    TG_MAP(y[i] = x[i] / (1.0f + tg_magnitude(x[i]));)
}

TG_KERNEL void tg_softsign_grad(TG_MEM const float *dy, TG_MEM const float *y, TG_MEM float *dx,
                                TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(float r = 1.0f - tg_magnitude(y[i]); dx[i] = dy[i] * (r * r);)
}
"""


class Softsign(tg.Operator):
    """A standard operator that tilegrad does not have."""

    name = "Softsign"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        node.expect_dtype(0, DType.F32)
        return (node.input(0),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        return (map_nest("softsign", node.output().size, [("x", node.inputs[0])], [("y", node.outputs[0])]),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return build.emit("SoftsignGrad", [upstream[0], node.outputs[0]])


class SoftsignGrad(tg.Operator):
    """(dY, Y) -> dX."""

    name = "SoftsignGrad"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2)
        node.expect_dtype(0, DType.F32)
        node.expect_shape(1, node.input(0).shape, "forward output")
        return (node.input(0),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        reads = [("dy", node.inputs[0]), ("y", node.inputs[1])]
        return (map_nest("softsign_grad", node.output().size, reads, [("dx", node.outputs[0])]),)


OPERATORS = (Softsign, SoftsignGrad)


def network(op: str = "Softsign", domain: str = "") -> onnx.ModelProto:
    middle = node(op, "h", "a", "/act")
    middle.domain = domain
    return model(
        [node("Gemm", "x w1 b1", "h", "/fc1"), middle, node("Gemm", "a w2", "y", "/fc2")],
        [value("x", ["n", 6])],
        [value("y", ["n", 4])],
        {"w1": weights(6, 8, seed=1), "b1": weights(8, seed=2), "w2": weights(8, 4, seed=3)},
        domains=[domain] if domain else [],
    )


@pytest.fixture(autouse=True)
def clean_registry() -> Iterator[None]:
    before = dict(registry._external)
    yield
    registry._external.clear()
    registry._external.update(before)
    registry._catalogue.cache_clear()


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    path = tmp_path / "softsign.c"
    path.write_text(SOFTSIGN_C)
    return path


@pytest.fixture(params=["a call", "an entry point"])
def registered(request: pytest.FixtureRequest, kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "a call":
        for operator in OPERATORS:
            assert tg.register(operator, kernels) is operator
    else:
        install(monkeypatch, *((operator, kernels) for operator in OPERATORS))


class Installed(EntryPoint):
    """An entry point of a package that is not on disk."""

    def load(self) -> Any:
        return PACKAGES[self.value]


PACKAGES: dict[str, Any] = {}


def install(monkeypatch: pytest.MonkeyPatch, *content: Any) -> None:
    for position, thing in enumerate(content):
        PACKAGES[f"package:{position}"] = thing
    points = [Installed(f"op{i}", f"package:{i}", "tilegrad.operators") for i in range(len(content))]
    monkeypatch.setattr(
        registry, "entry_points", lambda group: points if group == "tilegrad.operators" else []
    )
    registry._catalogue.cache_clear()


def test_without_it_the_operator_is_expanded_or_refused() -> None:
    assert registry.find("Softsign") is None
    with pytest.raises(UserError, match="an operator that tilegrad does not have"):
        tg.load(network("Soft", "my.company"))


def test_it_trains_and_finite_differences_agree(registered: None) -> None:
    compiled = tg.compile(network(), tg.Recipe(batch=3), target="host")
    assert [one.op for one in compiled.program.entries["infer"].nodes] == ["Gemm", "Softsign", "Gemm"]
    assert "SoftsignGrad" in [one.op for one in compiled.program.entries["step"].nodes]
    assert b"tg_softsign_grad" in compiled.project.files["kernels/softsign.c"]
    with HostDevice() as device:
        checked = check_gradients(compiled, device)
        assert checked.verdict.verified, checked.verdict.failures()
        assert {check.name for check in checked.verdict.tensors} == {"w1", "b1", "w2"}
        run = training.train(compiled, device, steps=20)
    assert run.verdict is not None and run.verdict.verified, run.verdict and run.verdict.failures()


def test_a_wrong_gradient_is_found(kernels: Path) -> None:
    """What the check is worth: the same operator with its gradient off by one percent."""
    kernels.write_text(SOFTSIGN_C.replace("dy[i] * (r * r)", "1.01f * dy[i] * (r * r)"))
    for operator in OPERATORS:
        tg.register(operator, kernels)
    with HostDevice() as device:
        verdict = check_gradients(tg.compile(network(), tg.Recipe(batch=3), target="host"), device).verdict
    assert not verdict.verified
    assert {failure.split(" is off")[0] for failure in verdict.failures()} == {"gradient of w1", "gradient of b1"}


SQUAREPLUS_C = """\
/* Squareplus: y = (x + sqrt(x^2 + b)) / 2, and its gradient from x. */
#include "squareplus.h"

TG_KERNEL void tg_squareplus(TG_MEM const float *x, TG_MEM float *y, TG_ARG const squareplus_args *p, int core_id,
                             int core_count)
{
    TG_MAP(y[i] = 0.5f * (x[i] + SQUAREPLUS_ROOT(x[i]));)
}

TG_KERNEL void tg_squareplus_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM float *dx,
                                  TG_ARG const squareplus_args *p, int core_id, int core_count)
{
    TG_MAP(dx[i] = dy[i] * (0.5f + 0.5f * x[i] / SQUAREPLUS_ROOT(x[i]));)
}
"""
SQUAREPLUS_H = """\
#ifndef SQUAREPLUS_H
#define SQUAREPLUS_H
#include "tg_elementwise.h"

typedef struct {
    int32_t n_i;
    float b;
} squareplus_args;

#define SQUAREPLUS_ROOT(x) TG_SQRT(TG_FMA(x, x, p->b))

#endif
"""


class Squareplus(Softsign):
    """Of a domain that ONNX knows nothing about, with an attribute, an argument struct and a header of its own."""

    name = "my.company.Squareplus"
    kernel = "squareplus"

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        constants = {"b": node.attribute("b", 4.0)}
        names = ("x",) if len(node.inputs) == 1 else ("dy", "x")
        reads = list(zip(names, node.inputs, strict=True))
        writes = [("y" if len(node.inputs) == 1 else "dx", node.outputs[0])]
        return (map_nest(self.kernel, node.output().size, reads, writes, constants),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return build.emit("my.company.SquareplusGrad", [upstream[0], node.inputs[0]], node.node.attributes)


class SquareplusGrad(Squareplus):
    name = "my.company.SquareplusGrad"
    kernel = "squareplus_grad"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2)
        node.expect_shape(1, node.input(0).shape, "forward input")
        return (node.input(0),)


@pytest.fixture
def squareplus(tmp_path: Path) -> Path:
    (tmp_path / "squareplus.h").write_text(SQUAREPLUS_H)
    (tmp_path / "squareplus.c").write_text(SQUAREPLUS_C)
    for operator in (Squareplus, SquareplusGrad):
        tg.register(operator, tmp_path / "squareplus.c")
    return tmp_path / "squareplus.c"


def loss_of(parameters: dict[str, np.ndarray], x: np.ndarray, labels: np.ndarray) -> float:
    """The same network in NumPy and float64."""
    h = x @ parameters["w1"] + parameters["b1"]
    logits = 0.5 * (h + np.sqrt(h * h + 2.0)) @ parameters["w2"]
    log_sum = np.log(np.exp(logits).sum(axis=1))
    return float(np.mean(log_sum - logits[np.arange(len(labels)), labels]))


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_an_operator_of_another_domain(squareplus: Path, compiler: str) -> None:
    proto = network("Squareplus", "my.company")
    proto.graph.node[1].attribute.append(onnx.helper.make_attribute("b", 2.0))
    compiled = tg.compile(proto, tg.Recipe(batch=3), target="host")
    assert compiled.project.files["kernels/squareplus.h"].decode() == SQUAREPLUS_H
    random = np.random.default_rng(0)
    x, labels = random.standard_normal((3, 6)).astype(np.float32), random.integers(0, 4, 3)
    with opened(compiled, toolchain(compiler, CONTRACT_FLAGS)) as session:
        parameters = {name: array.astype(np.float64) for name, array in session.parameters().items()}
        assert session.step(x, labels) == pytest.approx(loss_of(parameters, x, labels), rel=1e-6)
        for name, gradient in session.gradients().items():
            for index in np.ndindex(gradient.shape):
                ends = []
                for step in (1e-5, -1e-5):
                    moved = {**parameters, name: parameters[name].copy()}
                    moved[name][index] += step
                    ends.append(loss_of(moved, x, labels))
                assert gradient[index] == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-3, abs=1e-6)
        session.update()


def test_no_reference_can_execute_it_and_says_so(squareplus: Path) -> None:
    compiled = tg.compile(network("Squareplus", "my.company"), tg.Recipe(), target="host")
    with HostDevice() as device, pytest.raises(UserError, match=r"no reference can execute my\.company\.Squareplus"):
        training.train(compiled, device, steps=1)


# ---- mistakes


def test_a_c_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        tg.register(Softsign, tmp_path / "none.c")
    assert str(caught.value) == (
        "the kernels of operator Softsign cannot be used\n  got: No such file or directory"
    )
    assert registry.find("Softsign") is None


def test_a_kernel_with_another_signature(tmp_path: Path) -> None:
    path = tmp_path / "bad.c"
    path.write_text("TG_KERNEL void tg_bad(TG_MEM const float *x, TG_MEM float *y, int n)\n{\n}\n")
    with pytest.raises(UserError) as caught:
        tg.register(Softsign, path)
    assert str(caught.value) == (
        "the kernels of operator Softsign cannot be used\n"
        "  got: bad.c: tg_bad does not end with TG_ARG struct, core_id, core_count"
    )


def test_an_incomplete_operator_cannot_be_registered(kernels: Path) -> None:
    class Half(tg.Operator):
        name = "Half"

    with pytest.raises(TypeError, match="abstract"):
        tg.register(Half, kernels)  # type: ignore[type-abstract]


def test_a_file_or_kernel_with_a_name_of_ours(tmp_path: Path) -> None:
    """Found when a model uses both, not linked by chance."""
    for file, text, what in (
        ("gemm.c", SOFTSIGN_C, "two C files called 'gemm.c'"),
        ("mine.c", SOFTSIGN_C.replace("tg_softsign_grad", "tg_gemm_nn"), "two kernels called 'tg_gemm_nn'"),
    ):
        path = tmp_path / file
        path.write_text(text)
        for operator in OPERATORS:
            tg.register(operator, path)
        with pytest.raises(UserError, match=what):
            tg.compile(network(), tg.Recipe(), target="host")


class Broken:
    """No Operator."""

    name = "Broken"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ((Broken, "x.c"), "Broken is no Operator"),
        (Softsign, "cannot unpack non-iterable ABCMeta object"),
        ((Softsign, None), "expected str, bytes or os.PathLike object, not NoneType"),
    ],
)
def test_a_package_that_is_broken_is_named(content: Any, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, content)
    with pytest.raises(UserError) as caught:
        tg.load("simplemlp")
    assert caught.value.message == "the operator package 'package:0' cannot be used"
    assert caught.value.got is not None and reason in caught.value.got
