"""PyTorch's own update: its optimizers, learning-rate schedulers and clipping, put together as the recipe says."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tilegrad.verify.reference import ReferenceRecipe


class TorchUpdater:
    """What `update` is to a reference. Parameters without weight decay are a group of their own."""

    def __init__(self, recipe: ReferenceRecipe, parameters: Mapping[str, Tensor]) -> None:
        self.recipe = recipe
        self.parameters = list(parameters.values())
        spared = [tensor for name, tensor in parameters.items() if name in recipe.undecayed]
        groups: list[Any] = self.parameters
        if spared and getattr(recipe.optimizer, "weight_decay", 0.0):
            others = [tensor for name, tensor in parameters.items() if name not in recipe.undecayed]
            groups = [{"params": others}, {"params": spared, "weight_decay": 0.0}]
            groups = [group for group in groups if group["params"]]
        self.optimizer = recipe.optimizer.torch_optimizer(torch, groups)
        self.scheduler = None
        if not recipe.rate.is_constant:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # one scheduler of a sequence steps before the optimizer does
                self.scheduler = recipe.rate.torch_scheduler(torch, self.optimizer)

    def update(self) -> None:
        """One optimizer step, and all gradients zero after it."""
        if self.recipe.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
        self.optimizer.step()
        if self.scheduler is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=False)
