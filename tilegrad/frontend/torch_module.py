"""A torch.nn.Module as an ONNX model whose initializers are the module's tensors, one to one, under their own names.

PyTorch is an optional extra; it is imported from here and `torch_export` alone.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper

from tilegrad.build.torch_cache import settle_torch
from tilegrad.errors import InternalError, UserError
from tilegrad.frontend.torch_facts import EXPORTERS, Exporter, GradientFacts, TorchModule

if TYPE_CHECKING:
    from torch import Tensor, nn


def export_module(module: Any, example: Any, exporter: str | None = None) -> tuple[onnx.ModelProto, TorchModule]:
    """Through PyTorch's own exporters, with a free batch dimension. The module itself is not touched.

    Without `exporter`, TorchScript's is tried first: it is faster by far and names nodes after the module's parts.
    The model is to be trained, so Dropout is exported in training mode; whatever else behaves differently in training
    (BatchNorm, stochastic depth) is exported as it evaluates, and the recipe's policy says what BatchNorm does.
    """
    settle_torch()
    try:
        import torch
    except ImportError as error:
        raise UserError(
            "a torch.nn.Module needs PyTorch to be exported", stage="import", hint="pip install 'tilegrad[torch]'"
        ) from error
    if exporter is not None and exporter not in EXPORTERS:
        raise UserError(f"no exporter '{exporter}'", stage="import", expected=" or ".join(EXPORTERS), got=str(exporter))
    inputs = _example_inputs(example, torch)
    from tilegrad.frontend.torch_dropout import training_parts
    from tilegrad.frontend.torch_gradients import gradient_facts

    names = _names(module)
    private, traced = private_copy(module), private_copy(module)
    parts = training_parts(private_copy(module), inputs)
    gradients = gradient_facts(private_copy(module), inputs)
    for each in (private, traced):
        for name, part in each.named_modules():
            part.training = name in parts.dropping
    wanted = _exporters(module, exporter, gradients)
    model = _exported(traced, inputs, [*names.parameters, *names.buffers], wanted)
    return model.proto, TorchModule(
        private,
        model.exporter,
        {name: _tensor(private, name).requires_grad for name in names.parameters},
        tuple(name for name, _ in module.named_buffers()),
        names.aliases,
        model.inputs,
        tuple(name for name in names.parameters if name not in model.reached),
        parts.left_out,
        _odd_statistics(private),
        gradients,
    )


def _exporters(module: nn.Module, exporter: str | None, gradients: GradientFacts) -> tuple[Exporter, ...]:
    """TorchScript's traces: a decision by values is exported as it fell for the example, for ever."""
    if gradients.changing:
        raise UserError(
            f"the forward of {type(module).__name__} changes tensors of the module as it evaluates",
            stage="import",
            expected="tensors that change in training alone",
            got=", ".join(gradients.changing[:8]),
            hint="a graph has no state: give what changes as an input, or freeze it (Embedding: no max_norm)",
        )
    wanted = tuple(name for name in EXPORTERS if exporter in (None, name))
    if not gradients.deciding:
        return wanted
    if wanted == ("torchscript",) or gradients.has_lost_parameters:
        raise UserError(
            f"{type(module).__name__} decides by values, which a trace cannot follow",
            stage="import",
            expected="a forward that is the same for all data",
            got=", ".join(gradients.deciding),
            hint="torch.where chooses by values",
        )
    return ("dynamo",)


def _odd_statistics(module: nn.Module) -> tuple[str, ...]:
    """Layers whose running statistics no BatchNormalization of ONNX can keep: policy `train` is not for them."""
    from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

    found = []
    for name, part in module.named_modules():
        if isinstance(part, _NormBase) and part.running_mean is not None:
            if not isinstance(part, _BatchNorm):
                found.append(f"'{name}' is an {type(part).__name__}")
            elif part.momentum is None:
                found.append(f"'{name}' has no momentum (a cumulative average)")
    return tuple(found)


def _example_inputs(example: Any, torch: Any) -> tuple[Tensor, ...]:
    if example is None:
        raise UserError(
            "a torch.nn.Module needs an example input",
            stage="import",
            expected="example=TENSOR, or a tuple of tensors, the batch first",
            hint="tg.load(module, example=torch.randn(1, 3, 32, 32))",
        )
    inputs = tuple(example) if isinstance(example, tuple | list) else (example,)
    if not inputs or not all(isinstance(value, torch.Tensor) for value in inputs):
        raise UserError(
            "the example input of a torch.nn.Module must be made of tensors",
            stage="import",
            expected="a tensor or a tuple of tensors",
            got=", ".join(type(value).__name__ for value in inputs) or "an empty tuple",
        )
    return tuple(value.detach().cpu().clone() for value in inputs)


def private_copy(module: nn.Module) -> nn.Module:
    """A deep copy on the CPU. Tensors that a hook computed (an old-style weight norm's weight) are copied as values."""
    import torch

    computed = {
        id(value): value.detach().clone()
        for part in module.modules()
        for value in vars(part).values()
        if isinstance(value, torch.Tensor) and not value.is_leaf
    }
    try:
        return copy.deepcopy(module, dict(computed)).cpu()
    except Exception as error:  # whatever the user's own classes raise
        raise UserError(
            f"{type(module).__name__} cannot be copied, so it cannot be loaded without being changed",
            stage="import",
            got=_first_line(error),
            hint="export it with torch.onnx.export and load the file",
        ) from error


@dataclass(frozen=True)
class _Names:
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    aliases: Mapping[str, str]


def _names(module: nn.Module) -> _Names:
    """Every tensor's first name, and further names of the same tensor."""
    from torch.nn.parameter import is_lazy

    first: dict[int, str] = {}
    aliases: dict[str, str] = {}
    parameters: list[str] = []
    buffers: list[str] = []
    for found, named in (
        (parameters, module.named_parameters(remove_duplicate=False)),
        (buffers, module.named_buffers(remove_duplicate=False)),
    ):
        for name, tensor in named:
            if is_lazy(tensor):
                raise UserError(
                    f"'{name}' has no value yet", stage="import", hint="call the module once, so that lazy layers know"
                )
            if not tensor.is_floating_point():
                continue
            if id(tensor) in first:
                aliases[name] = first[id(tensor)]
                continue
            first[id(tensor)] = name
            found.append(name)
    _refuse_shared_memory(module, parameters)
    return _Names(tuple(parameters), tuple(buffers), aliases)


def _refuse_shared_memory(module: nn.Module, parameters: Sequence[str]) -> None:
    """Two parameters over the same memory get two gradients and change together: no graph can say that."""
    owners: dict[int, str] = {}
    for name in parameters:
        tensor = _tensor(module, name)
        if not tensor.numel():
            continue
        other = owners.setdefault(tensor.data_ptr(), name)
        if other != name:
            raise UserError(
                f"the parameters '{other}' and '{name}' are two, but share their memory",
                stage="import",
                expected="one nn.Parameter under two names, or two with memory of their own",
                hint=f"assign one to the other ({name} = {other}) to tie them, or clone() to part them",
            )


def _tensor(module: nn.Module, name: str) -> Tensor:
    from tilegrad.frontend.torch_export import tensor_named

    return tensor_named(module, name)


@dataclass(frozen=True)
class _Exported:
    proto: onnx.ModelProto
    exporter: str
    inputs: tuple[str, ...]
    reached: frozenset[str]


def _exported(
    module: nn.Module, inputs: Sequence[Tensor], tensors: Sequence[str], wanted: Sequence[Exporter]
) -> _Exported:
    from tilegrad.frontend.torch_export import export

    first_error: Exception | None = None
    for name in wanted:
        try:
            model, stands_for = export(name, module, inputs, tensors)
        except Exception as error:  # noqa: BLE001 - the exporter runs the user's own forward: anything may come
            first_error = first_error or error
            continue
        return _with_tensors(module, name, model, stands_for)
    raise UserError(
        f"PyTorch could not export {type(module).__name__}",
        stage="import",
        got="" if first_error is None else _first_line(first_error),
    ) from first_error


def _with_tensors(module: nn.Module, exporter: str, model: onnx.ModelProto, stands_for: Mapping[str, str]) -> _Exported:
    """The inputs that stand for the module's tensors become initializers under the module's names."""
    from tilegrad.frontend.torch_export import rename_values

    graph = model.graph
    taken = {*stands_for.values(), *stands_for}
    new_names = dict(stands_for)

    def renamed(name: str) -> str:
        """A value of the exporter's that is called like a tensor of the module's makes way."""
        if name in stands_for.values() and name not in new_names:
            new_names[name] = next(free for i in range(len(taken) + 1) if (free := f"{name}.{i}") not in taken)
            taken.add(new_names[name])
        return new_names.get(name, name)

    missing = set(stands_for) - {value.name for value in graph.input}
    _refuse_leftovers(module, graph, stands_for)
    rename_values(graph, renamed)
    own = set(stands_for.values())
    data = [value for value in graph.input if value.name not in own]
    del graph.input[:]
    graph.input.extend(data)
    for name in stands_for.values():
        array = np.array(_tensor(module, name).detach().numpy(), order="C")  # keeps a scalar a scalar
        graph.initializer.append(numpy_helper.from_array(array, name))
    if missing - set(stands_for):
        raise InternalError("the exporter lost inputs", stage="import", got=", ".join(sorted(missing)))
    return _Exported(model, exporter, tuple(value.name for value in data), _reached(graph, own))


def _refuse_leftovers(module: nn.Module, graph: onnx.GraphProto, stands_for: Mapping[str, str]) -> None:
    """A tensor of the module's that the exporter stored beside the input that stands for it would not train."""
    own = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    read = {name for node in graph.node for name in node.input}
    left = [i.name for i in graph.initializer if i.name in own & set(stands_for.values()) and i.name in read]
    if left:
        raise InternalError("the exporter kept tensors of the module", stage="import", got=", ".join(left))
    kept = [initializer for initializer in graph.initializer if initializer.name in read]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _reached(graph: onnx.GraphProto, names: set[str]) -> frozenset[str]:
    """The tensors on which an output depends."""
    from tilegrad.frontend.fold import captured

    wanted = {value.name for value in graph.output}
    for node in reversed(graph.node):
        if any(name in wanted for name in node.output if name):
            wanted.update(filter(None, (*node.input, *captured(node))))
    return frozenset(wanted & names)


def _first_line(error: BaseException) -> str:
    """Of what it came from: exporters wrap what went wrong into advice about themselves, in colour."""
    while error.__cause__ is not None:
        error = error.__cause__
    return re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().split("\n")[0] or type(error).__name__
