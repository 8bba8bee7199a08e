"""Operands that are constants of the C, in models that compute them: said in operators whose operands are tensors.

A learned Clip bound (`torch.clamp(x, 0, self.alpha)`) or Pad value carries a gradient like any other operand.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tilegrad.frontend.fold import Propagation
from tilegrad.frontend.onnx_values import array_type, tensor_type
from tilegrad.ir.types import DType


def taken_apart(node: onnx.NodeProto, name: str, known: Propagation) -> list[onnx.NodeProto]:
    """The nodes that stand for this one, or none where it can stay. New constants go into `known`."""
    x = tensor_type(known.types.get(node.input[0])) if node.input else None
    if x is None or x.dtype is not DType.F32:
        return []
    if node.op_type == "Clip":
        return _clip(node, name, known)
    if node.op_type == "Pad":
        return _pad(node, name, known, x.shape)
    return []


def _fresh(value: str, known: Propagation) -> str:
    """A value name that the model does not have."""
    while value in known.types or value in known.constants:
        value += "_"
    return value


def _is_computed(node: onnx.NodeProto, position: int, known: Propagation) -> bool:
    if position >= len(node.input) or not node.input[position]:
        return False
    value = node.input[position]
    return value not in known.constants or value in known.opaque


def _clip(node: onnx.NodeProto, name: str, known: Propagation) -> list[onnx.NodeProto]:
    """A constant bound stays one; a computed one is a Max or a Min, the upper bound last, as ONNX has it."""
    bounds = {1: "Max", 2: "Min"}
    if not any(_is_computed(node, position, known) for position in bounds):
        return []
    value, parts = node.input[0], []
    given = [position for position in bounds if position < len(node.input) and node.input[position]]
    for position in given:
        output = node.output[0] if position == given[-1] else _fresh(f"{node.output[0]}.bounded", known)
        bound = node.input[position]
        label = f"{name}/{bounds[position]}"
        if _is_computed(node, position, known):
            parts.append(helper.make_node(bounds[position], [value, bound], [output], name=label))
        else:
            inputs = [value, bound] if position == 1 else [value, "", bound]
            parts.append(helper.make_node("Clip", inputs, [output], name=f"{name}/Clip"))
        value = output
    return parts


def _pad(node: onnx.NodeProto, name: str, known: Propagation, shape: tuple[int, ...]) -> list[onnx.NodeProto]:
    """Padded with zeros, and the value in their place. A node whose pads are no constants stays, to be refused."""
    mode = next((attribute.s.decode() for attribute in node.attribute if attribute.name == "mode"), "constant")
    if mode != "constant" or not _is_computed(node, 2, known):
        return []
    pads, axes = _integers(node, 1, known), _integers(node, 3, known)
    axes = list(range(len(shape))) if axes is None else axes
    if pads is None or len(pads) != 2 * len(axes) or any(not -len(shape) <= axis < len(shape) for axis in axes):
        return []
    inside = np.ones(shape, bool)
    for i, axis in enumerate(axes):
        before, after = pads[i], pads[i + len(axes)]
        extent = inside.shape[axis]
        if extent + min(before, 0) + min(after, 0) < 0:
            return []
        kept = [slice(None)] * len(shape)
        kept[axis] = slice(max(-before, 0), extent - max(-after, 0))
        widths = [(0, 0)] * len(shape)
        widths[axis] = (max(before, 0), max(after, 0))
        inside = np.pad(inside[tuple(kept)], widths)
    mask, padded = (_fresh(f"{node.output[0]}.{word}", known) for word in ("inside", "padded"))
    known.constants[mask] = inside
    known.types[mask] = array_type(inside)
    inputs = [node.input[0], node.input[1], *(["", node.input[3]] if len(node.input) > 3 else [])]
    return [
        helper.make_node("Pad", inputs, [padded], name=f"{name}/Pad", mode="constant"),
        helper.make_node("Where", [mask, padded, node.input[2]], [node.output[0]], name=f"{name}/Where"),
    ]


def _integers(node: onnx.NodeProto, position: int, known: Propagation) -> list[int] | None:
    if position >= len(node.input) or not node.input[position] or _is_computed(node, position, known):
        return None
    return [int(value) for value in np.asarray(known.constants[node.input[position]]).reshape(-1)]
