"""What poolings share. They work on channels alone, so batch and channels are one axis `c`."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import cast

from tilegrad.ir.nest import Access, Axis, AxisKind, Index, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._window import Pair, Window, check_image, integers, lift, lower, read_window
from tilegrad.ops.base import NodeView
from tilegrad.ops.example import Draw, Example


@dataclass(frozen=True)
class Pooling:
    """`shape` is the input's; `image` and `map` are the spatial extents of input and output."""

    shape: tuple[int, ...]
    image: Pair
    map: Pair
    window: Window

    @property
    def planes(self) -> int:
        return self.shape[0] * self.shape[1]

    def output(self, dtype: DType) -> TensorType:
        return TensorType(dtype, (*self.shape[:2], *lower(self.map, len(self.shape) - 2)))

    def axes(self, spatial: str) -> tuple[Axis, ...]:
        """`spatial` is "o" or "i": whose positions are walked."""
        positions = self.map if spatial == "o" else self.image
        return (
            Axis("c", self.planes),
            *(Axis(f"{spatial}{axis}", positions[d]) for d, axis in enumerate("hw")),
            *(Axis(f"k{axis}", self.window.kernel[d], AxisKind.INNER) for d, axis in enumerate("hw")),
        )

    def image_operand(self, name: str, value: str | None, access: Access, rows: Index, columns: Index) -> Operand:
        return Operand(name, value, access, (self.planes, *self.image), (along("c"), rows, columns))

    def map_operand(self, name: str, value: str | None, access: Access, rows: Index, columns: Index) -> Operand:
        return Operand(name, value, access, (self.planes, *self.map), (along("c"), rows, columns))

    def windows(self, name: str, value: str) -> Operand:
        """The image, read window by window."""
        return self.image_operand(name, value, Access.READ, self.window.image_index(0), self.window.image_index(1))

    def gathered(self, name: str, value: str) -> Operand:
        """The map, read by the image elements that its windows hold."""
        return self.map_operand(name, value, Access.READ, self.window.gather_index(0), self.window.gather_index(1))


def pooling(node: NodeView, shape: tuple[int, ...]) -> Pooling:
    """The pooling that a node's attributes describe on an input of this shape, which `check_image` has seen."""
    image = shape[2:]
    node.required("kernel_shape")
    kernel = integers(node, "kernel_shape", len(image), 1, 1)
    window, positions = read_window(node, image, kernel)
    result = Pooling(shape, lift(image, 1), positions, window)
    for d in range(2):
        extent, reach = result.image[d], range(0, window.reach(d) + 1, window.dilation[d])
        for position in range(positions[d]):
            begin = position * window.stride[d] - window.pad_begin[d]
            if not any(0 <= begin + tap < extent for tap in reach):
                raise node.error(
                    f"{node.node.op}: a window lies in padding altogether",
                    expected="at least one element of the input in each window",
                    got=f"none in window {position} (pads {window.pad_begin[d]} and {window.pad_end[d]}, "
                    f"kernel {window.kernel[d]}, input {extent})",
                )
    return result


def original_shape(node: NodeView) -> tuple[int, ...]:
    """The attribute `shape` of a pooling's gradient: that of the forward input, which it need not read."""
    return cast(tuple[int, ...], node.required("shape"))


def check_global(node: NodeView, position: int = 0) -> None:
    """The checks of a pooling over all spatial positions, of the input at `position`."""
    node.expect_inputs(position + 1)
    node.expect_dtype(position, DType.F32)
    shape = node.input(position).shape
    if len(shape) < 3 or prod(shape[2:]) < 1:
        raise node.error(
            f"{node.node.op}: the input ('{node.inputs[position]}') has no spatial positions",
            expected="[N, C, D1, …], none of them 0",
            got=str(list(shape)),
        )


def global_nest(kernel: str, node: NodeView) -> Nest:
    """One output per plane, reduced over its positions."""
    shape = node.input(0).shape
    planes, positions = shape[0] * shape[1], prod(shape[2:])
    return Nest(
        kernel,
        (Axis("c", planes), Axis("p", positions, AxisKind.REDUCTION)),
        (
            Operand("x", node.inputs[0], Access.READ, (planes, positions), (along("c"), along("p"))),
            Operand("y", node.outputs[0], Access.WRITE, (planes,), (along("c"),)),
        ),
    )


def global_output(node: NodeView) -> TensorType:
    shape = node.input(0).shape
    return TensorType(DType.F32, (*shape[:2], *(1,) * (len(shape) - 2)))


__all__ = ["Pooling", "check_global", "check_image", "global_nest", "global_output", "original_shape", "pooling"]


def pooling_example(draw: Draw, dtype: DType) -> Example:
    kernel = draw.one_of(2, 2, 3, 3, 5), draw.one_of(2, 2, 3, 3, 4)
    stride, pad = draw.one_of(1, 2, 2, 3), draw.one_of(0, 1)
    shape = (1, draw.between(1, 40), *(max(k, draw.between(3, 32)) for k in kernel))
    attributes = {"kernel_shape": kernel, "strides": (stride, stride), "pads": (pad,) * 4}
    return Example((TensorType(dtype, shape),), attributes, (True,))
