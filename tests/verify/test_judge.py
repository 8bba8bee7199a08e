"""Which reference judges a run: PyTorch, else a golden, else differences; each on the generated C itself."""

from __future__ import annotations

import dataclasses

import pytest

import tilegrad as tg
from tilegrad import zoo
from tilegrad.data import samples
from tilegrad.recipe import SGD, Adam
from tilegrad.training import train as training
from tilegrad.verify import goldens, torch_reference
from tilegrad.verify.compare import Measured
from tilegrad.verify.goldens.__main__ import case
from tilegrad.verify.judge import judge, reference_recipe


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_reference, "available", lambda: False)


def trained(recipe: tg.Recipe, steps: int = 2) -> training.Run:
    with tg.open_device("host") as device:
        return training.train(tg.compile(tg.load("simplemlp"), recipe, target="host"), device, steps=steps)


def test_a_golden_judges_the_default_run(without_torch: None) -> None:
    verdict = trained(tg.Recipe(), steps=4).verdict
    assert verdict is not None and verdict.verified and verdict.reference.startswith("golden of PyTorch")
    assert len(verdict.losses) == 4


@pytest.mark.parametrize(
    "recipe",
    [
        tg.Recipe(optimizer=SGD(lr=0.02)),
        tg.Recipe(batch=4, accumulate=2, optimizer=Adam()),
        tg.Recipe(accum_mode="sum"),
    ],
)
def test_differences_judge_any_other(without_torch: None, recipe: tg.Recipe) -> None:
    verdict = trained(recipe, steps=9).verdict
    assert verdict is not None and verdict.verified, verdict and verdict.failures()
    assert verdict.reference.startswith("central differences of ONNX reference evaluator")
    assert len(verdict.losses) == recipe.accumulate


@pytest.mark.skipif(not torch_reference.available(), reason="needs PyTorch")
def test_pytorch_judges_where_it_is_installed() -> None:
    verdict = trained(tg.Recipe(batch=4, accumulate=2)).verdict
    assert verdict is not None and verdict.verified and verdict.reference.startswith("PyTorch")


@pytest.mark.parametrize("name", zoo.names())
def test_goldens_are_of_what_train_does_by_default(name: str) -> None:
    compiled = tg.compile(tg.load(name), tg.Recipe(), target="host")
    stream, wanted = samples.make_batches(compiled, None), case(name)
    batches = [stream.batch(index) for index in range(4)]
    assert goldens.data_hashes(batches) == goldens.data_hashes(wanted.batches[:4])
    assert [tensor.name for tensor in compiled.program.trainable] == list(wanted.trainable)
    assert reference_recipe(compiled.program).as_dict() == wanted.recipe.as_dict()
    assert goldens.model_hash(compiled.model.unbound) == goldens.model_hash(wanted.model)


def test_a_wrong_weight_is_found(without_torch: None) -> None:
    run = trained(tg.Recipe(), steps=1)
    weights = {**run.weights, "fc1.bias": run.weights["fc1.bias"] + 1e-3}
    measured = Measured(run.losses, run.first_gradients, weights)
    batches = [samples.make_batches(run.compiled, None).batch(0)]
    beginning = training.FirstUpdate(run.losses, run.first_gradients, weights)
    verdict = judge(run.compiled, measured, beginning, batches, 1e-4)
    assert verdict.reference.startswith("golden") and verdict.worst_tensor == "fc1.bias" and not verdict.verified
    faster = dataclasses.replace(run.compiled.program.recipe, optimizer=SGD(lr=0.02))
    compiled = tg.compile(tg.load("simplemlp"), faster, target="host")
    verdict = judge(compiled, measured, beginning, batches, 1e-4)
    assert verdict.reference.startswith("central differences") and not verdict.verified
