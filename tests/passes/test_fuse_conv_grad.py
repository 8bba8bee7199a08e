"""FuseConvGrad: which steps take their gradient over, and that training has the bits of the unfused program."""

from __future__ import annotations

import pytest

from tests.passes.test_fuse_outer import operators, program
from tilegrad import frontend
from tilegrad.api import open_device
from tilegrad.passes.fuse_conv_grad import FuseConvGrad
from tilegrad.passes.fuse_update import FuseUpdate
from tilegrad.pipeline import compile_model
from tilegrad.recipe import SGD, Momentum, Recipe
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.targets import base as targets
from tilegrad.training.train import train

TAKEN = ["/layer3/conv2/Conv_Grad/ConvGradSGD", "/layer3/conv1/Conv_Grad/ConvGradSGD"]


def test_large_weights_of_small_images_are_stepped_where_their_gradient_is_made() -> None:
    before = FuseUpdate().apply(program(Recipe(), "resnet8"))
    after = FuseConvGrad().apply(before)
    steps = [node for node in after.entries["step"].nodes if node.op == "ConvGradSGD"]
    assert [node.name for node in steps] == TAKEN
    assert after.entries["step"].writes == before.entries["step"].writes and after.state == before.state
    count = operators(before).count
    assert operators(after).count("SGD") == count("SGD") - 2 and operators(after).count("ConvGrad") == count("ConvGrad")
    weights = {step.inputs[2] for step in steps}
    left = [node for node in after.entries["step"].nodes if node.op == "ConvGrad" and node.inputs[2] in weights]
    assert [bool(node.outputs[0]) and not any(node.outputs[1:]) for node in left] == [True, True]
    assert FuseConvGrad().apply(after).entries["step"] is after.entries["step"]


@pytest.mark.parametrize(
    "recipe", [Recipe(batch=8), Recipe(optimizer=Momentum()), Recipe(optimizer=SGD(weight_decay=0.1))]
)
def test_other_steps_stay(recipe: Recipe) -> None:
    before = FuseUpdate().apply(program(recipe, "resnet8"))
    assert FuseConvGrad().apply(before).entries["step"] is before.entries["step"]


@pytest.mark.parametrize("model", ["dscnn", "mobilenetv1"])
def test_depthwise_and_pointwise_convolutions_stay(model: str) -> None:
    before = FuseUpdate().apply(program(Recipe(), model))
    assert FuseConvGrad().apply(before).entries["step"] is before.entries["step"]


def test_training_has_the_bits_of_the_unfused_program() -> None:
    hashes = []
    for is_fused in (True, False):
        options = ScheduleOptions(fuses_update=is_fused)
        compiled = compile_model(frontend.load("resnet8"), Recipe(), targets.get("siracusa"), options=options)
        assert ("ConvGradSGD" in operators(compiled.program)) == is_fused
        with open_device("sim:siracusa") as device:
            run = train(compiled, device, steps=2, verify=False, keep_gradients=False)
        hashes.append(run.weights_sha256)
    assert hashes[0] == hashes[1]
