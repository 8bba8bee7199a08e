"""The C of a tiny model, line by line: a change of the generated text is seen and meant, never an accident.

The golden text itself is what is compiled and run against PyTorch: a golden that nobody runs may be wrong for years.
`pytest tests/codegen/test_golden.py --update-golden` writes it anew; read the difference before you commit it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilegrad as tg
from tests.support.models import model, node, value, weights
from tests.support.projects import CONTRACT_FLAGS, toolchain
from tilegrad.build.folder import write_files
from tilegrad.build.toolchain import build
from tilegrad.compiled import Compiled
from tilegrad.devices.process import ProcessSession

FOLDER = Path(__file__).parent / "golden" / "tiny"
WRITTEN = ("model.c", "model.h", "ports.h", "kernels.h", "Makefile", "README.md", "manifest.json")
"""What is generated for a model; kernels and weights are not."""

RECIPE = tg.Recipe(optimizer=tg.Momentum(lr=0.1), batch=2, accumulate=2)
INITIAL = {"w1": weights(4, 5, seed=1), "b1": weights(5, seed=2), "w2": weights(5, 3, seed=3)}


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    proto = model(
        [
            node("Gemm", "x w1 b1", "hidden", "/fc1/Gemm"),
            node("Relu", "hidden", "active", "/relu/Relu"),
            node("MatMul", "active w2", "logits", "/fc2/MatMul"),
        ],
        [value("x", ["batch", 4])],
        [value("logits", ["batch", 3])],
        INITIAL,
    )
    return tg.compile(proto, RECIPE, target="mcu")


def test_the_text_is_the_golden_one(compiled: Compiled, request: pytest.FixtureRequest) -> None:
    files = {name: compiled.project.files[name] for name in WRITTEN}
    if request.config.getoption("--update-golden"):
        FOLDER.mkdir(parents=True, exist_ok=True)
        write_files(FOLDER, files)
    golden = {path.name: path.read_text() for path in sorted(FOLDER.glob("*"))}
    assert golden == {name: content.decode() for name, content in sorted(files.items())}, (
        "the generated C has changed; if it was meant to, run pytest with --update-golden and read the difference"
    )


def test_the_golden_c_trains_as_pytorch_does(compiled: Compiled, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    golden = {path.name: path.read_bytes() for path in FOLDER.glob("*")}
    files = {**compiled.project.files, **golden}
    write_files(tmp_path, files)
    program = build(toolchain("gcc", CONTRACT_FLAGS), tmp_path, files, "harness")
    parameters = {name: torch.tensor(array, dtype=torch.float64, requires_grad=True) for name, array in INITIAL.items()}
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1, momentum=0.9)
    random = np.random.default_rng(0)
    with ProcessSession(compiled, [str(program), "weights.bin"], tmp_path) as session:
        for mini_batch in range(6):
            x, y = random.standard_normal((2, 4)).astype(np.float32), random.integers(0, 3, 2)
            hidden = torch.relu(torch.tensor(x).double() @ parameters["w1"] + parameters["b1"])
            loss = torch.nn.functional.cross_entropy(hidden @ parameters["w2"], torch.tensor(y))
            assert session.step(x, y) == pytest.approx(loss.item(), rel=1e-5)
            (loss / 2).backward()
            for name, gradient in session.gradients().items():
                np.testing.assert_allclose(gradient, parameters[name].grad, rtol=1e-4, atol=1e-6)
            if mini_batch % 2:
                optimizer.step()
                optimizer.zero_grad()
                session.update()
        for name, array in session.parameters().items():
            np.testing.assert_allclose(array, parameters[name].detach(), rtol=1e-4, atol=1e-6)
