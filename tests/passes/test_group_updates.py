"""GroupUpdates: which steps go together, and that no reader of a weight finds it changed too early or too late."""

from __future__ import annotations

from tests.passes.test_fuse_outer import program
from tilegrad.ir.program import Program
from tilegrad.passes.fuse_outer import FuseOuterProduct
from tilegrad.passes.fuse_update import FuseUpdate
from tilegrad.passes.group_updates import GroupUpdates
from tilegrad.recipe import SGD, Momentum, Recipe


def test_the_biases_and_scales_of_a_layer_step_together() -> None:
    before = FuseOuterProduct().apply(FuseUpdate().apply(program(Recipe(), "autoencoder")))
    after = GroupUpdates().apply(before)

    def steps(made: Program) -> dict[str, str]:
        """Weight by new value, of every step."""
        found: dict[str, str] = {}
        for node in made.entries["step"].nodes:
            if node.op in ("SGD", "SGDGroup"):
                weights = [name for name in node.inputs[:6:2] if name][: len(node.outputs)]
                found.update(zip(node.outputs, weights, strict=True))
        return found

    assert steps(before) == steps(after)
    operators = [node.op for node in after.entries["step"].nodes]
    assert operators.count("SGDGroup") >= 4 and operators.count("SGD") <= 2
    assert after.entries["step"].writes == before.entries["step"].writes


def test_other_rules_stay_as_they_are() -> None:
    for optimizer in (SGD(weight_decay=0.1), Momentum()):
        fused = FuseUpdate().apply(program(Recipe(optimizer=optimizer), "autoencoder"))
        assert GroupUpdates().apply(fused) is fused
