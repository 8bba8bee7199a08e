"""A training loop of PyTorch's own around an executed ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import torch
from torch import Tensor

from tilegrad.errors import UserError
from tilegrad.verify.reference import Array, DropoutMask, ReferenceRecipe, Start
from tilegrad.verify.torch_executor import TorchModel, one_thread
from tilegrad.verify.torch_ops import INFERENCE, Mode
from tilegrad.verify.torch_stored import SavedRounding, loss_of
from tilegrad.verify.torch_updater import TorchUpdater


class TorchTrainer:
    """Mini-batches and updates as tilegrad names them: `step` fills the gradient buffers, `update` applies them."""

    def __init__(
        self,
        model: onnx.ModelProto,
        recipe: ReferenceRecipe,
        trainable: Sequence[str],
        dtype: str = "float64",
        dropout_mask: DropoutMask | None = None,
    ) -> None:
        self.recipe = recipe
        self.model = TorchModel(model, dtype)
        self.parts = {name: recipe.parts[name] for name in trainable if name in recipe.parts}
        missing = [n for n in trainable if n not in self.model.tensors and n not in self.parts]
        missing += [part.tensor for part in self.parts.values() if part.tensor not in self.model.tensors]
        if missing or not trainable:
            raise UserError(
                "the reference has nothing of that name to train",
                stage="verify",
                expected="names of float initializers",
                got=", ".join(missing) or "none",
            )
        self.parameters = {name: self._leaf(name).requires_grad_(True) for name in trainable}
        self.dropout_mask = dropout_mask
        self.minibatch = 0
        self.updater = TorchUpdater(recipe, self.parameters)

    def _leaf(self, name: str) -> Tensor:
        """What trains under a name: a tensor of the model, or a copy of some of its channels."""
        part = self.parts.get(name)
        if part is None:
            return self.model.tensors[name]
        return self.model.tensors[part.tensor].index_select(part.axis, torch.tensor(part.channels)).clone()

    def _assembled(self) -> dict[str, Tensor]:
        """The tensors of which a part trains, with that part in them."""
        found: dict[str, Tensor] = {}
        for name, part in self.parts.items():
            whole = found.get(part.tensor, self.model.tensors[part.tensor])
            found[part.tensor] = whole.index_copy(part.axis, torch.tensor(part.channels), self.parameters[name])
        return found

    def begin_at(self, start: Start) -> None:
        """Goes on where another run was."""
        with torch.no_grad():
            for name, value in {**start.weights, **start.statistics}.items():
                tensor = self.parameters[name] if name in self.parts else self.model.tensors[name]
                tensor.copy_(torch.tensor(np.asarray(value), dtype=tensor.dtype).reshape(tensor.shape))
        self.minibatch = start.minibatches
        self.updater.begin_at(start)

    def step(self, *batch: Array) -> float:
        """The unscaled loss of one mini-batch (the model's inputs in order, then targets), whose gradient is added to
        the buffers."""
        mode = Mode(self.recipe.batchnorm == "train", self.dropout_mask, self.minibatch)
        rounding = SavedRounding(self.recipe.store.activations, self.model.tensors.values())
        with one_thread():
            inputs = len(self.model.input_types)
            with rounding.active():
                outputs = self._outputs(batch[:inputs], mode, rounding if rounding.is_active else None)
                loss = loss_of(self.recipe.loss, outputs, batch[inputs:], rounding)
            (loss * self.recipe.gradient_scale).backward()  # type: ignore[no-untyped-call]
        self.minibatch += 1
        return float(loss.detach())

    def update(self) -> None:
        with one_thread():
            self.updater.update()

    def infer(self, *batch: Array) -> Array:
        with torch.no_grad():
            outputs = self._outputs(batch[: len(self.model.input_types)], INFERENCE)
            return np.array(outputs[self.model.outputs[0]].numpy())

    def gradients(self) -> dict[str, Array]:
        return {
            name: np.zeros(tuple(tensor.shape)) if tensor.grad is None else np.array(tensor.grad.numpy())
            for name, tensor in self.parameters.items()
        }

    def weights(self) -> dict[str, Array]:
        return {name: np.array(tensor.detach().numpy()) for name, tensor in self.parameters.items()}

    def statistics(self) -> dict[str, Array]:
        return {name: np.array(self.model.tensors[name].detach().numpy()) for name in self.model.statistics}

    def _outputs(
        self, inputs: Sequence[Array], mode: Mode, rounding: SavedRounding | None = None
    ) -> dict[str, Tensor]:
        fed = zip(self.model.input_types.items(), inputs, strict=True)
        feeds = {name: self.model.to_tensor(x, kind) for (name, kind), x in fed}
        own = self._assembled()
        if rounding is not None:
            rounding.leave(own.values())
        return self.model.forward(feeds, mode, own, rounding)

