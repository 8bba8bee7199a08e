"""The first update of each optimizer in float64 NumPy, written from PyTorch's published definitions.

Independent of the update operators: no state is needed, for before its first update every optimizer's state is zero.
"""

from __future__ import annotations

import numpy as np

from tilegrad.verify.reference import Array, ReferenceRecipe


def first_update(recipe: ReferenceRecipe, weight: Array, gradient: Array) -> Array:
    """The weight after the first update, in float64."""
    value = np.asarray(weight, dtype=np.float64)
    slope = np.asarray(gradient, dtype=np.float64)
    if recipe.optimizer == "adamw":
        value = value * (1.0 - recipe.lr * recipe.weight_decay)
    else:
        slope = slope + recipe.weight_decay * value
    if recipe.optimizer in ("sgd", "momentum"):
        return np.asarray(value - recipe.lr * slope)
    # Bias correction cancels (1 - beta) in both moments of the first update.
    return np.asarray(value - recipe.lr * slope / (np.abs(slope) + recipe.eps))
