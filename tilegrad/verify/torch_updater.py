"""PyTorch's own update: its optimizers, learning-rate schedulers and clipping, put together as the recipe says."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tilegrad.verify.reference import ReferenceRecipe, Start
from tilegrad.verify.torch_stored import rounded


class TorchUpdater:
    """What `update` is to a reference. Parameters without weight decay are a group of their own."""

    def __init__(self, recipe: ReferenceRecipe, parameters: Mapping[str, Tensor]) -> None:
        self.recipe = recipe
        self.parameters = list(parameters.values())
        self.named = parameters
        spared = [tensor for name, tensor in parameters.items() if name in recipe.undecayed]
        groups: list[Any] = list(self.parameters)
        if spared and recipe.optimizer != recipe.optimizer.without_decay():
            others = [tensor for name, tensor in parameters.items() if name not in recipe.undecayed]
            groups = [{"params": others}, {"params": spared, "weight_decay": 0.0}]
            groups = [group for group in groups if group["params"]]
        self.optimizer = recipe.optimizer.torch_optimizer(torch, groups)
        self.scheduler = None
        if not recipe.rate.is_constant:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # one scheduler of a sequence steps before the optimizer does
                self.scheduler = recipe.rate.torch_scheduler(torch, self.optimizer)

    def begin_at(self, start: Start) -> None:
        """As if it had made `start.updates` already."""
        names = self.recipe.optimizer.torch_slots
        for name, slots in start.slots.items():
            state = self.optimizer.state[self.named[name]]
            state["step"] = torch.tensor(float(start.updates))
            for slot, value in slots.items():
                like = self.named[name]
                state[names.get(slot, slot)] = torch.tensor(np.asarray(value), dtype=like.dtype).reshape(like.shape)
        for name, value in start.gradients.items():
            like = self.named[name]
            like.grad = torch.tensor(np.asarray(value), dtype=like.dtype).reshape(like.shape)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(start.updates if self.scheduler is not None else 0):
                assert self.scheduler is not None
                self.scheduler.step()

    def _round_slots(self) -> None:
        names = self.recipe.optimizer.torch_slots
        with torch.no_grad():
            for state in self.optimizer.state.values():
                for slot in self.recipe.optimizer.slots:
                    kept = state[names.get(slot, slot)]
                    kept.copy_(rounded(kept, self.recipe.store.optimizer))

    def update(self) -> None:
        """One optimizer step, and all gradients zero after it."""
        if self.recipe.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
        self.optimizer.step()
        if self.recipe.store.optimizer != "f32":
            self._round_slots()
        if self.scheduler is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=False)
