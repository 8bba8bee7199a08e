"""What PyTorch's gradient of a module has that its exported graph cannot say: asked of PyTorch, by running the module.

ONNX knows what a module computes, not what `detach()`, `torch.no_grad()` or `padding_idx` keep from its gradient; and
an exporter that traces takes a decision by values as it fell for the example. Each is found here, so that none makes
the module silently another model.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from tilegrad.frontend.torch_dropout import watched
from tilegrad.frontend.torch_facts import GradientFacts

_DATA: Any = Tensor.data.__get__  # type: ignore[attr-defined]
_CUTS = frozenset({Tensor.detach, Tensor.detach_, torch.detach, _DATA})
_NOT_TRACED = {
    Tensor.__bool__: "if",
    Tensor.__int__: "int()",
    Tensor.__index__: "int()",
    Tensor.__float__: "float()",
    Tensor.item: "item()",
    Tensor.tolist: "tolist()",
    Tensor.numpy: "numpy()",
    Tensor.__array__: "numpy()",
    _DATA: ".data",
}
"""Where a trace loses its track and keeps the values that it saw."""
_EMBEDDING_OPTIONS = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
_TOLERANCE = 1e-6
_DEPENDS = "_tg_depends_on"
_INPUT, _PARAMETER = 1, 2


def gradient_facts(module: nn.Module, inputs: Sequence[Tensor]) -> GradientFacts:
    """Runs the module as it evaluates, twice where it cuts gradients: give it a copy, which is changed.

    Parameters are moved a little, because a layer that begins with zeros hides what is before it.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(), torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module.eval()
        for parameter in module.parameters():
            if parameter.is_floating_point():
                with torch.no_grad():
                    parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
        recorder = _Recorder()
        before = {name: tensor.detach().clone() for name, tensor in _state(module).items()}
        try:
            with watched(module, recorder), recorder:
                outputs = _outputs(module, recorder.marked(module, inputs))
            gradients = _gradients(module, outputs)
        except Exception:  # noqa: BLE001 - the user's own forward: whoever exports or trains it says what is wrong
            return recorder.facts(module)
        facts = replace(
            recorder.facts(module),
            changing=tuple(name for name, tensor in _state(module).items() if not _equal(tensor, before.get(name))),
            own=_own_backwards(outputs),
        )
        if not facts.cutting:
            return facts
        try:
            with _Uncut():
                whole = _gradients(module, _outputs(module, [value.clone() for value in inputs]))
        except Exception:  # noqa: BLE001 - a forward that runs without gradients only
            whole = {}
    partial = {name for name, gradient in whole.items() if _differ(gradient, gradients[name])}
    partial |= {name for name, parameter in module.named_parameters() if any(parameter is t for t in recorder.tables)}
    return replace(
        facts,
        unreached=tuple(name for name, whole_one in whole.items() if whole_one is not None and gradients[name] is None),
        partial=tuple(name for name in gradients if name in partial),
    )


def _state(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _equal(now: Tensor, before: Tensor | None) -> bool:
    return before is not None and torch.equal(now.detach().nan_to_num(), before.nan_to_num())


def _named(module: nn.Module, parts: Mapping[nn.Module, str]) -> tuple[str, ...]:
    names = {part: name for name, part in module.named_modules()}
    return tuple(f"{what} in '{names[part] or type(part).__name__}'" for part, what in parts.items())


def _outputs(module: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
    leaves = _pytree.tree_leaves(module(*inputs))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _gradients(module: nn.Module, outputs: Sequence[Tensor]) -> dict[str, Tensor | None]:
    """Of a sum of all outputs in which every element has a weight of its own."""
    named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros(())
    for output in outputs:
        total = total + (output * torch.randn(output.shape, generator=generator).to(output.dtype)).sum()
    if not named or not total.requires_grad:
        return dict.fromkeys(named)
    found = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    return dict(zip(named, found, strict=True))


def _differ(whole: Tensor | None, found: Tensor | None) -> bool:
    """A parameter that no gradient reaches at all does not train, which can be said; one that lacks a part cannot."""
    if whole is None or found is None:
        return False
    scale = float(whole.abs().max()) if whole.numel() else 0.0
    return bool(((whole - found).abs() > max(_TOLERANCE, 1e-4 * scale)).any())


def _own_backwards(outputs: Sequence[Tensor]) -> tuple[str, ...]:
    """Classes derived from `torch.autograd.Function` on the way back."""
    waiting: list[Any] = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen: set[Any] = set()
    names: set[str] = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            names.add(type(node).__name__.removesuffix("Backward"))
        waiting.extend(before for before, _ in node.next_functions if before is not None)
    return tuple(sorted(names))


class _Recorder(TorchFunctionMode):
    """In whose forward a gradient is cut, and in whose values become Python's. Changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[nn.Module] = []
        self.cutting: dict[nn.Module, str] = {}
        self.deciding: dict[nn.Module, str] = {}
        self.has_lost_parameters = False
        self.tables: list[Tensor] = []
        """Embeddings some of whose rows get another gradient, whether the example has their tokens or not."""

    def marked(self, module: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
        """What a forward may not decide by: copies of the inputs, and the module's parameters."""
        copies = [value.clone() for value in inputs]
        for tensors, depends in ((copies, _INPUT), (module.parameters(), _PARAMETER)):
            for tensor in tensors:
                setattr(tensor, _DEPENDS, depends)
        return copies

    def facts(self, module: nn.Module) -> GradientFacts:
        return GradientFacts(
            cutting=_named(module, self.cutting),
            deciding=_named(module, self.deciding),
            has_lost_parameters=self.has_lost_parameters,
        )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        depends = max((getattr(leaf, _DEPENDS, 0) for leaf in given), default=0)
        if self.stack and depends and func in _NOT_TRACED:
            self.deciding.setdefault(self.stack[-1], _NOT_TRACED[func])
            self.has_lost_parameters |= depends == _PARAMETER and func is not _DATA
        has_gradient = any(leaf.requires_grad for leaf in given)
        if self.stack and has_gradient and (what := _cut(func, args, kwargs, result)):
            self.cutting.setdefault(self.stack[-1], what)
            if func is functional.embedding:
                self.tables.append(_embedding_options(args, kwargs)["weight"])
        if depends:
            for leaf in _pytree.tree_leaves(result):
                if isinstance(leaf, Tensor):
                    setattr(leaf, _DEPENDS, depends)
        return result


def _cut(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> str:
    """How this call keeps a gradient from going back, if it does."""
    if func in _CUTS:
        return "detach()"
    if func is functional.embedding:
        options = _embedding_options(args, kwargs)
        if options.get("padding_idx") is not None:
            return "padding_idx"
        return "scale_grad_by_freq" if options.get("scale_grad_by_freq") else ""
    makes_floats = any(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in _pytree.tree_leaves(result))
    return "no_grad()" if makes_floats and not torch.is_grad_enabled() else ""


def _embedding_options(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict(zip(_EMBEDDING_OPTIONS, args, strict=False)), **kwargs}


class _Uncut(TorchFunctionMode):
    """The module without its cuts: what a graph that only knows values would be differentiated to."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _CUTS:
            return args[0]
        with torch.enable_grad():
            if func is functional.embedding:
                options = _embedding_options(args, kwargs)
                return func(**{**options, "padding_idx": None, "scale_grad_by_freq": False})
            return func(*args, **kwargs)
