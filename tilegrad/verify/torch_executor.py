"""Runs an ONNX graph node by node in PyTorch, so that autograd can differentiate it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.inliner
import torch
from torch import Tensor

from tilegrad.errors import UserError
from tilegrad.verify.reference import Array
from tilegrad.verify.statistics import with_running_statistics
from tilegrad.verify.torch_forms import FORMS
from tilegrad.verify.torch_ops import INFERENCE, MODAL, TABLE, Call, Function, Mode
from tilegrad.verify.torch_ops.base import FLOAT_TYPES, decode_attributes, to_tensor
from tilegrad.verify.torch_stored import SavedRounding

FLOAT_DTYPES = {"float32": torch.float32, "float64": torch.float64}
STANDARD_DOMAINS = ("", "ai.onnx")
_SHAPES = ("Shape", "Size")  # which do not depend on what values are


@contextmanager
def one_thread() -> Iterator[None]:
    """These graphs are small: on a busy machine PyTorch's threads cost ten times what they bring."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class UnsupportedByReferenceError(UserError):
    """The PyTorch reference lacks an operator the model uses; another reference has to serve."""


@dataclass(frozen=True)
class Step:
    call: Call
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class TorchModel:
    """An ONNX graph as a differentiable function of its initializers and inputs, in one float type.

    `tensors` holds every initializer. Whoever trains marks some of them `requires_grad`; BatchNormalization's running
    statistics are updated in place there.
    """

    def __init__(self, model: onnx.ModelProto, dtype: str = "float64") -> None:
        if dtype not in FLOAT_DTYPES:
            raise UserError(f"the reference cannot run in '{dtype}'", stage="verify", expected="float32|float64")
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        self.float_type = FLOAT_DTYPES[dtype]
        self.opset = next((item.version for item in model.opset_import if item.domain in STANDARD_DOMAINS), 1)
        _refuse_unsupported(model.graph.node)
        self.tensors = {proto.name: to_tensor(proto, self.float_type) for proto in model.graph.initializer}
        running = with_running_statistics(model.graph.node, self.tensors)
        self.steps = tuple(self._decode(node, running) for node in model.graph.node)
        self.input_types: dict[str, int] = {
            value.name: value.type.tensor_type.elem_type
            for value in model.graph.input
            if value.name not in self.tensors
        }
        self.outputs: tuple[str, ...] = tuple(value.name for value in model.graph.output)
        self.statistics = tuple(
            dict.fromkeys(
                name
                for step in self.steps
                if step.call.op_type == "BatchNormalization"
                for name in step.inputs[3:5]
                if name in self.tensors
            )
        )

    def _decode(self, node: onnx.NodeProto, running: frozenset[str]) -> Step:
        call = Call(
            op_type=node.op_type,
            name=node.name or (node.output[0] if node.output else node.op_type),
            opset=self.opset,
            attributes=decode_attributes(node, self.float_type),
            output_count=max((index + 1 for index, name in enumerate(node.output) if name), default=1),
            float_type=self.float_type,
            has_running_statistics=bool(node.output) and node.output[0] in running,
        )
        return Step(call, tuple(node.input), tuple(node.output))

    def to_tensor(self, array: Array, onnx_type: int) -> Tensor:
        """A graph input: floats take the reference's float type, the rest its declared one."""
        if onnx_type in FLOAT_TYPES:
            return torch.tensor(np.asarray(array), dtype=self.float_type)
        return torch.tensor(np.asarray(array).astype(onnx.helper.tensor_dtype_to_np_dtype(onnx_type)))

    def single_input(self) -> str:
        if len(self.input_types) != 1:
            raise UserError(
                "the model has more than one input; a recipe feeds one",
                stage="verify",
                expected="1 graph input",
                got=", ".join(self.input_types) or "none",
            )
        return next(iter(self.input_types))

    def forward(
        self,
        feeds: Mapping[str, Tensor],
        mode: Mode = INFERENCE,
        overrides: Mapping[str, Tensor] | None = None,
        rounding: SavedRounding | None = None,
    ) -> dict[str, Tensor]:
        """Every graph output by name; `overrides` replace initializers for this pass only."""
        values: dict[str, Tensor] = {**self.tensors, **(overrides or {}), **feeds}
        fed = set(feeds)
        for index, step in enumerate(self.steps):
            if rounding is None or (fed.intersection(step.inputs) and step.call.op_type not in _SHAPES):
                self.run_step(index, values, mode, FORMS if rounding is not None else {})
                fed.update(step.outputs)
                continue
            with rounding.paused():
                self.run_step(index, values, mode)
            rounding.leave(values[name] for name in step.outputs if name in values)
        return {name: values[name] for name in self.outputs}

    def run_step(
        self, index: int, values: dict[str, Tensor], mode: Mode = INFERENCE, forms: Mapping[str, Function] | None = None
    ) -> None:
        """One node: reads its inputs from `values` and leaves its outputs there."""
        step = self.steps[index]
        for name, value in zip(step.outputs, _apply(step, mode, values, forms or {}), strict=False):
            if name:
                values[name] = value


def _apply(
    step: Step, mode: Mode, values: Mapping[str, Tensor], forms: Mapping[str, Function]
) -> Sequence[Tensor]:
    call = step.call
    try:
        arguments = [values[name] if name else None for name in step.inputs]
    except KeyError as missing:
        raise UserError(f"tensor {missing} has no producer", stage="verify", node=call.name) from missing
    try:
        if call.op_type in MODAL:
            result = MODAL[call.op_type](call, mode, *arguments)
        else:
            result = forms.get(call.op_type, TABLE[call.op_type])(call, *arguments)
    except (RuntimeError, IndexError, TypeError, ValueError) as problem:
        shapes = ", ".join("-" if value is None else str(tuple(value.shape)) for value in arguments)
        raise UserError(
            f"PyTorch refuses {call.op_type}: {problem}", stage="verify", node=call.name, got=f"inputs {shapes}"
        ) from problem
    return result if isinstance(result, tuple) else (result,)


def _refuse_unsupported(nodes: Iterable[onnx.NodeProto]) -> None:
    missing: dict[str, list[str]] = {}
    for node in nodes:
        if node.domain not in STANDARD_DOMAINS or (node.op_type not in TABLE and node.op_type not in MODAL):
            kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            missing.setdefault(kind, []).append(node.name or node.output[0])
    if missing:
        listed = "; ".join(f"{kind} ({', '.join(names)})" for kind, names in sorted(missing.items()))
        raise UnsupportedByReferenceError(
            f"the PyTorch reference does not know: {listed}",
            stage="verify",
            hint="verify with finite differences instead (tilegrad gradcheck)",
        )


def evaluate(
    model: onnx.ModelProto, feeds: Mapping[str, Array], dtype: str = "float64", mode: Mode = INFERENCE
) -> dict[str, Array]:
    """The graph's outputs for named inputs."""
    runner = TorchModel(model, dtype)
    tensors = {name: runner.to_tensor(feeds[name], kind) for name, kind in runner.input_types.items()}
    with torch.no_grad():
        results = runner.forward(tensors, mode)
    return {name: value.numpy() for name, value in results.items()}


def vector_jacobian(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    cotangents: Mapping[str, Array],
    wrt: Sequence[str],
    *,
    dtype: str = "float64",
    mode: Mode = INFERENCE,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """(outputs, gradients): autograd's gradient of Σ cotangent·output with respect to inputs or initializers `wrt`."""
    runner = TorchModel(model, dtype)
    tensors = {name: runner.to_tensor(feeds[name], kind) for name, kind in runner.input_types.items()}
    leaves = {name: {**runner.tensors, **tensors}[name].requires_grad_(True) for name in wrt}
    outputs = runner.forward(tensors, mode)
    total = sum(
        (outputs[name] * torch.tensor(array, dtype=runner.float_type)).sum() for name, array in cotangents.items()
    )
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)  # type: ignore[arg-type]
    gradients = {
        name: np.zeros(tuple(leaf.shape)) if gradient is None else gradient.numpy()
        for (name, leaf), gradient in zip(leaves.items(), found, strict=True)
    }
    return {name: value.detach().numpy() for name, value in outputs.items()}, gradients
