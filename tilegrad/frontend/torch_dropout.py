"""Which parts of a module drop values when they train: asked of PyTorch, by running the module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

_RANDOM = ("bernoulli", "rand", "normal", "uniform", "native_dropout", "multinomial", "rrelu", "exponential")


@dataclass(frozen=True)
class TrainingParts:
    """Names of the parts that are exported in training mode, and of those whose randomness is left out."""

    dropping: frozenset[str]
    left_out: tuple[str, ...]


def training_parts(module: nn.Module, inputs: Sequence[Tensor]) -> TrainingParts:
    """`nn.Dropout`s, and parts whose own forward calls `functional.dropout` or attention with dropout.

    Runs the module once in training mode: give it a copy. PyTorch's own random numbers are left as they were.
    """
    names = {part: name for name, part in module.named_modules()}
    own = {part for part in names if isinstance(part, nn.Dropout)}
    recorder = _Recorder()
    try:
        with torch.random.fork_rng(), torch.no_grad(), watched(module, recorder), recorder:
            module.train()
            module(*(value.clone() for value in inputs))
    except Exception:  # noqa: BLE001 - a module that cannot run in training mode is exported as it evaluates
        recorder = _Recorder()
    dropping = own | {part for part in recorder.dropping if not isinstance(part, nn.modules.batchnorm._NormBase)}
    random = [names[part] for part in recorder.drawing if part not in dropping]
    return TrainingParts(frozenset(names[part] for part in dropping), tuple(sorted(random)))


class HasStack(Protocol):
    """Who watches a forward: `stack` has the parts whose forward is running, the innermost last."""

    stack: list[nn.Module]


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Who drew random numbers. An elementwise dropout draws them into a tensor made like its input; stochastic depth
    and dropout of whole channels draw fewer, and ONNX has no word for them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stack: list[nn.Module] = []
        self.dropping: set[nn.Module] = set()
        self.drawing: set[nn.Module] = set()
        self.like: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.stack and func.__name__.startswith(_RANDOM):
            self.drawing.add(self.stack[-1])
            if draws_dropout(func, args, self.like):
                self.dropping.add(self.stack[-1])
        self.like = result if func is torch.ops.aten.empty_like.default else None
        return result


def draws_dropout(func: Any, args: Sequence[Any], like: Any) -> bool:
    """Whether this call draws the mask of an elementwise dropout; `like` is what the call before made."""
    return func is torch.ops.aten.bernoulli_.float and args[0] is like


@contextmanager
def watched(module: nn.Module, recorder: HasStack) -> Iterator[None]:
    """The recorder knows in whose forward it is."""

    def enter(part: nn.Module, _: Any) -> None:
        recorder.stack.append(part)

    def leave(part: nn.Module, _: Any, __: Any) -> None:
        recorder.stack.pop()

    hooks = []
    try:
        for part in module.modules():
            hooks.append(part.register_forward_pre_hook(enter))
            hooks.append(part.register_forward_hook(leave))
        yield
    finally:
        for hook in hooks:
            hook.remove()
