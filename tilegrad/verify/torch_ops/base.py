"""What an operator function is given: the node's attributes, the opset, and the float type everything runs in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
import torch
from onnx import TensorProto, numpy_helper

from tilegrad.errors import UserError
from tilegrad.verify.reference import DropoutMask

Outputs: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]
Function = Callable[..., Outputs]
ModalFunction = Callable[..., Outputs]

FLOAT_TYPES = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16})
INTEGER_TYPES: dict[int, torch.dtype] = {
    TensorProto.BOOL: torch.bool,
    TensorProto.INT8: torch.int8,
    TensorProto.INT16: torch.int16,
    TensorProto.INT32: torch.int32,
    TensorProto.INT64: torch.int64,
    TensorProto.UINT8: torch.uint8,
    TensorProto.UINT16: torch.uint16,
    TensorProto.UINT32: torch.uint32,
    TensorProto.UINT64: torch.uint64,
}


@dataclass(frozen=True)
class Mode:
    """How this forward pass behaves where training and inference differ."""

    batch_statistics: bool = False
    dropout_mask: DropoutMask | None = None
    minibatch: int = 0


INFERENCE = Mode()


@dataclass(frozen=True)
class Call:
    """One node of the graph, decoded once."""

    op_type: str
    name: str
    opset: int
    attributes: Mapping[str, Any]
    output_count: int
    float_type: torch.dtype
    has_running_statistics: bool = False

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute; ONNX's float defaults are float32 numbers, as its float attributes are."""
        if name in self.attributes:
            return self.attributes[name]
        return float(np.float32(default)) if isinstance(default, float) else default

    def torch_type(self, onnx_type: int) -> torch.dtype:
        """Every float of the model runs in the reference's own float type, whatever it was stored in."""
        if onnx_type in FLOAT_TYPES:
            return self.float_type
        if onnx_type not in INTEGER_TYPES:
            name = TensorProto.DataType.Name(onnx_type)
            raise UserError(f"the PyTorch reference has no type {name}", stage="verify", node=self.name)
        return INTEGER_TYPES[onnx_type]

    def fail(self, message: str) -> UserError:
        return UserError(f"{self.op_type}: {message}", stage="verify", node=self.name)


def integers(tensor: torch.Tensor) -> list[int]:
    """A shape-like operand as plain integers."""
    return [int(value) for value in tensor.reshape(-1).tolist()]


def axes_operand(call: Call, tensor: torch.Tensor | None, attribute: str = "axes") -> list[int] | None:
    """Axes came as an attribute in older opsets and come as an input in newer ones."""
    if tensor is not None:
        return integers(tensor)
    listed = call.get(attribute)
    return None if listed is None else [int(value) for value in listed]


def decode_attributes(node: onnx.NodeProto, float_type: torch.dtype) -> dict[str, Any]:
    decoded: dict[str, Any] = {}
    for attribute in node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode()
        elif isinstance(value, TensorProto):
            value = to_tensor(value, float_type)
        elif isinstance(value, list) and value and isinstance(value[0], bytes):
            value = [item.decode() for item in value]
        decoded[attribute.name] = value
    return decoded


def to_tensor(proto: TensorProto, float_type: torch.dtype) -> torch.Tensor:
    """An ONNX tensor as a PyTorch one; floats take the reference's float type."""
    if proto.data_type not in FLOAT_TYPES and proto.data_type not in INTEGER_TYPES:
        kind = TensorProto.DataType.Name(proto.data_type)
        raise UserError(
            f"tensor '{proto.name}' has type {kind}", stage="verify", expected="floats, integers or booleans"
        )
    array = numpy_helper.to_array(proto)
    if proto.data_type in FLOAT_TYPES:
        return torch.tensor(array.astype("float64"), dtype=float_type)
    return torch.tensor(array)
