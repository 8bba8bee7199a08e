"""Operators that are others where types and places are known: rewritten into what can be differentiated.

A ScatterND that puts constants at constant places is a Where: so a bias of which a part is zeroed can be trained. A
GatherND of whole rows is a Gather, a CastLike is a Cast.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilegrad.frontend.fold import Propagation
from tilegrad.frontend.onnx_values import static_shape
from tilegrad.frontend.weights import Array, Arrays

_REWRITTEN = ("ScatterND", "GatherND", "CastLike")
MAX_ELEMENTS = 1 << 22
"""A larger mask is not worth its bytes."""


def rewrite_operators(model: onnx.ModelProto, arrays: Arrays) -> onnx.ModelProto:
    """Masks and values become Constant nodes: what the importer made is no parameter."""
    if not any(node.op_type in _REWRITTEN for node in model.graph.node):
        return model
    known = Propagation.start(model, arrays)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        made = _rewritten(node, known, arrays)
        for each in made:
            known.step(each)
        nodes += made
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    return result


def _rewritten(node: onnx.NodeProto, known: Propagation, arrays: Arrays) -> list[onnx.NodeProto]:
    if node.op_type == "CastLike":
        like = known.types.get(node.input[1])
        if like is None or not like.HasField("tensor_type"):
            return [node]
        to = like.tensor_type.elem_type
        return [helper.make_node("Cast", [node.input[0]], list(node.output), name=node.name, to=to)]
    shape = static_shape(known.types[node.input[0]]) if node.input and node.input[0] in known.types else None
    if shape is None or int(np.prod(shape)) > MAX_ELEMENTS:
        return [node]
    if node.op_type == "ScatterND":
        return _where(node, shape, known, arrays)
    return _gather(node, known) if node.op_type == "GatherND" else [node]


def _gather(node: onnx.NodeProto, known: Propagation) -> list[onnx.NodeProto]:
    places = known.constants.get(node.input[1])
    has_batch = any(attribute.name == "batch_dims" and attribute.i for attribute in node.attribute)
    if not isinstance(places, np.ndarray) or has_batch or not places.ndim or places.shape[-1] != 1:
        return [node]
    rows = f"{node.output[0]}.rows"
    gather = helper.make_node("Gather", [node.input[0], rows], list(node.output), name=node.name, axis=0)
    return [_constant(rows, places[..., 0]), gather]


def _where(node: onnx.NodeProto, shape: tuple[int, ...], known: Propagation, arrays: Arrays) -> list[onnx.NodeProto]:
    data, indices, updates = node.input
    places, values = known.constants.get(indices), known.constants.get(updates)
    is_plain = not any(a.name == "reduction" and a.s not in (b"", b"none") for a in node.attribute)
    # What is put into another initializer is a constant beside it; what is put into an activation might be learned.
    might_train = updates in known.opaque and data not in arrays
    if not isinstance(places, np.ndarray) or not isinstance(values, np.ndarray) or not is_plain or might_train:
        return [node]
    scattered = _scattered(shape, places, values)
    if scattered is None:
        return [node]
    names = [f"{node.output[0]}.{word}" for word in ("mask", "values")]
    constants = [_constant(name, array) for name, array in zip(names, scattered, strict=True)]
    return [*constants, helper.make_node("Where", [*names, data], list(node.output), name=node.name)]


def _constant(name: str, array: Array) -> onnx.NodeProto:
    return helper.make_node(
        "Constant", [], [name], name=name, value=numpy_helper.from_array(np.array(array, order="C"))
    )


def _scattered(shape: tuple[int, ...], places: Array, values: Array) -> tuple[Array, Array] | None:
    """Where something is put, and what; None where the places are not in the tensor."""
    mask = np.zeros(shape, np.bool_)
    dense = np.zeros(shape, values.dtype)
    where = tuple(np.moveaxis(places.astype(np.int64), -1, 0))
    try:
        mask[where] = True
        dense[where] = values
    except (IndexError, ValueError):
        return None
    return mask, dense
