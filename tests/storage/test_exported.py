"""What a device saved, taken home: the files that `train --save` writes, bit for bit, in every format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilegrad as tg
from tests.training.test_kept import EXAMPLE, module
from tilegrad.cli import main
from tilegrad.files.tensor_files import read_tensors
from tilegrad.training.checkpoint import read_checkpoint
from tilegrad.training.restored import recipe_of
from tilegrad.training.train import Run, train

FORMATS = ("safetensors", "npz", "onnx")
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "adapters, scheduled": (
        "simplemlp",
        {"train": "lora:2:4+bias", "optimizer": tg.Adam(), "rate": tg.Rate("cosine", updates=3)},
    ),
    "the last layer": ("simplemlp", {"train": "last:1", "optimizer": tg.Momentum(nesterov=True), "clip": 1.0}),
    "statistics": ("module", {"batchnorm": "train", "batch": 4, "loss": "cross_entropy:smoothing=0.1"}),
    "folded": ("module", {"batchnorm": "fold", "batch": 4}),
}


def kept(case: str, folder: Path, **changes: Any) -> tuple[Run, Path]:
    """A run, and its checkpoint."""
    source, options = CASES[case]
    recipe = tg.Recipe(**{**options, **changes})
    model = tg.load(module(), example=EXAMPLE, batch=4) if source == "module" else source
    path = folder / "c.bin"
    with tg.open_device("host") as device:
        run = train(tg.compile(model, recipe), device, steps=3, verify=False, keeping=tg.Keeping(checkpoint=path))
    return run, path


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_a_run_would_have_saved(tmp_path: Path, case: str) -> None:
    run, path = kept(case, tmp_path)
    wanted = replace(run.compiled.program.recipe, loss=str(run.compiled.program.loss))
    assert recipe_of(read_checkpoint(path), path) == wanted
    for merges in (True, False):
        for ending in FORMATS:
            if ending == "onnx" and not merges and case == "folded":
                continue
            run.save(tmp_path / f"a.{ending}", merges=merges)
            tg.export_checkpoint(path, run.compiled, tmp_path / f"b.{ending}", merges=merges)
            assert (tmp_path / f"b.{ending}").read_bytes() == (tmp_path / f"a.{ending}").read_bytes()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, path = kept("adapters, scheduled", tmp_path)
    for ending in FORMATS:
        out = tmp_path / f"b.{ending}"
        assert main(["checkpoint", "export", str(path), "--model", "simplemlp", "-o", str(out)]) == 0
        run.save(tmp_path / f"a.{ending}")
        assert out.read_bytes() == (tmp_path / f"a.{ending}").read_bytes()
    assert main(["checkpoint", "export", str(path), "-o", str(tmp_path / "own.safetensors")]) == 0
    own = read_tensors(tmp_path / "own.safetensors")
    assert set(own) == set(run.weights) and all(np.array_equal(own[name], run.weights[name]) for name in own)
    assert "fc1.weight.lora_A" in own


def test_what_does_not_fit_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, path = kept("the last layer", tmp_path)
    tg.train(tg.compile("simplemlp"), tg.open_device("host"), steps=1, verify=False).save(tmp_path / "other.npz")
    for words, arguments in (
        ("needs the model", ["-o", "b.onnx"]),
        ("is of another model", ["-o", "b.onnx", "--model", "mlp"]),
        ("beside other frozen weights", ["-o", "b.onnx", "--model", "simplemlp", "--weights", "other.npz"]),
        ("does not know the format", ["-o", "b.pt"]),
        ("only a whole model", ["-o", "b.npz", "--keep-adapters"]),
        ("--all is for the tensors", ["-o", "b.npz", "--all", "--model", "simplemlp"]),
        ("there is nowhere to write", []),
    ):
        at = [str(tmp_path / word) if word.endswith((".npz", ".onnx", ".pt")) else word for word in arguments]
        assert main(["checkpoint", "export", str(path), *at]) == 2
        assert words in " ".join(capsys.readouterr().err.split())
        assert not list(tmp_path.glob("b.*"))
