"""Conv, ConvTranspose and their gradients, in one and two dimensions.

The gradients are named and shaped after ONNX Runtime's ConvGrad: (dY, X, W) -> (dX, dW, dB), each output optional.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from tilegrad.ir.graph import Attribute
from tilegrad.ir.nest import Nest
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._convolution import Convolution, bias_nest
from tilegrad.ops._window import (
    Window,
    check_image,
    explicit_pads,
    integers,
    lift,
    lower,
    read_window,
    split_same,
)
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example, floats


def _check_operands(node: NodeView, x: int, w: int) -> tuple[tuple[int, ...], int]:
    """Checks what both directions share; returns the kernel's extents and the number of groups."""
    for position in (x, w):
        node.expect_dtype(position, DType.F32)
    image = check_image(node, x)
    weight = node.input(w).shape
    if len(weight) != len(image) + 2:
        raise node.error(
            f"{node.node.op}: the weight ('{node.inputs[w]}') has a wrong rank",
            expected=f"rank {len(image) + 2}, like the input",
            got=str(list(weight)),
        )
    kernel = integers(node, "kernel_shape", len(image), 0, 0) if node.attribute("kernel_shape", ()) else weight[2:]
    if kernel != weight[2:] or min(kernel) < 1:
        raise node.error(
            f"{node.node.op}: kernel_shape does not match the weight ('{node.inputs[w]}')",
            expected=f"{list(weight[2:])}, each at least 1",
            got=str(list(kernel)),
        )
    groups = node.attribute("group", 1)
    if groups < 1 or weight[0] % groups:
        raise node.error(
            f"{node.node.op}: the weight ('{node.inputs[w]}') does not divide into groups",
            expected=f"a multiple of group = {groups} along dimension 0",
            got=str(list(weight)),
        )
    return kernel, groups


def _check_channels(node: NodeView, x: int, w: int, channels: int, formula: str) -> None:
    got = node.input(x).shape[1]
    if got != channels:
        raise node.error(
            f"{node.node.op}: the channels of the input ('{node.inputs[x]}') do not match the weight "
            f"('{node.inputs[w]}')",
            expected=f"{channels} channels ({formula}, from weight {list(node.input(w).shape)})",
            got=f"{got}, from input {list(node.input(x).shape)}",
        )


def conv_geometry(node: NodeView, x: int, w: int) -> Convolution:
    """A Conv whose input and weight are at these positions."""
    kernel, groups = _check_operands(node, x, w)
    image, weight = node.input(x).shape, node.input(w).shape
    _check_channels(node, x, w, weight[1] * groups, f"{groups} groups of {weight[1]}" if groups > 1 else "one group")
    window, positions = read_window(node, image[2:], kernel)
    return Convolution(image[0], groups, weight[1], weight[0] // groups, lift(image[2:], 1), positions, window)


def _transposed_window(node: NodeView, x: tuple[int, ...], kernel: tuple[int, ...]) -> tuple[Window, tuple[int, ...]]:
    """ONNX's rules for ConvTranspose: pads follow from output_shape or auto_pad, or the output's size from the pads."""
    rank = len(x)
    strides = integers(node, "strides", rank, 1, 1)
    dilations = integers(node, "dilations", rank, 1, 1)
    extra = integers(node, "output_padding", rank, 0, 0)
    asked = integers(node, "output_shape", rank, 0, 1) if node.attribute("output_shape", ()) else None
    pads = explicit_pads(node, rank)
    begins, ends, extents = [], [], []
    for d in range(rank):
        if extra[d] >= max(strides[d], dilations[d]):
            raise node.error(
                "ConvTranspose: output_padding is too large",
                expected=f"less than the stride or the dilation, {max(strides[d], dilations[d])}",
                got=str(extra[d]),
            )
        unpadded = (x[d] - 1) * strides[d] + (kernel[d] - 1) * dilations[d] + 1 + extra[d]
        if asked is not None or pads is None:
            extent = asked[d] if asked is not None else x[d] * strides[d]
            begin, end = split_same(max(unpadded - extent, 0), node)
        else:
            begin, end = pads[0][d], pads[1][d]
            extent = unpadded - begin - end
        if extent < 1:
            raise node.error(
                "ConvTranspose: the pads leave nothing of the output",
                expected=f"less than {unpadded} along spatial dimension {d}",
                got=str(begin + end),
            )
        begins.append(begin)
        ends.append(end)
        extents.append(extent)
    window = Window(lift(kernel, 1), lift(strides, 1), lift(dilations, 1), lift(tuple(begins), 0), lift(tuple(ends), 0))
    return window, tuple(extents)


def conv_transpose_geometry(node: NodeView, x: int, w: int) -> Convolution:
    """A ConvTranspose is the convolution whose map is its input and whose image is its output."""
    kernel, groups = _check_operands(node, x, w)
    shape, weight = node.input(x).shape, node.input(w).shape
    _check_channels(node, x, w, weight[0], "the weight's dimension 0")
    window, image = _transposed_window(node, shape[2:], kernel)
    return Convolution(shape[0], groups, weight[1], weight[0] // groups, lift(image, 1), lift(shape[2:], 1), window)


class _Convolving(Operator):
    """Input and weight, and a bias by output channel."""

    parameter_inputs = (1, 2)
    goes_on_with = (0,)
    gradient_name: ClassVar[str]

    def example(self, draw: Draw) -> Example:
        """Dense, depthwise, of one tap, and strided and dilated windows of any size."""
        taps = (1, 2, 3, 3, 3, 4, 5, 7)
        kernel = draw.one_of((3, 3), (3, 3), (1, 1), (draw.one_of(*taps), draw.one_of(*taps)))
        groups, channels, outs = draw.one_of(
            (1, draw.between(1, 24), draw.between(1, 24)), (draw.between(1, 40), 1, 1), (2, draw.between(1, 8), 3),
            (1, draw.between(1, 64), draw.between(3, 64)), (1, draw.between(1, 12), draw.one_of(1, 2)),
        )  # fmt: skip
        stride, dilation = draw.one_of(1, 1, 1, 1, 2, 2, 3), draw.one_of(1, 1, 1, 1, 1, 2)
        image = tuple(max((k - 1) * dilation + 1, draw.between(3, 34)) for k in kernel)
        weights = (groups * outs, channels) if self.name == "Conv" else (groups * channels, outs)
        bias = ((groups * outs,),) if draw.is_so(0.3) else ()
        attributes: dict[str, Attribute] = {
            "strides": (stride, stride), "dilations": (dilation, dilation), "group": groups, "kernel_shape": kernel,
            "pads": tuple(draw.one_of(0, (k - 1) // 2, (k - 1) // 2) for k in (*kernel, *kernel)),
        }  # fmt: skip
        shape = (draw.one_of(1, 1, 1, 2, 3), groups * channels, *image)
        return Example(floats(shape, (*weights, *kernel), *bias), attributes)

    @abstractmethod
    def _output(self, node: NodeView) -> TensorType: ...

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2, 3)
        output = self._output(node)
        if node.has_input(2):
            node.expect_dtype(2, DType.F32)
            node.expect_shape(2, (output.shape[1],), "bias")
        return (output,)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        flags = (*wanted, *(False,) * (3 - len(wanted)))
        x, w = node.inputs[:2]
        results = build.emit(self.gradient_name, [upstream[0], x, w], node.node.attributes, outputs=flags)
        return tuple(name or None for name in results)


class Conv(_Convolving):
    name = "Conv"
    summary = "1-D and 2-D"
    gradient_name = "ConvGrad"

    def _output(self, node: NodeView) -> TensorType:
        return map_type(conv_geometry(node, 0, 1), node.input(0).rank)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        x, w = node.inputs[:2]
        return (conv_geometry(node, 0, 1).map_nest(x, w, node.input_name(2), node.outputs[0]),)


class ConvTranspose(_Convolving):
    name = "ConvTranspose"
    summary = "1-D and 2-D"
    gradient_name = "ConvTransposeGrad"

    def _output(self, node: NodeView) -> TensorType:
        return _image_type(conv_transpose_geometry(node, 0, 1), node.input(0).rank)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        x, w = node.inputs[:2]
        return (conv_transpose_geometry(node, 0, 1).image_nest(x, w, node.input_name(2), node.outputs[0]),)


def map_type(conv: Convolution, rank: int) -> TensorType:
    return TensorType(DType.F32, (conv.batch, conv.groups * conv.map_channels, *lower(conv.map, rank - 2)))


def _image_type(conv: Convolution, rank: int) -> TensorType:
    return TensorType(DType.F32, (conv.batch, conv.groups * conv.image_channels, *lower(conv.image, rank - 2)))


class _ConvolvingGrad(Operator):
    """(dY, X, W) -> (dX, dW, dB)."""

    goes_on_with = (0,)

    @abstractmethod
    def _forward_type(self, node: NodeView) -> TensorType: ...

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(3)
        forward = self._forward_type(node)
        node.expect_dtype(0, DType.F32)
        node.expect_shape(0, forward.shape, "gradient of Y")
        return node.input(1), node.input(2), TensorType(DType.F32, (forward.shape[1],))

    @abstractmethod
    def _gradient_nests(self, node: NodeView) -> tuple[Nest | None, Nest | None]:
        """Those of dX and dW, where wanted."""

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        bias = bias_nest(node.inputs[0], node.outputs[2], node.input(0).shape) if node.has_output(2) else None
        return tuple(nest for nest in (*self._gradient_nests(node), bias) if nest is not None)


class ConvGrad(_ConvolvingGrad):
    name = "ConvGrad"

    def _forward_type(self, node: NodeView) -> TensorType:
        return map_type(conv_geometry(node, 1, 2), node.input(1).rank)

    def _gradient_nests(self, node: NodeView) -> tuple[Nest | None, Nest | None]:
        conv = conv_geometry(node, 1, 2)
        dy, x, w = node.inputs
        dx, dw = node.output_name(0), node.output_name(1)
        return (
            None if dx is None else conv.image_nest(dy, w, None, dx),
            None if dw is None else conv.weight_nest(x, dy, dw),
        )


class ConvTransposeGrad(_ConvolvingGrad):
    name = "ConvTransposeGrad"

    def _forward_type(self, node: NodeView) -> TensorType:
        return _image_type(conv_transpose_geometry(node, 1, 2), node.input(1).rank)

    def _gradient_nests(self, node: NodeView) -> tuple[Nest | None, Nest | None]:
        conv = conv_transpose_geometry(node, 1, 2)
        dy, x, w = node.inputs
        dx, dw = node.output_name(0), node.output_name(1)
        return (
            None if dx is None else conv.map_nest(dy, w, None, dx),
            None if dw is None else conv.weight_nest(dy, x, dw),
        )
