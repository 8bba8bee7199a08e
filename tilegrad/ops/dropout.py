"""Dropout: the identity at inference. In training the node becomes SeededDropout, whose mask is a function of the seed,
the node's name, the mini-batch's number and the element's position: nothing is saved for the backward pass, and any
core may make any part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar
from zlib import crc32

from tilegrad.ir.graph import Node
from tilegrad.ir.nest import FIXED, Access, Axis, Nest, Operand, along, map_nest
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._pointwise import expect_one_element, one_element
from tilegrad.ops.base import MINIBATCH_COUNTER, GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example

_STREAM_BITS = 24  # what the generator's purpose word has room for


def _ratio(node: NodeView) -> float:
    given = one_element(node, "ratio")
    ratio = 0.5 if given is None else float(given)
    if not 0.0 <= ratio < 1.0:
        raise node.error(
            f"{node.node.op}: bad ratio", expected="a number from 0 up to, not including, 1", got=str(ratio)
        )
    return ratio


def _unsigned(node: NodeView, name: str, bits: int) -> int:
    value = node.required(name)
    if not isinstance(value, int) or not 0 <= value < 2**bits:
        raise node.error(
            f"{node.node.op}: bad attribute '{name}'", expected=f"an unsigned {bits}-bit integer", got=str(value)
        )
    return value


class Dropout(Operator):
    """Output 1 is the mask: at inference, all true."""

    name = "Dropout"
    static_inputs: ClassVar = {1: "ratio", 2: "training_mode"}
    summary = "the identity at inference, seeded in training; `training_mode` is not looked at"

    def example(self, draw: Draw) -> Example:
        return Example((), outputs=None if draw.is_so() else (True,))

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        node.expect_dtype(0, DType.F32)
        _ratio(node)
        return (node.input(0), TensorType(DType.BOOL, node.input(0).shape))

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        size = node.input(0).size
        result = []
        if node.has_output(0):
            result.append(map_nest("dropout_copy", size, [("x", node.inputs[0])], [("y", node.outputs[0])]))
        if node.has_output(1):
            result.append(map_nest("dropout_mask", size, [], [("mask", node.outputs[1])]))
        return tuple(result)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return (upstream[0],)

    def training_form(self, node: NodeView, seed: int) -> Node | None:
        ratio = _ratio(node)
        if ratio == 0.0:
            return None
        stream = crc32(node.node.name.encode("utf-8")) % 2**_STREAM_BITS
        return Node(
            node.node.name,
            "SeededDropout",
            (node.inputs[0], MINIBATCH_COUNTER),
            node.outputs,
            {"ratio": ratio, "seed": seed, "stream": stream},
        )


class SeededDropout(Operator):
    """(X, mini-batch counter) -> (Y, mask): Y = kept ? X * scale : 0, scale the rounded 1 / (1 - ratio).

    Its gradient is itself, of dY: the mask is made again.
    """

    name = "SeededDropout"
    nondifferentiable_inputs = (1,)

    def example(self, draw: Draw) -> Example:
        inputs = (TensorType(DType.F32, (draw.between(1, 4000),)), TensorType(DType.I64, ()))
        return Example(inputs, {"ratio": 0.3, "seed": 1, "stream": 1})

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2)
        node.expect_dtype(0, DType.F32)
        expect_one_element(node, 1, DType.I64, "mini-batch counter")
        _ratio(node)
        _unsigned(node, "seed", 32)
        _unsigned(node, "stream", _STREAM_BITS)
        return (node.input(0), TensorType(DType.BOOL, node.input(0).shape))

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        size = node.input(0).size
        ratio, seed = _ratio(node), _unsigned(node, "seed", 32)
        elements = ((size,), (along("i"),))
        operands = (
            Operand("x", node.inputs[0], Access.READ, *elements),
            Operand("minibatch", node.inputs[1], Access.READ, (1,), (FIXED,)),
            Operand("y", node.output_name(0), Access.WRITE, *elements),
            Operand("mask", node.output_name(1), Access.WRITE, *elements),
        )
        constants = {
            "seed": seed - 2**32 if seed >= 2**31 else seed,
            "stream": _unsigned(node, "stream", _STREAM_BITS),
            "ratio": ratio,
            "scale": 1.0 / (1.0 - ratio),
        }
        return (Nest("seeded_dropout", (Axis("i", size),), operands, constants),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return build.emit("SeededDropout", [upstream[0], node.inputs[1]], node.node.attributes)
