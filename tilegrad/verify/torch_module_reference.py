"""The user's own torch module, trained by PyTorch: what a program made from that module is compared with.

Nothing of the exported graph is used, so a module that was exported or imported as another model does not pass.
BatchNormalization follows the recipe's policy, and Dropout takes the masks that the generated code draws.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tilegrad.errors import UserError
from tilegrad.verify.jitter import jitter
from tilegrad.verify.reference import Array, ReferenceRecipe, Start
from tilegrad.verify.torch_executor import FLOAT_DTYPES, UnsupportedByReferenceError, one_thread
from tilegrad.verify.torch_stored import SavedRounding, loss_of
from tilegrad.verify.torch_updater import TorchUpdater

Masks = Callable[[int, tuple[int, ...], int], "Array | None"]
"""(dropout call from 0 within one forward pass, shape, mini-batch from 0) -> the keep mask, None to leave values."""


JITTERED = "float32, weights jittered"
"""A float32 run that starts one unit in the last place beside the weights: what float32's noise makes of a run."""


@dataclass(frozen=True)
class ModuleReference:
    """A module to train. `dropouts` is how many masks one forward pass takes; another number is another model.

    `statistics` are the running statistics to compare. A module that does not run in float64 is its own reference in
    float32, and `problem` says why. `inputs` is how many it takes, `outputs` the names of what it returns.
    """

    module: nn.Module
    masks: Masks
    dropouts: int
    statistics: tuple[str, ...] = ()
    problem: str = ""
    inputs: int = 1
    outputs: tuple[str, ...] = ()

    @property
    def float_types(self) -> tuple[str, str]:
        """Of the reference itself, and of the run whose distance from it is float32's noise."""
        return ("float32", JITTERED) if self.problem else ("float64", "float32")

    @property
    def title(self) -> str:
        return "training this module, " + (f"float32 ({self.problem})" if self.problem else "float64")


class ModuleTrainer:
    """Mini-batches and updates of a copy of the module, in one float type. The same interface as `TorchTrainer`."""

    def __init__(
        self, reference: ModuleReference, recipe: ReferenceRecipe, trainable: Sequence[str], dtype: str = "float64"
    ) -> None:
        self.recipe = recipe
        self.reference = reference
        self.float_type = torch.float32 if dtype == JITTERED else FLOAT_DTYPES[dtype]
        self.module = copy.deepcopy(reference.module).to(self.float_type)
        self.normalisations = [
            (name, part)
            for name, part in self.module.named_modules()
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None
        ]
        named = dict(self.module.named_parameters())
        missing = [name for name in trainable if name not in named]
        if missing:
            raise UnsupportedByReferenceError(
                "the module has no parameter of that name", stage="verify", got=", ".join(missing)
            )
        for name, parameter in named.items():
            parameter.requires_grad_(name in trainable)
        self.parameters = {name: named[name] for name in trainable}
        if dtype == JITTERED:
            jitter(self.parameters.values(), 0)
        self.minibatch = 0
        self.updater = TorchUpdater(recipe, self.parameters)

    def begin_at(self, start: Start) -> None:
        """Goes on where another run was."""
        own = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        with torch.no_grad():
            for name, value in {**start.weights, **start.statistics}.items():
                tensor = own[name]
                tensor.copy_(torch.tensor(np.asarray(value), dtype=tensor.dtype).reshape(tensor.shape))
        self.minibatch = start.minibatches
        self.updater.begin_at(start)

    def step(self, *batch: Array) -> float:
        """The unscaled loss of one mini-batch, whose gradient is added to the buffers."""
        for _, part in self.normalisations:
            part.training = self.recipe.batchnorm == "train"
        masks = _Masks(self.reference.masks, self.minibatch)
        own = (*self.module.parameters(), *self.module.buffers())
        rounding = SavedRounding(self.recipe.store.activations, own)
        with one_thread(), torch.enable_grad():
            with masks if self.reference.dropouts else ExitStack(), rounding.active():
                outputs = self._outputs(batch[: self.reference.inputs])
            if masks.calls != self.reference.dropouts:
                raise UnsupportedByReferenceError(
                    "the module drops values in other places than its exported graph",
                    stage="verify",
                    expected=f"{self.reference.dropouts} dropouts",
                    got=str(masks.calls),
                )
            with rounding.active():
                loss = loss_of(self.recipe.loss, outputs, batch[self.reference.inputs :], rounding)
            (loss * self.recipe.gradient_scale).backward()  # type: ignore[no-untyped-call]
        self.minibatch += 1
        return float(loss.detach())

    def update(self) -> None:
        with one_thread():
            self.updater.update()

    def infer(self, *batch: Array) -> Array:
        modes = [(part, part.training) for part in self.module.modules()]
        self.module.eval()
        try:
            with one_thread(), torch.no_grad():
                outputs = self._outputs(batch[: self.reference.inputs])
                return np.array(next(iter(outputs.values())).numpy())
        finally:
            for part, was_training in modes:
                part.training = was_training

    def gradients(self) -> dict[str, Array]:
        return {
            name: np.zeros(tuple(tensor.shape)) if tensor.grad is None else np.array(tensor.grad.numpy())
            for name, tensor in self.parameters.items()
        }

    def weights(self) -> dict[str, Array]:
        return {name: np.array(tensor.detach().numpy()) for name, tensor in self.parameters.items()}

    def statistics(self) -> dict[str, Array]:
        return {
            f"{name}.{leaf}" if name else leaf: np.array(part._buffers[leaf].detach().numpy())  # type: ignore[union-attr]
            for name, part in self.normalisations
            for leaf in ("running_mean", "running_var")
            if (f"{name}.{leaf}" if name else leaf) in self.reference.statistics
        }

    def _outputs(self, inputs: Sequence[Array]) -> dict[str, Tensor]:
        """By the names of the exported graph, where it has as many."""
        tensors = [torch.tensor(np.asarray(x)) for x in inputs]
        fed = [each.to(self.float_type) if each.is_floating_point() else each for each in tensors]
        try:
            with _in_float_type(self.float_type):
                result = self.module(*fed)
        except UserError:
            raise
        except Exception as error:  # the user's own forward: anything may come out of it
            line = str(error).strip().split("\n")[0] or type(error).__name__
            name = str(self.float_type).removeprefix("torch.")
            raise UnsupportedByReferenceError(f"it does not run in {name}: {line}", stage="verify") from error
        leaves = [leaf for leaf in _pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        if not leaves or not leaves[0].is_floating_point():
            raise UnsupportedByReferenceError("the module's first output is no float tensor", stage="verify")
        names = self.reference.outputs
        return dict(zip(names if len(names) == len(leaves) else map(str, range(len(leaves))), leaves, strict=True))


class _Masks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Puts the program's masks in the place of the random ones, in the order in which the module asks for them.

    An elementwise dropout, whoever calls it, draws its mask into a tensor that it made like its input.
    """

    def __init__(self, masks: Masks, minibatch: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.masks = masks
        self.minibatch = minibatch
        self.calls = 0
        self.like: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.bernoulli_.float and args[0] is self.like:
            mask = self.masks(self.calls, tuple(args[0].shape), self.minibatch)
            self.calls += 1
            if mask is None:
                return args[0].fill_(args[1])  # divided by that number at once: nothing is dropped
            return args[0].copy_(torch.tensor(np.asarray(mask, dtype=np.float64)))
        result = func(*args, **(kwargs or {}))
        self.like = result if func is torch.ops.aten.empty_like.default else None
        return result


@contextmanager
def _in_float_type(float_type: torch.dtype) -> Iterator[None]:
    """Tensors that a forward makes itself take the run's float type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(float_type)
    try:
        if float_type is torch.float64:
            with _Double():
                yield
        else:
            yield
    finally:
        torch.set_default_dtype(before)


class _Double(TorchFunctionMode):
    """Casts to float32 that a forward has written into it are casts to float64 here."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.float:
            return args[0].double()
        if any(value is torch.float32 for value in (*args, *kwargs.values())):
            args = tuple(torch.float64 if value is torch.float32 else value for value in args)
            kwargs = {key: torch.float64 if value is torch.float32 else value for key, value in kwargs.items()}
        return func(*args, **kwargs)
