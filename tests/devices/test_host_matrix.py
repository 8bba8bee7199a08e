"""Every zoo model on the host for 100 steps, in the ways that the product promises. `make matrix` runs these."""

from __future__ import annotations

import pytest

import tilegrad as tg
from tilegrad import zoo
from tilegrad.devices.host import HostDevice
from tilegrad.training import train as training

RECIPES = {
    "batch 1": tg.Recipe(),
    "batch 4": tg.Recipe(batch=4),
    "accum 2": tg.Recipe(accumulate=2),
    "batch 4, accum 2": tg.Recipe(batch=4, accumulate=2),
    # At 1e-3 a loss of cct_lora jumps by tenths between any two roundings of the same run, PyTorch's included.
    "batch 4, accum 2, adam": tg.Recipe(batch=4, accumulate=2, optimizer=tg.Adam(lr=0.0001)),
    "batchnorm train": tg.Recipe(batch=4, batchnorm="train"),
    "batchnorm fold": tg.Recipe(batchnorm="fold"),
}


@pytest.mark.matrix
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("name", zoo.names())
def test_100_steps_are_pytorchs(name: str, recipe: tg.Recipe) -> None:
    with HostDevice() as device:
        run = training.train(tg.compile(tg.load(name), recipe, target="host"), device, steps=100)
    assert run.verdict is not None and run.verdict.verified, run.verdict and run.verdict.failures()
    assert run.verdict.reference.startswith("PyTorch") and len(run.losses) == 100 * recipe.accumulate


@pytest.mark.parametrize(("name", "policy"), [("cct_lora", "frozen"), ("mobilenetv1", "train")])
def test_first_step_at_batch_4_is_pytorchs(name: str, policy: str) -> None:
    """What is most sensitive to rounding in normalisations, for every test run."""
    with HostDevice() as device:
        compiled = tg.compile(tg.load(name), tg.Recipe(batch=4, batchnorm=policy), target="host")
        run = training.train(compiled, device, steps=1)
    assert run.verdict is not None and run.verdict.verified, run.verdict and run.verdict.failures()
