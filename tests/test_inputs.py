"""Models with any number of inputs and outputs: how they are fed, from files and from the seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tilegrad as tg
from tests.schedule.programs import own_loss, recipe_of, two_heads
from tests.support.command_line import CommandLine
from tilegrad.data.samples import infer_inputs, make_batches, sample_spec
from tilegrad.errors import UserError


def arrays(samples: int = 12) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    return {
        "left": draw.standard_normal((samples, 6)),
        "right": draw.standard_normal((samples, 4)),
        "classes": draw.integers(0, 3, samples),
    }


def saved(folder: Path, **held: Any) -> Path:
    np.savez(folder / "d.npz", **held)
    return folder / "d.npz"


def compiled(name: str = "own_loss") -> tg.Compiled:
    return tg.compile({"own_loss": own_loss, "two_heads": two_heads}[name](), recipe_of(name))


def test_synthetic_inputs_differ_from_each_other() -> None:
    program = compiled()
    left, right, classes = make_batches(program, None).batch(0)
    assert left.shape == (4, 6) and right.shape == (4, 4) and classes.dtype == np.int64
    assert not np.array_equal(left[:, :4], right) and set(classes) <= {0, 1, 2}
    again = make_batches(program, None).batch(0)
    assert all(np.array_equal(a, b) for a, b in zip(again, (left, right, classes), strict=True))


def test_arrays_are_matched_by_name(tmp_path: Path) -> None:
    held = arrays()
    program = compiled()
    batch = make_batches(program, saved(tmp_path, **held, other=np.zeros(3))).batch(1)
    for array, name in zip(batch, ("left", "right", "classes"), strict=True):
        np.testing.assert_array_equal(array, held[name][4:8].astype(array.dtype))
    assert [a.shape for a in infer_inputs(program, batch)] == [(4, 6), (4, 4), (4,)]


def test_targets_of_several_outputs(tmp_path: Path) -> None:
    program = compiled("two_heads")
    names = program.program.entries["step"].inputs
    assert names == ("left", "right", "labels", "target.image")
    held = arrays()
    data = saved(
        tmp_path, left=held["left"], right=held["right"], y=held["classes"], **{"target.image": np.ones((12, 7))}
    )
    with tg.open_device("host") as device:
        run = tg.train(program, device, steps=3, data=data)
    assert run.verdict is not None and run.verdict.verified


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"right": None}, "has no array for the input 'right'"),
        ({"right": np.zeros((11, 4))}, "has a different number of samples in left and right"),
        ({"right": np.zeros((12, 5))}, "array 'right' of"),
        ({"classes": np.full(12, 3)}, "label out of range"),
        ({"classes": np.zeros(12)}, "has the wrong element type"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    held = {name: array for name, array in (arrays() | change).items() if array is not None}
    with pytest.raises(UserError, match=said) as caught:
        make_batches(compiled(), saved(tmp_path, **held))
    if "no array" in said:
        assert "'left' [samples,6], 'right' [samples,4], 'classes' [samples]" in str(caught.value)


def test_an_input_without_a_batch_is_the_same_for_all(tmp_path: Path) -> None:
    from tests.support.models import model, node, value, weights

    made = model(
        [node("Gemm", "x w _", "h", "/fc", transB=1), node("Add", "h shift", "y", "/shift")],
        [value("x", ["batch", 6]), value("shift", [5])],
        [value("y", ["batch", 5])],
        {"w": weights(5, 6, seed=1)},
    )
    program = tg.compile(made, tg.Recipe(batch=3, loss="mse"))
    assert [port.is_batched for port in sample_spec(program).ports] == [True, False, True]
    draw = np.random.default_rng(1)
    shift = draw.standard_normal(5)
    data = saved(tmp_path, x=draw.standard_normal((9, 6)), shift=shift, y=draw.standard_normal((9, 5)))
    with tg.open_device("host") as device:
        run = tg.train(program, device, steps=2, data=data)
        np.testing.assert_array_equal(make_batches(program, data).batch(2)[1], shift.astype(np.float32))
    assert run.verdict is not None and run.verdict.verified


def test_the_command_line(tmp_path: Path, tilegrad: CommandLine) -> None:
    path, data = tmp_path / "model.onnx", saved(tmp_path, **arrays())
    onnx.save(own_loss(), path)
    run = tilegrad(
        "train", path, "--loss", "output:total", "--data", data, "--batch", 4, "--device", "host", "--json", "-"
    )
    assert run.json["verified"] is True and run.json["loss"] == "output:total"
    inferred = tilegrad("infer", path, "--data", data, "--batch", 4, "--device", "host", "--json", "-").json
    assert inferred["verified"] is True
    checked = tilegrad(
        "gradcheck", path, "--loss", "output:total", "--batch", 4, "--device", "host", "--json", "-"
    ).json
    assert checked["verified"] is True
    wrong = tilegrad(
        "train", path, "--loss", "output:total", "--device", "host", "--data", saved(tmp_path, a=np.zeros(3))
    )
    assert wrong.status == 2 and "has no array for the input 'left'" in wrong.err.replace("\n", " ")
