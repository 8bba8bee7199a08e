"""Binds the batch: after this every input has a static shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx

from tilegrad.errors import UserError
from tilegrad.frontend.onnx_values import dtype_of, element_type_name, refuse_huge
from tilegrad.frontend.weights import Array, true_inputs
from tilegrad.recipe import LARGEST_COUNT


@dataclass(frozen=True)
class Bound:
    """`rebatched_from` is the fixed batch that another one replaced."""

    model: onnx.ModelProto
    batch: int
    rebatched_from: int | None = None


def bind_batch(model: onnx.ModelProto, arrays: Mapping[str, Array], batch: int | None) -> Bound:
    """A free first dimension becomes the batch (1 unless asked for); a fixed one is replaced only if asked for."""
    if batch is not None and batch < 1:
        raise UserError("the batch cannot be bound", stage="import", expected="1 or more", got=str(batch))
    result = onnx.ModelProto()
    result.CopyFrom(model)
    inputs = true_inputs(result, arrays)
    for value in inputs:
        _check_input(value)
        _check_extents(value, rebinds=batch is not None)
    fixed = [_first(value).dim_value for value in inputs if _has_dims(value) and _is_fixed(_first(value))]
    wanted = batch if batch is not None else 1
    rebatched_from = None
    free = [value for value in inputs if _has_dims(value) and not _is_fixed(_first(value))]
    for value in free:
        _first(value).dim_value = wanted
    if batch is not None and not free and fixed and fixed[0] != batch:
        rebatched_from = fixed[0]
        for value in inputs:
            if _has_dims(value) and _first(value).dim_value == rebatched_from:
                _first(value).dim_value = batch
        _forget_shapes(result)
    for value in inputs:
        _check_bound(value)
    bound = wanted if free or rebatched_from is not None else (fixed[0] if fixed else wanted)
    return Bound(result, bound, rebatched_from)


def _check_extents(value: onnx.ValueInfoProto, *, rebinds: bool) -> None:
    """Before a batch is bound: it would take the place of a first dimension that means nothing. Where the model is
    taken as it is, a tensor may be empty."""
    shape = [dim.dim_value if _is_fixed(dim) else None for dim in value.type.tensor_type.shape.dim]
    for position, extent in enumerate(shape):
        lowest = 1 if position == 0 and rebinds else 0
        if extent is None or lowest <= extent <= LARGEST_COUNT:
            continue
        word = "negative" if extent < 0 else "empty" if extent == 0 else "huge"
        raise UserError(
            f"the {'batch' if position == 0 else 'shape'} of input '{value.name}' is {word}",
            stage="import",
            expected=f"{lowest} to {LARGEST_COUNT} in dimension {position}, or a name",
            got=str(["?" if extent is None else extent for extent in shape]).replace("'", ""),
            hint="export the model with a free batch dimension (dynamic_axes in torch.onnx.export)"
            if position == 0
            else None,
        )


def _has_dims(value: onnx.ValueInfoProto) -> bool:
    return len(value.type.tensor_type.shape.dim) > 0


def _first(value: onnx.ValueInfoProto) -> Any:
    """The first dimension, which can be assigned to."""
    return value.type.tensor_type.shape.dim[0]


def _is_fixed(dim: Any) -> bool:
    return bool(dim.WhichOneof("value") == "dim_value")


def _check_input(value: onnx.ValueInfoProto) -> None:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise UserError(
            f"input '{value.name}' is not a tensor",
            stage="import",
            got=(kind or "no type").removesuffix("_type").replace("_", " "),
        )
    tensor = value.type.tensor_type
    if dtype_of(tensor.elem_type) is None:
        name = element_type_name(tensor.elem_type)
        raise UserError(
            f"input '{value.name}' is of element type {name}",
            stage="import",
            expected="f32, an integer type or bool",
            got=name,
            hint="export the model in float32 (module.float() in PyTorch)" if "float" in name else None,
        )
    if not tensor.HasField("shape"):
        raise UserError(
            f"input '{value.name}' has no shape",
            stage="import",
            hint="fix it with onnx.tools.update_model_dims or export the model with an example input",
        )


def _check_bound(value: onnx.ValueInfoProto) -> None:
    dims = value.type.tensor_type.shape.dim
    free = [
        f"dimension {position}" + (f" ('{dim.dim_param}')" if dim.dim_param else "")
        for position, dim in enumerate(dims)
        if not _is_fixed(dim)
    ]
    if free:
        raise UserError(
            f"input '{value.name}' has free dimensions besides the batch",
            stage="import",
            expected="fixed dimensions",
            got=", ".join(free),
            hint=f"python -m onnxruntime.tools.make_dynamic_shape_fixed --input_name {value.name} "
            f"--input_shape {','.join(str(d.dim_value) if _is_fixed(d) else 'N' for d in dims)} MODEL FIXED_MODEL",
        )
    shape = tuple(dim.dim_value for dim in dims)
    refuse_huge(shape, f"input '{value.name}'")


def _forget_shapes(model: onnx.ModelProto) -> None:
    """What the model declares is about the old batch."""
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
