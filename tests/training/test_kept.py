"""What is kept: every format gives back every bit, ONNX Runtime runs it, and PyTorch takes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import tilegrad as tg
from tests.support.command_line import CommandLine
from tests.training.test_adapters import by_onnxruntime
from tilegrad.files.tensor_files import read_tensors
from tilegrad.training.train import Run, train


def module() -> nn.Module:
    torch.manual_seed(1)
    layers = (nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4 * 9, 3))
    return nn.Sequential(*layers).eval()


EXAMPLE = torch.randn(4, 2, 5, 5, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def run() -> Run:
    model = tg.load(module(), example=EXAMPLE, batch=4)
    recipe = tg.Recipe(batchnorm="train", optimizer=tg.SGD(lr=0.1), batch=4)
    with tg.open_device("host") as device:
        return train(tg.compile(model, recipe), device, steps=3)


def test_a_round_trip_through_pytorch_changes_no_bit(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "a.safetensors")
    other = module()
    state = {name: torch.tensor(array) for name, array in read_tensors(tmp_path / "a.safetensors").items()}
    other.load_state_dict(state)  # strict: every name of it
    assert int(other[1].num_batches_tracked) == 3 and not torch.equal(other[1].running_mean, torch.zeros(4))
    from safetensors.torch import save_file

    save_file(other.state_dict(), tmp_path / "b.safetensors")
    model = tg.load(module(), example=EXAMPLE, batch=4, weights=tmp_path / "b.safetensors")
    assert {name: model.graph.constants[name].array.tobytes() for name in run.learned} == {
        name: np.ascontiguousarray(array).tobytes() for name, array in run.learned.items()
    }


def test_the_onnx_model_runs_elsewhere(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "a.onnx")
    kept = onnx.load(tmp_path / "a.onnx")
    onnx.checker.check_model(kept)
    assert not kept.graph.input[0].type.tensor_type.shape.dim[0].HasField("dim_value")
    other = module()
    other.load_state_dict({name: torch.tensor(array) for name, array in run.state_dict().items()})
    with torch.no_grad():
        wanted = other(EXAMPLE).numpy()
    np.testing.assert_allclose(by_onnxruntime(tmp_path / "a.onnx", EXAMPLE.numpy()), wanted, rtol=1e-5, atol=1e-6)


def test_a_run_goes_on_from_what_was_kept(tilegrad: CommandLine, tmp_path: Path) -> None:
    """Weights of a file are where training begins, for every format, and references begin there as well."""
    for suffix in ("safetensors", "npz", "onnx"):
        path = tmp_path / f"kept.{suffix}"
        first = tilegrad("train", "simplemlp", "--device", "host", "--steps", 2, "--save", path, "--json", "-").json
        again = tilegrad("train", "simplemlp", "--device", "host", "--steps", 1, "--weights", path, "--json", "-").json
        assert again["verified"] and again["losses"][0] != first["losses"][0]
    kept = [read_tensors(tmp_path / f"kept.{suffix}") for suffix in ("safetensors", "npz")]
    assert {name: array.tobytes() for name, array in kept[0].items()} == {
        name: array.tobytes() for name, array in kept[1].items()
    }
    model = tg.load("simplemlp", weights=kept[0])
    assert all(model.graph.constants[name].array.tobytes() == array.tobytes() for name, array in kept[0].items())


@pytest.mark.parametrize("policy", ["frozen", "train", "fold"])
def test_batch_normalisation_of_the_zoo(policy: str, tilegrad: CommandLine, tmp_path: Path) -> None:
    """What ONNX Runtime gives is what the device's inference entry gives."""
    recipe = tg.Recipe(batch=2, batchnorm=policy)  # type: ignore[arg-type]
    compiled = tg.compile("autoencoder", recipe)
    x = np.random.default_rng(0).standard_normal((2, 640)).astype(np.float32)
    with tg.open_device("host") as device:
        run = train(compiled, device, steps=2, verify=False)
        run.save(tmp_path / "m.onnx")
        with device.load(compiled) as session:
            session.set_parameters(run.learned)
            wanted = session.infer(x)
    found = by_onnxruntime(tmp_path / "m.onnx", x)
    assert np.linalg.norm(found - wanted) <= 1e-5 * np.linalg.norm(wanted)


def test_files_that_do_not_fit(tilegrad: CommandLine, tmp_path: Path) -> None:
    def train_with(path: Path) -> str:
        answer = tilegrad("train", "simplemlp", "--device", "host", "--steps", 1, "--weights", path)
        assert answer.status == 2
        return answer.err

    np.savez(tmp_path / "shape.npz", **{"fc1.weight": np.zeros((8, 63), np.float32)})
    assert "float32 [8, 64]" in train_with(tmp_path / "shape.npz")
    np.savez(tmp_path / "names.npz", **{"fc1.wieght": np.zeros((8, 64), np.float32)})
    assert "near names: fc1.weight" in train_with(tmp_path / "names.npz")
    np.savez(tmp_path / "nan.npz", **{"fc1.bias": np.full(8, np.nan, np.float32)})
    assert "holds NaN" in train_with(tmp_path / "nan.npz")
    for suffix in ("npz", "safetensors", "onnx"):
        (tmp_path / f"junk.{suffix}").write_bytes(b"junk that is no file of this kind")
        assert "junk" in train_with(tmp_path / f"junk.{suffix}")
    assert "no file" in train_with(tmp_path / "absent.npz")
    assert "F.safetensors" in train_with(tmp_path / "weights.bin")
    answer = tilegrad("train", "simplemlp", "--device", "host", "--save", tmp_path / "model.pt")
    assert answer.status == 2 and not (tmp_path / "model.pt").exists()
