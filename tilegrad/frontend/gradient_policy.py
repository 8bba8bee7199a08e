"""Whether the gradients of what trains are those that PyTorch has for the module."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from tilegrad.errors import UserError

if TYPE_CHECKING:
    from tilegrad.frontend.model import ImportedModel


def check_gradients(model: ImportedModel, trainable: Collection[str]) -> None:
    """Refuses to train what would get another gradient than in PyTorch: a graph has no word for a gradient cut off."""
    if model.module is None:
        return
    partial = [name for name in model.module.gradients.partial if name in trainable]
    if partial:
        more = f" and {len(partial) - 4} more" if len(partial) > 4 else ""
        raise UserError(
            "the module keeps a part of the gradient from its parameters, which ONNX cannot say",
            stage="recipe",
            expected="gradients that follow from what the module computes",
            got=f"{', '.join(model.module.gradients.cutting)}; it changes {', '.join(partial[:4])}{more}",
            hint="freeze these parameters (requires_grad_(False)), train others (train='names:…'), or leave it out",
        )
