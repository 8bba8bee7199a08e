"""What PyTorch's gradient of a module has that its exported graph cannot say: asked of PyTorch, by running the module.

ONNX knows what a module computes, not what `detach()`, `torch.no_grad()` or `padding_idx` keep from its gradient; and
an exporter that traces takes a decision by values as it fell for the example. Each is found here, so that none makes
the module silently another model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from tilegrad.frontend.torch_dropout import watched
from tilegrad.frontend.torch_facts import GradientFacts, Padding

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
        padding = {id(module.get_parameter(name)) for name in facts.padding}
        try:
            with _Uncut(padding):
                whole = _gradients(module, _outputs(module, [value.clone() for value in inputs]))
        except Exception:  # noqa: BLE001 - a forward that runs without gradients only
            whole = {}
    partial = {name for name, gradient in whole.items() if _differ(gradient, gradients[name])}
    partial |= recorder.apart(module)
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
    nodes = _nodes_behind(outputs)
    return tuple(
        sorted({type(node).__name__.removesuffix("Backward") for node in nodes if isinstance(node, BackwardCFunction)})
    )


def _nodes_behind(values: Sequence[Tensor]) -> set[Any]:
    """The nodes of the backward pass from these values on."""
    waiting: list[Any] = [value.grad_fn for value in values if value.grad_fn is not None]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting.extend(before for before, _ in node.next_functions if before is not None)
    return seen


@dataclass(frozen=True)
class _Lookup:
    """A call of an embedding in which some rows may get another gradient; `part` is in whose forward it is."""

    table: Tensor
    part: nn.Module | None
    padding_row: int | None
    by_frequency: bool

    @staticmethod
    def of(options: Mapping[str, Any], part: nn.Module | None) -> _Lookup:
        table, row = options["weight"], options.get("padding_idx")
        return _Lookup(
            table,
            part,
            None if row is None else int(row) % table.shape[0],
            bool(options.get("scale_grad_by_freq")),
        )

    @property
    def what(self) -> str:
        if self.padding_row is not None:
            return "padding_idx"
        return "scale_grad_by_freq" if self.by_frequency else ""


def _paddings(module: nn.Module, lookups: Iterable[_Lookup]) -> dict[str, Padding]:
    """The tables in which every lookup keeps back the gradient of the same row, and does nothing else: that can be said
    of a Gather."""
    found: dict[str, Padding] = {}
    for name, parameter in module.named_parameters():
        own = [lookup for lookup in lookups if lookup.table is parameter]
        rows = {lookup.padding_row for lookup in own}
        row = rows.pop() if len(rows) == 1 else None
        if row is not None and not any(lookup.by_frequency for lookup in own):
            found[name] = Padding(row, len(own))
    return found


def _leaves(table: Tensor) -> list[Tensor]:
    """The parameters that a table is computed from: itself, if it is one."""
    if table.grad_fn is None:
        return [table]
    return [node.variable for node in _nodes_behind([table]) if hasattr(node, "variable")]


class _Recorder(TorchFunctionMode):
    """In whose forward a gradient is cut, and in whose values become Python's. Changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[nn.Module] = []
        self.cutting: dict[nn.Module, str] = {}
        self.deciding: dict[nn.Module, str] = {}
        self.has_lost_parameters = False
        self.lookups: list[_Lookup] = []

    def marked(self, module: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
        """What a forward may not decide by: copies of the inputs, and the module's parameters."""
        copies = [value.clone() for value in inputs]
        for tensors, depends in ((copies, _INPUT), (module.parameters(), _PARAMETER)):
            for tensor in tensors:
                setattr(tensor, _DEPENDS, depends)
        return copies

    def apart(self, module: nn.Module) -> set[str]:
        """Tables some of whose rows get another gradient, whether the example has their tokens or not."""
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        said = _paddings(module, self.lookups)
        tables = [leaf for lookup in self.lookups if lookup.what for leaf in _leaves(lookup.table)]
        return {names[id(table)] for table in tables if id(table) in names} - said.keys()

    def facts(self, module: nn.Module) -> GradientFacts:
        padding = _paddings(module, self.lookups)
        said = [module.get_parameter(name) for name in padding]
        cutting = dict(self.cutting)
        for lookup in self.lookups:
            if lookup.what and lookup.part is not None and not any(lookup.table is table for table in said):
                cutting.setdefault(lookup.part, lookup.what)
        return GradientFacts(
            padding=padding,
            cutting=_named(module, cutting),
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
        if func is functional.embedding and has_gradient:
            self.lookups.append(_Lookup.of(_embedding_options(args, kwargs), self.stack[-1] if self.stack else None))
        if self.stack and has_gradient and (what := _cut(func, result)):
            self.cutting.setdefault(self.stack[-1], what)
        if depends:
            for leaf in _pytree.tree_leaves(result):
                if isinstance(leaf, Tensor):
                    setattr(leaf, _DEPENDS, depends)
        return result


def _cut(func: Any, result: Any) -> str:
    """How this call keeps a gradient from going back, if it does."""
    if func in _CUTS:
        return "detach()"
    makes_floats = any(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in _pytree.tree_leaves(result))
    return "no_grad()" if makes_floats and not torch.is_grad_enabled() else ""


def _embedding_options(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict(zip(_EMBEDDING_OPTIONS, args, strict=False)), **kwargs}


class _Uncut(TorchFunctionMode):
    """The module without its cuts: what a graph that only knows values would be differentiated to.

    `padded` are the ids of tables whose padding a graph does know.
    """

    def __init__(self, padded: set[int]) -> None:
        super().__init__()
        self.padded = padded

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _CUTS:
            return args[0]
        with torch.enable_grad():
            if func is functional.embedding:
                options = _embedding_options(args, kwargs)
                if id(options["weight"]) not in self.padded:
                    options |= {"padding_idx": None, "scale_grad_by_freq": False}
                return func(**options)
            return func(*args, **kwargs)
