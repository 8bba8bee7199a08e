"""What Python passes wrongly is a UserError at once, with what is allowed; and a type checker finds it before."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilegrad as tg
from tests.support.models import mlp
from tilegrad.errors import UserError
from tilegrad.losses import LOSSES
from tilegrad.recipe import OPTIMIZERS
from tilegrad.training import train as training

WHOLE = "a whole number, 1 or more"


SELECTED = (
    "all, last:K, bias, norm, names:GLOB,…, sparse:FILE, sparse:BUDGET or lora:R[:ALPHA][:GLOB,…], several with +"
)


@pytest.mark.parametrize(
    ("options", "expected", "got"),
    [
        ({"batch": "four"}, WHOLE, "four"),
        ({"batch": 2.5}, WHOLE, "2.5"),
        ({"batch": 4.0}, WHOLE, "4.0"),
        ({"batch": True}, WHOLE, "True (bool)"),
        ({"batch": None}, WHOLE, "None (NoneType)"),
        ({"accumulate": "2"}, WHOLE, "2"),
        ({"accumulate": 1.5}, WHOLE, "1.5"),
        ({"seed": 0.5}, "a whole number, 0 to 4294967295", "0.5"),
        ({"loss": "mee"}, " or ".join(sorted(LOSSES)), "mee"),
        ({"loss": 3}, " or ".join(sorted(LOSSES)), "3"),
        ({"accum_mode": None}, "mean or sum", "None (NoneType)"),
        ({"batchnorm": True}, "frozen or train or fold", "True (bool)"),
        ({"train": 5}, SELECTED, "5"),
        (
            {"train": ["w"]},
            SELECTED,
            "['w'] (list)",
        ),
    ],
)
def test_recipes(options: dict[str, Any], expected: str, got: str) -> None:
    with pytest.raises(UserError) as caught:
        tg.Recipe(**options)
    assert (caught.value.expected, caught.value.got) == (expected, got)


@pytest.mark.parametrize("value", ["sgd", tg.SGD, None, 0.01])
def test_optimizers_that_are_none(value: Any) -> None:
    with pytest.raises(UserError) as caught:
        tg.Recipe(optimizer=value)
    assert caught.value.expected is not None and "tg.RMSprop(lr=…) or tg.SGD(lr=…)" in caught.value.expected
    if value in ("sgd", tg.SGD):
        assert caught.value.hint == "optimizer=tg.SGD(lr=0.01)"


@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
def test_every_number_of_every_optimizer(kind: str) -> None:
    optimizer = OPTIMIZERS[kind]
    for name in ("lr", *optimizer().attributes):
        for wrong in ("0.1", None, True, -0.1, float("nan"), float("inf"), 1e39, [0.1]):
            with pytest.raises(UserError, match="cannot be used"):
                optimizer(**{name: wrong})
        if name.startswith("beta") or name == "momentum":
            with pytest.raises(UserError) as caught:
                optimizer(**{name: 1.0})
            assert caught.value.expected == "0 or more, less than 1"
        if name == "epsilon":
            with pytest.raises(UserError) as caught:
                optimizer(**{name: 0.0})
            assert caught.value.expected == "more than 0"


def test_numbers_of_numpy_are_numbers() -> None:
    recipe = tg.Recipe(batch=np.int64(2), optimizer=tg.SGD(lr=np.float32(0.5)), seed=np.uint32(3))  # type: ignore[arg-type]
    assert tg.compile("simplemlp", recipe).program.recipe.batch == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tg.compile("simplemlp", {"batch": 1}), "the recipe cannot be used"),  # type: ignore[arg-type]
        (lambda: tg.compile("simplemlp", tg.Recipe), "the recipe cannot be used"),  # type: ignore[arg-type]
        (lambda: tg.compile("simplemlp", target=None), "the target cannot be used"),  # type: ignore[arg-type]
        (lambda: tg.compile("simplemlp", target="hots"), "there is no target 'hots'"),
        (lambda: tg.compile(5), "cannot load a model from this"),
        (lambda: tg.load("simplemlp", batch="four"), "the batch size cannot be used"),  # type: ignore[arg-type]
        (lambda: tg.load("simplemlp", batch=2.5), "the batch size cannot be used"),  # type: ignore[arg-type]
        (lambda: tg.load("simplemlp", seed="x"), "the seed cannot be used"),  # type: ignore[arg-type]
        (lambda: tg.load(None), "cannot load a model from this"),
        (lambda: tg.open_device(5), "there is no device '5'"),  # type: ignore[arg-type]
        (lambda: tg.open_device("hots"), "there is no device 'hots'"),
        (lambda: tg.Residency(inputs="here"), "inputs cannot be placed there"),  # type: ignore[arg-type]
    ],
)
def test_calls(call: Any, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        call()


def test_what_a_session_is_given() -> None:
    x = np.zeros((1, 8), np.float32)
    with tg.open_device("host") as device, device.load(tg.compile(mlp())) as session:
        assert np.isfinite(session.step(x, [3]))
        for labels in ([3.0], np.array([1.5]), np.array(["a"]), [None]):
            with pytest.raises(UserError, match="input 'labels' of step has a wrong element type") as caught:
                session.step(x, labels)
            assert caught.value.expected == "i64"
        for labels in ([4], [-1]):
            with pytest.raises(UserError, match="a label is outside the classes"):
                session.step(x, labels)
        for wrong in (x[0], np.zeros((2, 8)), 3.0):
            with pytest.raises(UserError, match="input 'x' of step has a wrong shape"):
                session.step(wrong, [3])
        with pytest.raises(UserError, match="input 'x' of step has a wrong element type"):
            session.step(x.astype(np.complex64), [3])
        with pytest.raises(UserError, match="the number of steps cannot be used"):
            training.train(session.compiled, device, steps=2.5)  # type: ignore[arg-type]
        with pytest.raises(UserError, match="the tolerance cannot be used"):
            training.train(session.compiled, device, tolerance=float("nan"))


SNIPPET = """
import tilegrad as tg
tg.Recipe(loss="mse", batchnorm="fold", accum_mode="sum", optimizer=tg.Adam(lr=0.1), train="last:2")
tg.Recipe(loss="mee")
tg.Recipe(batchnorm="of")
tg.Recipe(accum_mode="max")
tg.Recipe(optimizer="sgd")
tg.Recipe(batch="four")
tg.Recipe(train=5)
tg.Residency(inputs="here")
"""


@pytest.mark.slow
def test_a_type_checker_finds_them(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    path = tmp_path / "snippet.py"
    path.write_text(SNIPPET)
    root = Path(tg.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", f"--cache-dir={tmp_path}", str(path)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line]
    assert lines == list(range(4, 11)), done.stdout + done.stderr
