"""Epochs: the order of samples, what is held out, measures, early stopping; real digits are learnt."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import tilegrad as tg
from tests.support.command_line import CommandLine
from tilegrad import random
from tilegrad.errors import UserError
from tilegrad.ops.kernels import RUNTIME_FOLDER
from tilegrad.training.train import train

PROGRAM = """
#include <stdio.h>
#include "tg_random.h"
int main(void)
{
    static const unsigned counts[] = {1, 2, 3, 7, 16, 100, 1797};
    for (int k = 0; k < 7; k++)
        for (unsigned epoch = 0; epoch < 3; epoch++)
            for (unsigned i = 0; i < counts[k]; i++)
                printf("%u\\n", tg_shuffled(5u, epoch, i, counts[k]));
    return 0;
}
"""


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scikit-learn's, 1,797 samples of 64 pixels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    path = tmp_path_factory.mktemp("digits") / "digits.npz"
    np.savez(path, x=(found.data / 16).astype(np.float32), y=found.target.astype(np.int64))
    return path


def test_the_order_is_a_permutation_and_the_same_in_c(tmp_path: Path) -> None:
    (tmp_path / "order.c").write_text(PROGRAM)
    command = ["gcc", "-O1", f"-I{RUNTIME_FOLDER}", str(tmp_path / "order.c"), "-o", str(tmp_path / "order")]
    subprocess.run(command, check=True)
    got = [int(line) for line in subprocess.check_output([str(tmp_path / "order")], text=True).split()]
    wanted = [random.order(5, epoch, count) for count in (1, 2, 3, 7, 16, 100, 1797) for epoch in range(3)]
    assert got == np.concatenate(wanted).tolist()
    assert all(sorted(order) == list(range(len(order))) for order in wanted)
    assert len({random.order(5, epoch, 100).tobytes() for epoch in range(20)}) == 20
    assert random.order(6, 0, 100).tobytes() != random.order(5, 0, 100).tobytes()


def test_positions_are_spread_evenly() -> None:
    """Where sample 0 ends up over many epochs: a chi-squared test that a bad mixture fails by far."""
    places = [int(np.flatnonzero(random.order(1, epoch, 12) == 0)[0]) for epoch in range(1200)]
    counts = np.bincount(places, minlength=12)
    assert float(np.sum((counts - 100) ** 2 / 100)) < 40


def test_digits_are_learnt(digits: Path) -> None:
    """96 % of samples never trained on, with a hidden layer of 64."""
    recipe = tg.Recipe(optimizer=tg.Momentum(lr=0.02), batch=16, rate=tg.Rate("cosine", updates=890))
    with tg.open_device("host") as device:
        run = train(tg.compile(_hidden(64), recipe), device, data=digits, epochs=10, validation=0.2, top_k=(3,))
    assert run.verdict is not None and run.verdict.verified and "the first 200 of" in run.verdict.coverage
    learning = run.learning
    assert learning is not None and learning.is_held_out and learning.before.accuracy is not None
    assert learning.before.accuracy < 0.3 and learning.after.accuracy is not None
    assert learning.after.accuracy >= 0.96 and learning.after.top[3] >= 0.98
    assert [epoch.number for epoch in learning.epochs] == list(range(1, 11))
    assert learning.epochs[-1].measures == learning.after


def _hidden(width: int) -> object:
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))
    return tg.load(module, example=torch.zeros(1, 64), batch=16)


def test_every_sample_is_used_and_what_is_left_is_said(digits: Path) -> None:
    with tg.open_device("host") as device:
        run = train(
            tg.compile("simplemlp", tg.Recipe(batch=50)), device, data=digits, epochs=2, validation=0.25, verify=False
        )
    assert run.steps == 2 * 1348 // 50
    assert run.notes == (
        "449 of 1,797 samples are held out for validation",
        "46 samples of the last epoch are left over: they do not fill an update of 50",
    )


def test_measures_do_not_depend_on_the_batch(digits: Path, tilegrad: CommandLine) -> None:
    asked = ("evaluate", "simplemlp", "--data", digits, "--top-k", 2, "--json", "-")
    found = [tilegrad(*asked, "--batch", batch).json for batch in (1, 7, 600)]
    assert {document["accuracy"] for document in found} == {found[0]["accuracy"]}
    for document in found[1:]:
        assert document["loss"] == pytest.approx(found[0]["loss"], rel=1e-6)
        assert document["samples"] == 1797 and document["top"] == found[0]["top"]


def test_patience_keeps_the_best(digits: Path) -> None:
    """A learning rate that is too large: what was best comes early."""
    recipe = tg.Recipe(optimizer=tg.SGD(lr=3.0), batch=8, seed=1)
    with tg.open_device("host") as device:
        run = train(
            tg.compile("simplemlp", recipe), device, data=digits, epochs=12, validation=0.2, patience=2, verify=False
        )
    learning = run.learning
    assert learning is not None and learning.stopped and len(learning.epochs) < 12
    best = max(epoch.measures.accuracy or 0.0 for epoch in learning.epochs)
    assert learning.after.accuracy == best
    assert learning.kept == learning.epochs[-3].number


def test_mean_error_where_there_are_no_classes(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=draw.standard_normal((20, 128)).astype(np.float32))
    with tg.open_device("host") as device:
        run = train(
            tg.compile("autoencoder_tiny", tg.Recipe(batch=3)), device, data=tmp_path / "d.npz", epochs=1, verify=False
        )
    assert run.learning is not None and run.learning.after.accuracy is None
    assert run.learning.after.mean_error is not None and not run.learning.is_held_out


def test_a_folder_of_arrays_or_of_parts(digits: Path, tmp_path: Path, tilegrad: CommandLine) -> None:
    arrays = np.load(digits)
    (tmp_path / "arrays").mkdir()
    (tmp_path / "parts").mkdir()
    for name in ("x", "y"):
        np.save(tmp_path / "arrays" / f"{name}.npy", arrays[name])
    np.savez(tmp_path / "parts" / "0.npz", x=arrays["x"][:900], y=arrays["y"][:900])
    np.savez(tmp_path / "parts" / "1.npz", x=arrays["x"][900:], y=arrays["y"][900:])
    wanted = tilegrad("evaluate", "simplemlp", "--data", str(digits), "--batch", "60", "--json", "-").json["loss"]
    for folder in ("arrays", "parts"):
        found = tilegrad("evaluate", "simplemlp", "--data", str(tmp_path / folder), "--batch", "60", "--json", "-").json
        assert found["loss"] == wanted and found["samples"] == 1797
    (tmp_path / "empty").mkdir()
    refused = tilegrad("evaluate", "simplemlp", "--data", str(tmp_path / "empty"))
    assert refused.status == 2 and "NAME.npy" in refused.err


@pytest.mark.parametrize("share", ["0.0001", "0.9999", "0", "1", "-0.5", "nan"])
def test_a_share_that_leaves_no_sample(digits: Path, share: str, tilegrad: CommandLine) -> None:
    arguments = ("--device", "host", "--data", str(digits), "--epochs", "1", "--validation", share)
    refused = tilegrad("train", "simplemlp", *arguments)
    assert refused.status == 2 and "share of validation samples" in refused.err


def test_runs_that_cannot_be(digits: Path) -> None:
    compiled = tg.compile("simplemlp")
    with tg.open_device("host") as device:
        with pytest.raises(UserError, match="told how long it is twice"):
            train(compiled, device, data=digits, steps=3, epochs=1)
        with pytest.raises(UserError, match="epochs are of samples that are stored"):
            train(compiled, device, epochs=1)
        with pytest.raises(UserError, match="early stopping is for runs over epochs"):
            train(compiled, device, data=digits, patience=1)
        large = tg.compile("simplemlp", tg.Recipe(batch=2000))
        with pytest.raises(UserError, match="do not fill one update"):
            train(large, device, data=digits, epochs=1)
