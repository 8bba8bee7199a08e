"""What each input of a training graph is, by its role: data, weight, gradient buffer or reset flag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx

from tilegrad.errors import UserError
from tilegrad.frontend.given.files import GivenFiles
from tilegrad.frontend.given.stored import positional_data_count
from tilegrad.ops import registry

ACCUMULATE = "InPlaceAccumulatorV2"
_BUFFER = "_grad.accumulation.buffer"
_GRADIENT = "_grad"


@dataclass(frozen=True)
class Inner:
    """An optimizer step inside the training graph."""

    parameter: str
    gradient: str
    learning_rate: float


@dataclass(frozen=True)
class Roles:
    """`buffers` is each parameter's. `frozen` are weights that are fed and do not train."""

    data: tuple[str, ...]
    parameters: tuple[str, ...]
    frozen: tuple[str, ...]
    buffers: dict[str, str] = field(default_factory=dict)
    flag: str = ""
    inner: tuple[Inner, ...] = ()


def roles_of(files: GivenFiles) -> Roles:
    graph = files.training.graph
    stored = {tensor.name for tensor in graph.initializer}
    inputs = [value.name for value in graph.input if value.name not in stored]
    known = {*inputs, *stored, *(name for node in graph.node for name in node.output)}
    accumulators = [node for node in graph.node if node.op_type == ACCUMULATE]
    buffers = {_owner(node, known): node.input[0] for node in accumulators}
    flags = {node.input[2] for node in accumulators if len(node.input) > 2 and node.input[2]}
    if len(flags) > 1:
        raise UserError(
            "the accumulators have several reset flags", stage="import", expected="one", got=", ".join(sorted(flags))
        )
    inner = tuple(_inner(node, known) for node in graph.node if node.op_type == "SGD" and len(node.input) >= 2)
    parameters = [*buffers, *(each.parameter for each in inner if each.parameter not in buffers)]
    if not parameters:
        raise UserError(
            f"'{files.place}' is a training graph, but it trains nothing",
            stage="import",
            expected=f"{ACCUMULATE} or SGD nodes",
            got=", ".join(sorted({node.op_type for node in graph.node})),
        )
    order = {name: i for i, name in enumerate((*inputs, *stored))}
    parameters.sort(key=lambda name: order.get(name, 0))
    taken = {*parameters, *buffers.values(), *flags}
    rest = [name for name in inputs if name not in taken]
    frozen = _frozen(files, inputs, rest)
    data = tuple(name for name in rest if name not in frozen)
    return Roles(data, tuple(parameters), tuple(frozen), buffers, next(iter(flags), ""), inner)


def _owner(node: onnx.NodeProto, known: set[str]) -> str:
    """The parameter that an accumulator is of, by the names of its buffer or of its gradient."""
    for name, suffix in ((node.input[0], _BUFFER), (node.input[1], _GRADIENT)):
        owner = str(name).removesuffix(suffix)
        if owner != name and owner in known:
            return owner
    raise UserError(
        f"{ACCUMULATE}: nothing says whose gradient '{node.input[1]}' is",
        stage="import",
        node=node.name or node.output[0],
        expected=f"a buffer called PARAMETER{_BUFFER}, of a parameter that exists",
        got=f"'{node.input[0]}'",
    )


def _inner(node: onnx.NodeProto, known: set[str]) -> Inner:
    for name in node.input[:2]:
        if name not in known:
            raise UserError(
                f"SGD updates a tensor that does not exist: '{name}'", stage="import", node=node.name or node.output[0]
            )
    rate = next((attribute.f for attribute in node.attribute if attribute.name == "lr"), 0.01)
    return Inner(node.input[0], node.input[1], float(rate))


def _frozen(files: GivenFiles, inputs: Sequence[str], rest: Sequence[str]) -> list[str]:
    """By the checkpoint; else by what changes from mini-batch to mini-batch; else by how the input is used."""
    if files.checkpoint is not None:
        return [name for name in rest if name in files.checkpoint.frozen]
    count = positional_data_count(files)
    if count is not None:
        return [name for name in rest if inputs.index(name) >= count]
    named = files.arrays.get("inputs", {})
    if any(name in named for name in rest):
        return [name for name in rest if name not in named]
    held = files.arrays.get("reference", {})
    fed = len([name for name in held if name not in ("losses", "eval_loss")])
    if fed:
        return list(rest[fed:])
    return [name for name in rest if _is_weight(files.training, name)]


def _is_weight(model: onnx.ModelProto, name: str) -> bool:
    """By its first use, which is in the forward pass. Data has a free batch, or stands where data does."""
    value = next(each for each in model.graph.input if each.name == name)
    dims = value.type.tensor_type.shape.dim
    if value.type.tensor_type.elem_type != onnx.TensorProto.FLOAT or any(dim.dim_param for dim in dims):
        return False
    for node in model.graph.node:
        if name in node.input:
            operator, position = registry.find(node.op_type), list(node.input).index(name)
            if operator is None or (node.op_type in ("MatMul", "FusedMatMul", "Gemm") and position == 0):
                return False
            return position in operator.parameter_inputs
    return False
