"""ONNX element types, shapes and tensors, seen as ours."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tilegrad.bounds import MAX_ELEMENTS
from tilegrad.errors import UserError
from tilegrad.ir.types import COMPUTED, DType, TensorType


@cache
def _dtype_table() -> dict[int, DType]:
    table = {}
    for dtype in COMPUTED:
        table[int(helper.np_dtype_to_tensor_dtype(dtype.numpy))] = dtype
    return table


def dtype_of(element_type: int) -> DType | None:
    """Our element type for ONNX's, or None."""
    return _dtype_table().get(element_type)


@cache
def element_type_name(element_type: int) -> str:
    """As a user would write it: float64, not DOUBLE."""
    dtype = dtype_of(element_type)
    if dtype is not None:
        return str(dtype)
    if element_type not in TensorProto.DataType.values():
        return f"unknown type {element_type}"
    if element_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        return str(TensorProto.DataType.Name(element_type)).lower()
    return str(helper.tensor_dtype_to_np_dtype(element_type))


def static_shape(value_type: onnx.TypeProto) -> tuple[int, ...] | None:
    """The shape, if it is a tensor's and every dimension is a number."""
    if value_type.WhichOneof("value") != "tensor_type" or not value_type.tensor_type.HasField("shape"):
        return None
    dims = value_type.tensor_type.shape.dim
    if any(dim.WhichOneof("value") != "dim_value" or dim.dim_value < 0 for dim in dims):
        return None
    return tuple(dim.dim_value for dim in dims)


def tensor_type(value_type: onnx.TypeProto | None) -> TensorType | None:
    """Our type, or None where the shape is not static or the element type is not ours."""
    if value_type is None:
        return None
    shape = static_shape(value_type)
    if shape is None:
        return None
    dtype = dtype_of(value_type.tensor_type.elem_type)
    return None if dtype is None else TensorType(dtype, shape)


def type_proto(tensor: TensorType) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(int(helper.np_dtype_to_tensor_dtype(tensor.dtype.numpy)), tensor.shape)


def array_type(array: npt.NDArray[np.generic]) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(int(helper.np_dtype_to_tensor_dtype(array.dtype)), array.shape)


def describe_type(value_type: onnx.TypeProto) -> str:
    """`f32[1,?]`, also for what is not fully known."""
    if value_type.WhichOneof("value") != "tensor_type":
        return (value_type.WhichOneof("value") or "nothing").removesuffix("_type")
    tensor = value_type.tensor_type
    name = element_type_name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return f"{name}[…]"
    dims = [str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in tensor.shape.dim]
    return f"{name}[{','.join(dims)}]"


def to_array(tensor: onnx.TensorProto, what: str) -> npt.NDArray[np.generic]:
    """A tensor's data; `what` names it in the error if there is less data than its shape says."""
    if any(dim < 0 for dim in tensor.dims):
        raise UserError(f"{what} has a negative dimension", stage="import", got=str(list(tensor.dims)))
    refuse_huge(tuple(tensor.dims), what)
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError, KeyError, NotImplementedError, UnicodeDecodeError, OverflowError) as error:
        raise UserError(
            f"{what} cannot be read", stage="import", got=str(error).splitlines()[0], hint="is the file damaged?"
        ) from error


def refuse_huge(shape: tuple[int, ...], what: str) -> None:
    """Before anything is allocated."""
    elements = 1
    for extent in shape:
        elements *= extent
    if elements > MAX_ELEMENTS:
        raise UserError(
            f"{what} is too large", stage="import", expected=f"at most {MAX_ELEMENTS} elements", got=str(list(shape))
        )


def graph_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Every tensor in a graph and its subgraphs: initializers and attributes."""
    yield from graph.initializer
    yield from node_tensors(graph.node)


def node_tensors(nodes: Iterator[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("g"):
                yield from graph_tensors(attribute.g)
            for subgraph in attribute.graphs:
                yield from graph_tensors(subgraph)
