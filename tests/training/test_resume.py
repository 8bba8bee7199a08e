"""A run that is resumed from a checkpoint ends with the bits of one that was not interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilegrad as tg
from tilegrad.cli import main
from tilegrad.codegen.saved import saved
from tilegrad.data.samples import make_batches
from tilegrad.ir.program import RESET_FLAG
from tilegrad.training.checkpoint import CheckpointFile, read_checkpoint
from tilegrad.training.train import Run, train

RECIPES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum, accumulated": {"optimizer": tg.Momentum(lr=0.02), "accumulate": 2},
    "nesterov": {"optimizer": tg.Momentum(lr=0.02, nesterov=True)},
    "adam": {"optimizer": tg.Adam()},
    "adamw, clipped": {"optimizer": tg.AdamW(), "clip": 0.5},
    "rmsprop": {"optimizer": tg.RMSprop(lr=0.001)},
    "a schedule": {"optimizer": tg.Adam(), "rate": tg.Rate("cosine", updates=6, warmup=2)},
    "some train": {"train": "last:1"},
}
STEPS = 6


def ran(name: str, recipe: tg.Recipe, device: str = "host", *, steps: int = STEPS, **options: Any) -> Run:
    options = {"verify": False, "keep_gradients": False, **options}
    target = {"host": "host", "sim:siracusa": "siracusa"}[device]
    with tg.open_device(device) as opened:
        return train(tg.compile(name, recipe, target=target), opened, steps=steps, **options)


@pytest.mark.parametrize("kind", RECIPES)
def test_the_bits_are_those_of_an_uninterrupted_run(tmp_path: Path, kind: str) -> None:
    recipe = tg.Recipe(**RECIPES[kind])
    whole = ran("simplemlp", recipe)
    path = tmp_path / "c.bin"
    # Three of six updates, and the file of the third, as a power cut would leave it.
    ran("simplemlp", recipe, steps=3, keeping=tg.Keeping(checkpoint=path, every=1))
    resumed = ran("simplemlp", recipe, keeping=tg.Keeping(resume=path), verify=True)
    assert resumed.weights_sha256 == whole.weights_sha256
    assert resumed.losses == whole.losses[3 * recipe.accumulate :]
    assert resumed.resumed_at == 3 * recipe.accumulate
    assert resumed.verdict is not None and resumed.verdict.verified


@pytest.mark.parametrize(("saves", "resumes"), [("host", "sim:siracusa"), ("sim:siracusa", "host")])
def test_another_device_goes_on(tmp_path: Path, saves: str, resumes: str) -> None:
    recipe = tg.Recipe(optimizer=tg.Momentum(lr=0.02))
    path = tmp_path / "c.bin"
    ran("simplemlp", recipe, saves, steps=2, keeping=tg.Keeping(checkpoint=path))
    resumed = ran("simplemlp", recipe, resumes, keeping=tg.Keeping(resume=path))
    assert resumed.weights_sha256 == ran("simplemlp", recipe).weights_sha256
    assert read_checkpoint(path).target == {"host": "host", "sim:siracusa": "siracusa"}[saves]


def test_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    """Shuffled samples: the order is a function of the seed, the epoch and the place in it."""
    draw = np.random.default_rng(1)
    data = tmp_path / "d.npz"
    np.savez(data, x=draw.standard_normal((20, 64)).astype(np.float32), y=draw.integers(0, 10, 20))
    recipe = tg.Recipe(optimizer=tg.Adam(), batch=3)
    path = tmp_path / "c.bin"
    arguments = {"data": data, "shuffle": True}
    whole = ran("simplemlp", recipe, steps=None, epochs=3, **arguments)  # type: ignore[arg-type]
    ran("simplemlp", recipe, steps=10, keeping=tg.Keeping(checkpoint=path), **arguments)  # in the second epoch
    keeping = tg.Keeping(resume=path)
    resumed = ran("simplemlp", recipe, steps=None, epochs=3, keeping=keeping, **arguments)  # type: ignore[arg-type]
    assert resumed.weights_sha256 == whole.weights_sha256
    assert resumed.losses == whole.losses[10:]


@pytest.mark.parametrize("name", ["resnet8", "dscnn"])
def test_statistics_that_train_are_part_of_it(tmp_path: Path, name: str) -> None:
    recipe = tg.Recipe(batchnorm="train", batch=2)
    path = tmp_path / "c.bin"
    whole = ran(name, recipe, steps=3)
    ran(name, recipe, steps=1, keeping=tg.Keeping(checkpoint=path))
    resumed = ran(name, recipe, steps=3, keeping=tg.Keeping(resume=path))
    assert resumed.weights_sha256 == whole.weights_sha256
    assert all(np.array_equal(resumed.statistics[name], value) for name, value in whole.statistics.items())


def test_in_the_middle_of_an_update(tmp_path: Path) -> None:
    """Between two mini-batches of one update: the gradients so far are in the checkpoint."""
    recipe = tg.Recipe(optimizer=tg.Adam(), accumulate=3)
    compiled = tg.compile("simplemlp", recipe)
    batches = make_batches(compiled, None).first(18)
    path = tmp_path / "c.bin"
    with tg.open_device("host") as device:
        session = device.load(compiled)
        for i in range(5):
            session.step(*batches[i])
            if i == 2:
                session.update()
        kinds = saved(compiled.program)
        names = [*(tensor.name for tensor in (*kinds.always, *kinds.gradients)), RESET_FLAG]
        CheckpointFile(path, compiled.program, "host").save({name: session.read(name) for name in names}, 5, 1)
    assert read_checkpoint(path).is_accumulating
    resumed = ran("simplemlp", recipe, keeping=tg.Keeping(resume=path), verify=True)
    assert resumed.weights_sha256 == ran("simplemlp", recipe).weights_sha256
    assert resumed.verdict is not None and resumed.verdict.verified


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "c.bin")
    begun = ["train", "simplemlp", "--device", "host", "--no-verify", "--optimizer", "adam"]
    assert main([*begun, "--steps", "2", "--checkpoint", path, "--checkpoint-every", "1", "--json", "-"]) == 0
    facts = json.loads(capsys.readouterr().out)["checkpoint"]
    assert facts["saves"] == 2 and facts["erases_per_save"] == 3 and facts["erases_per_1000_updates"] == 3000.0
    assert main([*begun, "--steps", "5", "--resume", path, "--json", "-"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    assert main([*begun, "--steps", "5", "--json", "-"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert resumed["weights_sha256"] == whole["weights_sha256"] and resumed["resumed_at"] == 2
    for wrong, message in [
        (["--steps", "2", "--resume", path], "is at the end of the training already"),
        (["--steps", "5", "--resume", path, "--lr", "0.3"], "was trained under another recipe"),
        (["--steps", "5", "--resume", path, "--optimizer", "sgd"], "is of another model"),
        (["--steps", "5", "--resume", path + ".none"], "no checkpoint"),
        (["--checkpoint-every", "2"], "nowhere to write checkpoints"),
        (["--checkpoint", path, "--checkpoint-every", "0"], "between checkpoints"),
        (["--resume", path, "--device", "null"], "neither takes a checkpoint nor gives one"),
    ]:
        assert main([*begun, *wrong]) == 2, wrong
        assert message in capsys.readouterr().err, wrong
