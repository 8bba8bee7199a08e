"""A training loop of PyTorch's own around an executed ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import torch
from torch import Tensor

from tilegrad.errors import UserError
from tilegrad.losses import LOSSES
from tilegrad.verify.reference import Array, DropoutMask, ReferenceRecipe, Start
from tilegrad.verify.torch_executor import TorchModel, one_thread
from tilegrad.verify.torch_ops import INFERENCE, Mode
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
        self.input = self.model.single_input()
        missing = [name for name in trainable if name not in self.model.tensors]
        if missing or not trainable:
            raise UserError(
                "the reference has nothing of that name to train",
                stage="verify",
                expected="names of float initializers",
                got=", ".join(missing) or "none",
            )
        self.parameters = {name: self.model.tensors[name].requires_grad_(True) for name in trainable}
        self.dropout_mask = dropout_mask
        self.minibatch = 0
        self.updater = TorchUpdater(recipe, self.parameters)

    def begin_at(self, start: Start) -> None:
        """Goes on where another run was."""
        with torch.no_grad():
            for name, value in {**start.weights, **start.statistics}.items():
                tensor = self.model.tensors[name]
                tensor.copy_(torch.tensor(np.asarray(value), dtype=tensor.dtype).reshape(tensor.shape))
        self.minibatch = start.minibatches
        self.updater.begin_at(start)

    def step(self, x: Array, y: Array) -> float:
        """The unscaled loss of one mini-batch, whose gradient is added to the buffers."""
        mode = Mode(self.recipe.batchnorm == "train", self.dropout_mask, self.minibatch)
        with one_thread():
            loss = loss_value(self.recipe.loss, self._output(x, mode), y)
            (loss * self.recipe.gradient_scale).backward()  # type: ignore[no-untyped-call]
        self.minibatch += 1
        return float(loss.detach())

    def update(self) -> None:
        with one_thread():
            self.updater.update()

    def infer(self, x: Array) -> Array:
        with torch.no_grad():
            return np.array(self._output(x, INFERENCE).numpy())

    def gradients(self) -> dict[str, Array]:
        return {
            name: np.zeros(tuple(tensor.shape)) if tensor.grad is None else np.array(tensor.grad.numpy())
            for name, tensor in self.parameters.items()
        }

    def weights(self) -> dict[str, Array]:
        return {name: np.array(tensor.detach().numpy()) for name, tensor in self.parameters.items()}

    def statistics(self) -> dict[str, Array]:
        return {name: np.array(self.model.tensors[name].detach().numpy()) for name in self.model.statistics}

    def _output(self, x: Array, mode: Mode) -> Tensor:
        fed = self.model.to_tensor(x, self.model.input_types[self.input])
        return self.model.forward({self.input: fed}, mode)[self.model.outputs[0]]


def loss_value(loss: str, output: Tensor, y: Array) -> Tensor:
    """The scalar loss; class indices where the loss takes them, else targets of the output's size."""
    if LOSSES[loss].has_classes:
        target = torch.tensor(np.asarray(y).astype(np.int64)).reshape(output.shape[0], *output.shape[2:])
        classes = output.shape[1]
        if bool(((target < 0) | (target >= classes)).any()):
            raise UserError("a label is out of range", stage="verify", expected=f"0 to {classes - 1}")
    elif np.size(y) != output.numel():
        raise UserError(
            "targets and model output differ in shape",
            stage="verify",
            expected=str(tuple(output.shape)),
            got=str(np.shape(y)),
        )
    else:
        target = torch.tensor(np.asarray(y), dtype=output.dtype).reshape(output.shape)
    value: Tensor = LOSSES[loss].torch(torch, output, target)
    return value
