"""FuseOuterProduct and FuseDenseGrad: which programs they change, and that what they make is what was there."""

from __future__ import annotations

import pytest

from tilegrad import frontend
from tilegrad.ir.program import Program
from tilegrad.passes.fuse_dense_grad import FuseDenseGrad
from tilegrad.passes.fuse_outer import FuseOuterProduct
from tilegrad.passes.fuse_update import FuseUpdate
from tilegrad.passes.parameters import select
from tilegrad.passes.program import derive_program
from tilegrad.pipeline import canonical_graph, defaults, forward_graph
from tilegrad.recipe import Adam, Recipe


def program(recipe: Recipe, name: str = "simplemlp") -> Program:
    model = frontend.load(name, batch=recipe.batch)
    graph = canonical_graph(model, recipe)
    loss, train = defaults(model)
    forward = forward_graph(graph, freezes=recipe.batchnorm != "train")
    return derive_program(*forward, recipe, model.roles, select(graph, model.parameters, train), loss)


def operators(made: Program) -> list[str]:
    return [node.op for node in made.entries["step"].nodes]


def test_the_gradient_of_one_sample_is_accumulated_without_a_matrix() -> None:
    before, after = program(Recipe()), FuseOuterProduct().apply(program(Recipe()))
    assert operators(after).count("OuterAccumulate") == 2
    assert operators(before).count("Gemm") - operators(after).count("Gemm") == 2
    assert after.entries["step"].writes == before.entries["step"].writes
    assert after.state == before.state


def test_an_sgd_step_takes_the_vectors() -> None:
    after = FuseOuterProduct().apply(FuseUpdate().apply(program(Recipe())))
    assert operators(after).count("OuterSGD") == 2
    assert "InPlaceAccumulatorV2" not in operators(after)
    steps = [node.name for node in after.entries["step"].nodes if node.op.endswith("SGD")]
    assert steps == [f"/fc{i}/Gemm_Grad/{step}" for i in (2, 1) for step in ("OuterSGD", "SGD.1")]


@pytest.mark.parametrize("recipe", [Recipe(batch=2), Recipe(optimizer=Adam())])
def test_other_gradients_stay(recipe: Recipe) -> None:
    fused = FuseOuterProduct().apply(FuseUpdate().apply(program(recipe)))
    assert not {"OuterSGD", "OuterAccumulate"} & set(operators(fused))


def test_the_weight_is_read_once_for_the_step_and_the_gradient_below() -> None:
    made = FuseDenseGrad().apply(FuseOuterProduct().apply(FuseUpdate().apply(program(Recipe(), "autoencoder_tiny"))))
    wide = [
        node
        for node in made.entries["step"].nodes
        if node.op == "DenseGradSGD" or (node.op == "OuterSGD" and made.tensor(node.inputs[2]).type.shape[1] >= 64)
    ]
    # Nothing is below the first layer.
    assert [node.op for node in wide] == ["DenseGradSGD"] * (len(wide) - 1) + ["OuterSGD"] and len(wide) > 2
