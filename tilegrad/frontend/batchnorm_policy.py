"""Whether the recipe's policy for BatchNormalization can mean anything for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilegrad.errors import UserError

if TYPE_CHECKING:
    from tilegrad.frontend.model import ImportedModel


def check_batchnorm_policy(model: ImportedModel, policy: str) -> tuple[str, ...]:
    """Refuses a policy that a user asked for in vain; returns what should be said about one that is in order.

    A zoo model without BatchNormalization is known to have none, and a sweep over the zoo goes on with a note.
    """
    if policy == "frozen":
        return ()
    if policy == "train" and model.module is not None and model.module.odd_statistics:
        raise UserError(
            "running statistics of the module cannot be trained",
            stage="recipe",
            expected="BatchNorm with a momentum",
            got=", ".join(model.module.odd_statistics),
            hint="use --batchnorm frozen",
        )
    if any(node.op == "BatchNormalization" for node in model.graph.nodes):
        return ()
    if model.kind.value == "zoo":
        return (f"the model has no BatchNormalization: policy '{policy}' changes nothing",)
    if model.folded:
        raise UserError(
            f"policy '{policy}' means nothing here: the exporter folded BatchNormalization into the layers before it",
            stage="recipe",
            got=f"{len(model.folded)} folded layer(s): {', '.join(model.folded[:4])}",
            hint="torch.onnx.export(module.eval(), …, dynamo=False, training=torch.onnx.TrainingMode.PRESERVE, "
            "do_constant_folding=False) or dynamo=True, optimize=False keep it; tg.load(module, example=…) does too",
        )
    raise UserError(
        f"policy '{policy}' means nothing here: the model has no BatchNormalization",
        stage="recipe",
        expected="--batchnorm frozen, the default",
        got=policy,
    )
