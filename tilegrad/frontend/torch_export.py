"""PyTorch's two exporters, with a module's parameters and buffers as inputs of the graph.

An exporter that sees weights as constants merges those of equal content, transposes them, folds BatchNormalization into
them and renames them. One that sees inputs cannot, so every tensor of the module reaches the graph as it is, once.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional

from tilegrad.frontend.torch_facts import Exporter

OPSET = 17

_SCOPE = "tg_module"
_TENSOR = "tg.tensor."


class _WithTensorsAsInputs(nn.Module):
    """A module whose parameters and buffers are its last arguments.

    For TorchScript the module is a registered part, because that names its nodes; for `torch.export` it is hidden,
    because registered tensors would be lifted a second time.
    """

    def __init__(self, module: nn.Module, names: Sequence[str], *, is_registered: bool) -> None:
        super().__init__()
        self.names = tuple(names)
        self.hidden = (module,)
        if is_registered:
            self.add_module(_SCOPE, module)

    def forward(self, *arguments: Tensor) -> Any:
        count = len(arguments) - len(self.names)
        tensors = dict(zip(self.names, arguments[count:], strict=True))
        with swapped(self.hidden[0], tensors):
            return self.hidden[0](*arguments[:count])


@contextlib.contextmanager
def swapped(module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """The module with other tensors in the place of its own, under every name that they have."""
    replacements: list[tuple[dict[str, Any], str, Tensor]] = []
    by_identity = {id(tensor_named(module, name)): tensor for name, tensor in tensors.items()}
    for part in module.modules():
        kinds: tuple[Any, ...] = (part._parameters, part._buffers)
        for slots in kinds:
            for leaf, own in slots.items():
                if own is not None and id(own) in by_identity:
                    replacements.append((slots, leaf, own))
    try:
        for slots, leaf, own in replacements:
            slots[leaf] = by_identity[id(own)]
        yield
    finally:
        for slots, leaf, own in replacements:
            slots[leaf] = own


def tensor_named(module: nn.Module, name: str) -> Tensor:
    """A parameter or buffer by its dotted name."""
    owner, _, leaf = name.rpartition(".")
    part = module.get_submodule(owner)
    found: Tensor | None = part._parameters.get(leaf)
    found = part._buffers.get(leaf) if found is None else found
    if found is None:
        raise KeyError(name)
    return found


def export(
    exporter: Exporter, module: nn.Module, inputs: Sequence[Tensor], names: Sequence[str]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """The module as ONNX, and which graph input stands for which of the tensors `names`.

    Nothing but the module's own tensors is left behind changed: neither random numbers nor settings nor files.
    """
    tensors = [tensor_named(module, name).detach() for name in names]
    inside = [f"{_TENSOR}{i}" for i in range(len(names))]
    arguments = (*inputs, *tensors)
    data_names = [f"input{i}" if i else "input" for i in range(len(inputs))]
    with _undisturbed():
        if exporter == "torchscript":
            model = _torchscript(module, arguments, names, [*data_names, *inside], len(inputs))
        else:
            with _attention_that_drops():
                model = _dynamo(module, arguments, names, [*data_names, *inside], len(inputs))
    return model, dict(zip(inside, names, strict=True))


def _torchscript(
    module: nn.Module, arguments: tuple[Tensor, ...], names: Sequence[str], input_names: list[str], count: int
) -> onnx.ModelProto:
    axes = {name: {0: "batch"} for name, value in zip(input_names[:count], arguments, strict=False) if value.dim()}
    buffer: Any = io.BytesIO()
    torch.onnx.export(
        _wrapped(module, names, is_registered=True),
        arguments,
        buffer,
        dynamo=False,
        opset_version=OPSET,
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
        input_names=input_names,
        output_names=["output"],
        dynamic_axes={**axes, "output": {0: "batch"}},
    )
    return _without_scope(onnx.load_from_string(buffer.getvalue()))


def _wrapped(module: nn.Module, names: Sequence[str], *, is_registered: bool) -> nn.Module:
    wrapper = _WithTensorsAsInputs(module, names, is_registered=is_registered)
    wrapper.training = False  # of the wrapper alone: its parts keep their modes
    return wrapper


def _dynamo(
    module: nn.Module, arguments: tuple[Tensor, ...], names: Sequence[str], input_names: list[str], count: int
) -> onnx.ModelProto:
    batch = torch.export.Dim("batch", min=1)
    shapes = [({0: batch} if position < count and value.dim() else None) for position, value in enumerate(arguments)]
    program: Any = torch.onnx.export(
        _wrapped(module, names, is_registered=False),
        arguments,
        dynamo=True,
        input_names=input_names,
        output_names=["output"],
        dynamic_shapes=(tuple(shapes),),
        verbose=False,
    )
    model = onnx.ModelProto()
    model.CopyFrom(program.model_proto)
    return model


def _without_scope(model: onnx.ModelProto) -> onnx.ModelProto:
    """Names as if the module had been exported itself."""

    def shortened(name: str) -> str:
        return name.replace(f"/{_SCOPE}/", "/").replace(f"{_SCOPE}.", "") if _SCOPE in name else name

    for node in model.graph.node:
        node.name = shortened(node.name)
    rename_values(model.graph, shortened)
    return model


def rename_values(graph: onnx.GraphProto, renamed: Callable[[str], str]) -> None:
    """Renames values in place, in subgraphs too."""
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = renamed(value.name)
    for node in graph.node:
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                names[position] = renamed(name)
        for attribute in node.attribute:
            for inner in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                rename_values(inner, renamed)


@contextlib.contextmanager
def _attention_that_drops() -> Iterator[None]:
    """The newer exporter forgets attention's dropout; written out in small operators it does not."""
    original = functional.scaled_dot_product_attention

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        if dropout_p == 0.0 or is_causal or options.get("enable_gqa"):
            return original(query, key, value, attn_mask, dropout_p, is_causal, **options)
        scale = options.get("scale") or query.shape[-1] ** -0.5
        scores = (query * scale) @ key.transpose(-2, -1)
        if attn_mask is not None:
            is_kept = attn_mask.dtype is torch.bool
            scores = scores.masked_fill(~attn_mask, float("-inf")) if is_kept else scores + attn_mask
        return functional.dropout(torch.softmax(scores, -1), dropout_p, True) @ value

    functional.scaled_dot_product_attention = attention  # type: ignore[assignment]
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = original


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """No trace of an export: random numbers, warnings, logs, the fast path of attention and temporary files."""
    fast = torch.backends.mha.get_fastpath_enabled()
    level = logging.root.manager.disable
    says = torch._C._jit_onnx_log
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng())
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        stack.enter_context(torch.no_grad())
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
        torch.backends.mha.set_fastpath_enabled(False)
        torch._C._jit_onnx_log = lambda *_: None  # a failed export would print its whole graph, past sys.stdout
        try:
            yield
        finally:
            torch._C._jit_onnx_log = says
            torch.backends.mha.set_fastpath_enabled(fast)
            logging.disable(level)
