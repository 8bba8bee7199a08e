"""Clip (ReLU6 is one) and its gradient.

The gradient reads the output, so that Clip runs in place; on the bounds themselves it is 0, as PyTorch's hardtanh.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isnan
from typing import ClassVar

from tilegrad.ir.nest import Access, Axis, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._elementwise import type_code
from tilegrad.ops._pointwise import INTEGERS, one_element
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example


def _bounds(node: NodeView) -> dict[str, int | float]:
    """The kernel's constants. An absent or infinite bound is none."""
    is_float = node.input(0).dtype is DType.F32
    constants: dict[str, int | float] = {"has_low": 0, "has_high": 0, "low": 0, "high": 0}
    for name, key, unbounded in (("min", "low", -inf), ("max", "high", inf)):
        bound = one_element(node, name)
        if bound is None or bound == unbounded:
            continue
        if isnan(bound) or abs(bound) == inf:
            raise node.error(f"Clip: bad bound '{name}'", expected="a number", got=str(bound))
        if not is_float and not -(2**31) <= bound < 2**31:
            raise node.error(f"Clip: bad bound '{name}'", expected="an integer of 32 bits", got=str(bound))
        constants |= {f"has_{key}": 1, key: float(bound) if is_float else int(bound)}
    return constants


def _nest(node: NodeView, kernel: str, pointers: Sequence[str]) -> Nest:
    size = node.output().size
    names = (*node.inputs, node.outputs[0])
    operands = tuple(
        Operand(pointer, value, Access.READ if value != node.outputs[0] else Access.WRITE, (size,), (along("i"),))
        for pointer, value in zip(pointers, names, strict=True)
    )
    constants = {**_bounds(node), "type": type_code(node.input(0).dtype)}
    return Nest(kernel, (Axis("i", size),), operands, constants)


class Clip(Operator):
    name = "Clip"
    static_inputs: ClassVar = {1: "min", 2: "max"}

    def example(self, draw: Draw) -> Example:
        return Example((), {"min": 0, "max": 1} if draw.is_so(0.3) else {"min": -0.5, "max": 0.5})

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        node.expect_dtype(0, DType.F32, *INTEGERS)
        _bounds(node)
        return (node.input(0),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        kernel = "clip" if node.input(0).dtype is DType.F32 else "clip_integer"
        return (_nest(node, kernel, ("x", "y")),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return build.emit("ClipGrad", [upstream[0], node.outputs[0]], node.node.attributes)


class ClipGrad(Operator):
    """(dY, Y) -> dX."""

    name = "ClipGrad"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2)
        node.expect_dtype(0, DType.F32)
        node.expect_dtype(1, DType.F32)
        node.expect_shape(1, node.input(0).shape, "forward output")
        _bounds(node)
        return (node.input(0),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        return (_nest(node, "clip_grad", ("dy", "y", "dx")),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0), (0, 1))
