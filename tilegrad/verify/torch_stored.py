"""PyTorch with what autograd saves rounded as `--store` says: `saved_tensors_hooks`, and rounded optimizer state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from tilegrad.losses import parse
from tilegrad.verify.reference import Array

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def rounded(tensor: Tensor, kept_as: str) -> Tensor:
    """As float32 would be rounded, in the type that it was."""
    return tensor.to(torch.float32).to(_TYPES[kept_as]).to(tensor.dtype)


class SavedRounding:
    """Rounds what autograd saves of what depends on the model's inputs. Parameters stay as they are, and so do what is
    made of them alone, and single numbers."""

    def __init__(self, kept_as: str, exact: Iterable[Tensor]) -> None:
        self.kept_as = kept_as
        self.fewest_dimensions = 1
        self._exact = {_place(tensor) for tensor in exact}

    def leave(self, tensors: Iterable[Tensor]) -> None:
        """These stay as they are, too; whoever calls this keeps them alive."""
        self._exact.update(map(_place, tensors))

    @property
    def is_active(self) -> bool:
        return self.kept_as != "f32"

    @contextmanager
    def active(self) -> Iterator[None]:
        if not self.is_active:
            yield
            return
        with torch.autograd.graph.saved_tensors_hooks(self._pack, _as_it_is):
            yield

    @contextmanager
    def of_labels(self) -> Iterator[None]:
        """In a loss of class indices: what has one dimension are its classes' weights."""
        self.fewest_dimensions = 2
        try:
            yield
        finally:
            self.fewest_dimensions = 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        with torch.autograd.graph.saved_tensors_hooks(_as_it_is, _as_it_is):
            yield

    def _pack(self, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or tensor.dim() < self.fewest_dimensions or _place(tensor) in self._exact:
            return tensor
        return rounded(tensor, self.kept_as)


def loss_of(text: str, outputs: Mapping[str, Tensor], targets: Sequence[Array], rounding: SavedRounding) -> Tensor:
    loss = parse(text)
    with rounding.of_labels() if any(term.has_classes for term in loss.terms) else nullcontext():
        value: Tensor = loss.value(outputs, targets, torch)
    return value


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _place(tensor: Tensor) -> int:
    """Of the bytes, whatever view this is of them."""
    return tensor.untyped_storage().data_ptr()
