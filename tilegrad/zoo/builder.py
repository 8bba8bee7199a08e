"""Builds an ONNX graph layer by layer, with names as a PyTorch export would give them.

Initial weights are not drawn while the graph grows but at the end, when every tensor's index is known: a tensor's
index is its position among the initializers, first what the base model has, then adapters, so that a model with
adapters starts from the very weights of the model without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from math import prod, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tilegrad import random
from tilegrad.errors import InternalError
from tilegrad.random import Purpose

OPSET = 21
IR_VERSION = 10
PRODUCER = "tilegrad"
RUNNING_MEAN_BOUND = 0.1
RUNNING_VARIANCE_MINIMUM = 0.5


class Fill(Enum):
    """How a tensor's initial values are made."""

    ZEROS = auto()
    ONES = auto()
    SIGNED = auto()  # signed uniform times the bound
    VARIANCE = auto()  # 0.5 plus a unit uniform


@dataclass(frozen=True)
class Tensor:
    """A parameter or running statistic to be filled once its index is known."""

    name: str
    shape: tuple[int, ...]
    fill: Fill
    bound: float = 0.0

    def values(self, seed: int, tensor_index: int) -> npt.NDArray[np.float32]:
        """The initial values; the bound is rounded to float32 once, then each operation once."""
        if self.fill is Fill.ZEROS:
            return np.zeros(self.shape, np.float32)
        if self.fill is Fill.ONES:
            return np.ones(self.shape, np.float32)
        drawn = random.words(seed, Purpose.WEIGHTS, tensor_index, prod(self.shape)).reshape(self.shape)
        if self.fill is Fill.VARIANCE:
            return np.float32(RUNNING_VARIANCE_MINIMUM) + random.to_unit(drawn)
        return random.to_signed(drawn) * np.float32(self.bound)


@dataclass(frozen=True, eq=False)
class Blueprint:
    """A model before its weights are drawn: a tensor's index among `tensors` is its stream of random numbers."""

    name: str
    nodes: tuple[onnx.NodeProto, ...]
    tensors: tuple[Tensor, ...]
    constants: Mapping[str, npt.NDArray[Any]]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]

    def draw(self, seed: int) -> onnx.ModelProto:
        weights = [
            numpy_helper.from_array(tensor.values(seed, index), tensor.name)
            for index, tensor in enumerate(self.tensors)
        ]
        constants = [numpy_helper.from_array(values, name) for name, values in self.constants.items()]
        graph = helper.make_graph(
            self.nodes,
            self.name,
            [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", *self.input_shape])],
            [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["N", *self.output_shape])],
            [*weights, *constants],
        )
        return helper.make_model(
            graph, producer_name=PRODUCER, ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)]
        )


@dataclass
class ModelBuilder:
    """A graph under construction. Layers take and return value names; `path` is the module's dotted name."""

    _nodes: list[onnx.NodeProto] = field(default_factory=list)
    _tensors: list[Tensor] = field(default_factory=list)
    _adapters: list[Tensor] = field(default_factory=list)
    _constants: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    _node_names: Counter[str] = field(default_factory=Counter)

    # --- tensors ---

    def parameter(self, name: str, shape: Sequence[int], fan_in: int, *, scale: float = 1.0) -> str:
        """A parameter uniform in ±scale/√fan_in."""
        self._tensors.append(Tensor(name, tuple(shape), Fill.SIGNED, scale / sqrt(fan_in)))
        return name

    def adapter(self, name: str, shape: Sequence[int], fan_in: int) -> str:
        """A parameter that comes on top of the base model."""
        self._adapters.append(Tensor(name, tuple(shape), Fill.SIGNED, 1 / sqrt(fan_in)))
        return name

    def filled(self, name: str, shape: Sequence[int], fill: Fill, bound: float = 0.0) -> str:
        self._tensors.append(Tensor(name, tuple(shape), fill, bound))
        return name

    def constant(self, name: str, values: npt.NDArray[Any]) -> str:
        """An initializer that is no parameter: a shape, a scale."""
        self._constants[name] = values
        return name

    # --- nodes ---

    def node(self, op: str, path: str, inputs: Sequence[str], **attributes: Any) -> str:
        """One node with one output, named as the PyTorch exporter does: `/layer1/conv1/Conv`."""
        name, output = self._name(op, path)
        self._nodes.append(helper.make_node(op, list(inputs), [f"{output}_0"], name=name, **attributes))
        return f"{output}_0"

    def split(self, path: str, x: str, parts: int, *, axis: int) -> tuple[str, ...]:
        name, output = self._name("Split", path)
        outputs = tuple(f"{output}_{part}" for part in range(parts))
        self._nodes.append(helper.make_node("Split", [x], outputs, name=name, axis=axis, num_outputs=parts))
        return outputs

    def _name(self, op: str, path: str) -> tuple[str, str]:
        base = "/".join(["", *path.split("."), op]) if path else f"/{op}"
        repeated = self._node_names[base]
        self._node_names[base] += 1
        name = f"{base}_{repeated}" if repeated else base
        return name, f"{name}_output"

    # --- layers ---

    def gemm(self, path: str, x: str, inputs: int, outputs: int, *, scale: float = 1.0) -> str:
        """`nn.Linear` over rank-2 input."""
        weight = self.parameter(f"{path}.weight", (outputs, inputs), inputs, scale=scale)
        bias = self.parameter(f"{path}.bias", (outputs,), inputs, scale=scale)
        return self.node("Gemm", path, (x, weight, bias), transB=1)

    def classifier(self, x: str, inputs: int, classes: int, path: str = "fc") -> str:
        """The last layer, at half scale so that the first loss is near that of a guess."""
        return self.gemm(path, x, inputs, classes, scale=0.5)

    def matmul(self, path: str, x: str, inputs: int, outputs: int, *, bias: bool) -> str:
        """`nn.Linear` over input of higher rank: MatMul, and Add where there is a bias."""
        weight = self.parameter(f"{path}.weight", (inputs, outputs), inputs)
        product = self.node("MatMul", path, (x, weight))
        if not bias:
            return product
        return self.node("Add", path, (product, self.parameter(f"{path}.bias", (outputs,), inputs)))

    def conv(
        self,
        path: str,
        x: str,
        inputs: int,
        outputs: int,
        kernel: tuple[int, int],
        *,
        stride: int = 1,
        padding: tuple[int, int] = (0, 0),
        groups: int = 1,
        bias: bool = False,
    ) -> str:
        """`nn.Conv2d`; no bias unless asked, as a BatchNorm usually follows."""
        group_inputs = inputs // groups
        fan_in = group_inputs * prod(kernel)
        operands = [x, self.parameter(f"{path}.weight", (outputs, group_inputs, *kernel), fan_in)]
        if bias:
            operands.append(self.parameter(f"{path}.bias", (outputs,), fan_in))
        return self.node(
            "Conv",
            path,
            operands,
            kernel_shape=kernel,
            strides=(stride, stride),
            pads=padding * 2,
            dilations=(1, 1),
            group=groups,
        )

    def batch_norm(self, path: str, x: str, channels: int) -> str:
        """`nn.BatchNorm` in inference form, with running statistics that are not the neutral ones."""
        operands = (
            x,
            self.filled(f"{path}.weight", (channels,), Fill.ONES),
            self.filled(f"{path}.bias", (channels,), Fill.ZEROS),
            self.filled(f"{path}.running_mean", (channels,), Fill.SIGNED, RUNNING_MEAN_BOUND),
            self.filled(f"{path}.running_var", (channels,), Fill.VARIANCE),
        )
        return self.node("BatchNormalization", path, operands, epsilon=1e-5, momentum=0.9)

    def layer_norm(self, path: str, x: str, channels: int) -> str:
        operands = (
            x,
            self.filled(f"{path}.weight", (channels,), Fill.ONES),
            self.filled(f"{path}.bias", (channels,), Fill.ZEROS),
        )
        return self.node("LayerNormalization", path, operands, axis=-1, epsilon=1e-5)

    def reshape(self, path: str, x: str, shape_name: str, dims: Sequence[int]) -> str:
        """A reshape whose batch dimension is copied (0), never written down; equal shapes share one constant."""
        return self.node("Reshape", path, (x, self.constant(shape_name, np.array(dims, np.int64))))

    def mean_head(self, x: str, channels: int, classes: int) -> str:
        """Global average pool and classifier, as the convolutional models end."""
        pooled = self.node("GlobalAveragePool", "pool", (x,))
        return self.classifier(self.node("Flatten", "flatten", (pooled,), axis=1), channels, classes)

    # --- the whole ---

    def finish(self, name: str, output: str, input_shape: Sequence[int], output_shape: Sequence[int]) -> Blueprint:
        """The finished graph: input `input`, output `output`, free batch dimension `N`."""
        if output != self._nodes[-1].output[0]:
            raise InternalError("a zoo model's output must be its last node's", stage="zoo", got=output)
        self._nodes[-1].output[0] = "output"
        tensors = (*self._tensors, *self._adapters)
        return Blueprint(name, tuple(self._nodes), tensors, self._constants, tuple(input_shape), tuple(output_shape))
