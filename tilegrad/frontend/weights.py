"""Large initializers travel apart from the model, so that ONNX's C++ passes do not copy them again and again."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tilegrad.errors import UserError
from tilegrad.frontend.onnx_values import to_array

Array = npt.NDArray[np.generic]
Arrays = dict[str, Array]

SMALL_ELEMENTS = 256
"""Initializers up to this size stay in the model: shapes and axes are among them, and inference reads those."""

_NARROWED = (TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def take_initializers(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Arrays]:
    """The model with its large initializers turned into typed inputs, and all initializers as arrays."""
    graph = model.graph
    if graph.sparse_initializer:
        name = graph.sparse_initializer[0].values.name
        raise UserError(f"initializer '{name}' is sparse", stage="import", hint="store it as a dense tensor")
    arrays: Arrays = {}
    for tensor in graph.initializer:
        if not tensor.name or tensor.name in arrays:
            raise UserError(f"two initializers are called '{tensor.name}'", stage="import")
        arrays[tensor.name] = to_array(tensor, f"initializer '{tensor.name}'")
    light = onnx.ModelProto()
    for field, value in model.ListFields():
        if field.name != "graph":
            _assign(light, field.name, value)
    for field, value in graph.ListFields():
        if field.name not in ("initializer", "input", "quantization_annotation"):
            _assign(light.graph, field.name, value)
    # Before IR version 4 every initializer was also listed as an input; the list of true inputs is what remains.
    light.graph.input.extend(value for value in graph.input if value.name not in arrays)
    return with_initializers(light, arrays, limit=SMALL_ELEMENTS), arrays


def _assign(message: onnx.ModelProto | onnx.GraphProto, name: str, value: object) -> None:
    if isinstance(value, str | int | bytes):
        setattr(message, name, value)
    else:
        getattr(message, name).MergeFrom(value)


def with_initializers(model: onnx.ModelProto, arrays: Mapping[str, Array], limit: int | None = None) -> onnx.ModelProto:
    """A copy whose initializers are these; with a limit, larger ones become inputs."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.initializer[:]
    kept = [value for value in result.graph.input if value.name not in arrays]
    del result.graph.input[:]
    result.graph.input.extend(kept)
    for name, array in arrays.items():
        if limit is None or array.size <= limit:
            result.graph.initializer.append(numpy_helper.from_array(array, name))
        else:
            element_type = int(helper.np_dtype_to_tensor_dtype(array.dtype))
            result.graph.input.append(helper.make_tensor_value_info(name, element_type, array.shape))
    return result


def true_inputs(model: onnx.ModelProto, arrays: Mapping[str, Array]) -> list[onnx.ValueInfoProto]:
    """The inputs that a caller feeds."""
    return [value for value in model.graph.input if value.name not in arrays]


def narrow_floats(nodes: Iterable[onnx.NodeProto], arrays: Arrays) -> tuple[Arrays, tuple[str, ...]]:
    """float64 and float16 initializers that the model itself casts to float32 are stored as float32 at once.

    Otherwise a weight that happens to be stored in another precision would be folded away and could not train.
    """
    casts: dict[str, bool] = {}
    for node in nodes:
        to_float = node.op_type == "Cast" and any(a.name == "to" and a.i == TensorProto.FLOAT for a in node.attribute)
        for name in node.input:
            casts[name] = casts.get(name, True) and to_float
    narrowed: Arrays = {}
    notes = []
    for name, array in arrays.items():
        if int(helper.np_dtype_to_tensor_dtype(array.dtype)) in _NARROWED and casts.get(name, False):
            narrowed[name] = array.astype(np.float32)
            notes.append(f"initializer '{name}' is {array.dtype} and cast to f32 in the model; stored as f32")
        else:
            narrowed[name] = array
    return narrowed, tuple(notes)


def refuse_bad_numbers(arrays: Mapping[str, Array], parameters: Container[str]) -> None:
    """Nothing good comes of training from NaN. Infinities are all right in a mask, but not in a parameter."""
    for name, array in arrays.items():
        if array.dtype != np.float32:
            continue
        for what, bad in (("NaN", np.isnan(array)), ("infinities", np.isinf(array))):
            if bad.any() and (what == "NaN" or name in parameters):
                where = [int(i) for i in np.unravel_index(int(np.argmax(bad)), array.shape)]
                raise UserError(
                    f"initializer '{name}' holds {what}",
                    stage="import",
                    got=f"{int(bad.sum())} of {array.size} elements, the first at {where}",
                )
