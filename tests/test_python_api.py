"""What a person at a Python prompt sees: names, and objects in one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tilegrad as tg
from tilegrad.training.train import train


def test_dir_shows_the_api_and_every_name_is_there() -> None:
    shown = dir(tg)
    assert set(tg.__all__) <= set(shown)
    assert all(hasattr(tg, name) for name in shown)


def test_dir_imports_nothing_heavy() -> None:
    program = "import sys, tilegrad; dir(tilegrad); sys.exit('onnx' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "tilegrad", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"tilegrad {tg.__version__}"


@pytest.mark.parametrize("target", ["host", "siracusa"])
def test_objects_are_one_line_of_what_matters(target: str) -> None:
    program = tg.compile("autoencoder_tiny", target=target)
    with tg.open_device("host" if target == "host" else "sim:siracusa") as device:
        run = train(program, device, steps=2, verify=False, keep_gradients=False)
    objects = [
        (program, ("'autoencoder_tiny'", target, "infer, step, update", "29,120 of 29,120", "KiB", "lines of C")),
        (program.model, ("'autoencoder_tiny'", "zoo", "f32[1,128]", "batch 1", "29,120 parameters")),
        (program.program, ("'autoencoder_tiny'", "loss mse", "step")),
        (program.plan, ("'autoencoder_tiny'", target, "KiB")),
        (program.plan.schedule, ("'autoencoder_tiny'", target, "launches")),
        (program.plan.entries["step"], ("buffers",)),
        (program.program.entries["step"], ("'step'", "nodes")),
        (program.model.graph, ("'autoencoder_tiny'", "nodes")),
        (program.project, ("lines of C",)),
        (run, ("'autoencoder_tiny'", "2 updates", "loss", "not verified")),
    ]
    for made, words in objects:
        text = repr(made)
        assert len(text) < 300 and "\n" not in text, text
        assert all(word in text for word in words), text


def test_a_torch_module_is_called_after_its_class() -> None:
    torch = pytest.importorskip("torch")

    class Ünïque_Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 3)

        def forward(self, x: object) -> object:
            return self.fc(x)

    for batch in (1, 4):  # another batch imports the exported graph again, which PyTorch calls "main_graph"
        program = tg.compile(tg.load(Ünïque_Net(), example=torch.zeros(1, 4)), tg.Recipe(batch=batch))
        assert program.name == program.model.name == program.model.graph.name == "n_que_Net"
        assert b"main_graph" not in b"".join(program.project.files.values())
        assert program.project.files["README.md"].startswith(b"# n_que_Net: ")
    plain = tg.load(torch.nn.Sequential(torch.nn.Linear(4, 3)), example=torch.zeros(1, 4))
    assert plain.name == "Sequential"
