"""The shipped goldens are current, were made by PyTorch, accept what is right and refuse what is not theirs."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest

from tilegrad import zoo
from tilegrad.optimizers import SGD
from tilegrad.verify import goldens, torch_reference
from tilegrad.verify.compare import Measured, compare
from tilegrad.verify.goldens.__main__ import case, check, made_by, main

FOLDER = Path(goldens.__file__).parent
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch, which trains")


@pytest.mark.parametrize("name", zoo.names())
def test_shipped_golden_is_current_and_small(name: str) -> None:
    path = FOLDER / f"{name}.npz"
    assert check(name, FOLDER) == ""
    assert path.stat().st_size < 60_000
    assert made_by(path) == f"python -m tilegrad.verify.goldens --update {name}"


def test_nothing_else_is_shipped() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.npz")) == sorted(zoo.names())


@needs_torch
@pytest.mark.parametrize("updates", [1, 4, 20])
@pytest.mark.parametrize("name", ["simplemlp", "dscnn"])
def test_a_float32_run_agrees_and_a_wrong_one_does_not(name: str, updates: int) -> None:
    wanted = case(name)
    batches = wanted.batches[:updates]
    found = goldens.find(name, wanted.model, wanted.recipe, wanted.trainable, batches)
    assert found.reference is not None, found.reason
    assert found.reference.name.startswith("golden of PyTorch")
    run = torch_reference.run(wanted.model, wanted.recipe, batches, wanted.trainable, "float32")
    good = Measured(run.losses, run.first_gradients, run.weights)
    verdict = compare(good, found.reference)
    assert verdict.verified, verdict.failures()
    for name in wanted.trainable:
        moved = run.weights[name] + 0.01 * np.linalg.norm(run.weights[name]) / np.sqrt(run.weights[name].size) + 1e-3
        verdict = compare(dataclasses.replace(good, weights={**run.weights, name: moved}), found.reference)
        assert not verdict.verified and verdict.worst_tensor == name


def test_what_it_does_not_cover_is_refused_with_a_reason() -> None:
    wanted = case("simplemlp")

    def reason(**changes: object) -> str:
        asked = dataclasses.replace(wanted, **changes)  # type: ignore[arg-type]
        found = goldens.find(asked.name, asked.model, asked.recipe, asked.trainable, asked.batches)
        assert found.reference is None
        return found.reason

    other = onnx.ModelProto()
    other.CopyFrom(wanted.model)
    array = onnx.numpy_helper.to_array(other.graph.initializer[0]).copy()
    array.flat[5] = np.nextafter(array.flat[5], np.float32(2))
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(array, other.graph.initializer[0].name))
    swapped = [wanted.batches[1], wanted.batches[0], *wanted.batches[2:]]
    assert reason(name="mine") == "no golden for 'mine'"
    assert reason(recipe=dataclasses.replace(wanted.recipe, optimizer=SGD(lr=0.02))).endswith("is of another recipe")
    assert reason(trainable=wanted.trainable[1:]).endswith("trains other tensors")
    assert reason(batches=wanted.batches[:50]).endswith("has no weights after 50 updates")
    assert reason(model=other).endswith("is stale: the model has changed since it was made")
    assert reason(batches=swapped).endswith("is stale or of other data")


def test_the_producer_of_a_file_does_not_matter() -> None:
    model = zoo.build("simplemlp", 0)
    before = goldens.model_hash(model)
    model.producer_name, model.doc_string = "somebody else", "on another day"
    assert goldens.model_hash(model) == before


@needs_torch
def test_update_makes_the_same_golden_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilegrad.verify.goldens import __main__ as program

    monkeypatch.setattr(program, "__file__", str(tmp_path / "__main__.py"))
    assert main(["simplemlp"]) == 1
    assert main(["--update", "simplemlp"]) == 0
    assert main(["simplemlp"]) == 0
    with np.load(tmp_path / "simplemlp.npz") as made, np.load(FOLDER / "simplemlp.npz") as shipped:
        assert set(made.files) == set(shipped.files)
        for key in set(made.files) - {"about"}:
            np.testing.assert_allclose(made[key], shipped[key], rtol=1e-5, atol=1e-6)
