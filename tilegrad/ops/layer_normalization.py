"""LayerNormalization over the trailing axes from `axis`, with ONNX Runtime's LayerNormalizationGrad.

The tensor is rows of k elements. Mean and inverse deviation are optional outputs; in training they are kept for the
gradient (two numbers a row), which otherwise computes them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilegrad.ir.graph import Node
from tilegrad.ir.nest import Access, Axis, AxisKind, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._axes import normalised_axis
from tilegrad.ops._normalize import epsilon_of
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example


def _axis(node: NodeView, data: int) -> int:
    return normalised_axis(node, node.attribute("axis", -1), node.input(data).rank)


def _rows_and_columns(node: NodeView, data: int) -> tuple[int, int]:
    shape, axis = node.input(data).shape, _axis(node, data)
    return prod(shape[:axis]), prod(shape[axis:])


def _statistic_type(node: NodeView, data: int) -> TensorType:
    shape, axis = node.input(data).shape, _axis(node, data)
    return TensorType(DType.F32, (*shape[:axis], *(1,) * (len(shape) - axis)))


def _check(node: NodeView, data: int, *affine: tuple[int, str]) -> None:
    """Element types, and the affine's shape: exactly the normalised axes."""
    node.expect_dtype(data, DType.F32)
    x = node.input(data)
    if x.rank == 0:
        raise node.error(f"{node.node.op} has nothing to normalise", expected="rank 1 or more", got="a scalar")
    for position, what in affine:
        if node.has_input(position):
            node.expect_dtype(position, DType.F32)
            node.expect_shape(position, x.shape[_axis(node, data) :], what)
    epsilon_of(node)
    stash_type = node.attribute("stash_type", 1)
    if stash_type != 1:
        raise node.error(
            f"{node.node.op}: statistics are computed in float", expected="stash_type 1", got=str(stash_type)
        )


def _data(name: str, value: str | None, access: Access, r: int, k: int) -> Operand:
    return Operand(name, value, access, (r, k), (along("r"), along("k")))


def _column(name: str, value: str | None, access: Access, k: int) -> Operand:
    return Operand(name, value, access, (k,), (along("k"),))


def _row(name: str, value: str, access: Access, r: int) -> Operand:
    return Operand(name, value, access, (r,), (along("r"),))


def _row_axes(r: int, k: int) -> tuple[Axis, Axis]:
    return Axis("r", r), Axis("k", k, AxisKind.INNER)


class LayerNormalization(Operator):
    name = "LayerNormalization"
    parameter_inputs = (1, 2)

    def example(self, draw: Draw) -> Example:
        return Example((), outputs=None if draw.is_so() else (True,))

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2, 3)
        node.input(1)
        _check(node, 0, (1, "scale"), (2, "bias"))
        statistic = _statistic_type(node, 0)
        return (node.input(0), statistic, statistic)

    def training_form(self, node: NodeView, seed: int) -> Node | None:
        y = node.outputs[0]
        mean, inverse = node.output_name(1) or f"{y}.mean", node.output_name(2) or f"{y}.inv_std"
        return replace(node.node, outputs=(y, mean, inverse))

    def temporaries(self, node: NodeView) -> tuple[TensorType, ...]:
        statistic = _statistic_type(node, 0)
        return tuple(statistic for position in (1, 2) if not node.has_output(position))

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        r, k = _rows_and_columns(node, 0)
        own = iter([node.temporary(0), node.temporary(1)])
        mean, inverse = (node.output_name(position) or next(own) for position in (1, 2))
        return (
            Nest(
                "layer_norm",
                _row_axes(r, k),
                (
                    _data("x", node.inputs[0], Access.READ, r, k),
                    _column("scale", node.inputs[1], Access.READ, k),
                    _column("bias", node.input_name(2), Access.READ, k),
                    _row("mean", mean, Access.WRITE, r),
                    _row("spread", inverse, Access.WRITE, r),
                    _data("y", node.outputs[0], Access.WRITE, r, k),
                ),
                {"count": float(k), "epsilon": epsilon_of(node)},
            ),
        )

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        if any(gradient is not None for gradient in upstream[1:]):
            raise node.error(
                "LayerNormalization: its statistics cannot be differentiated", hint="compute them with ReduceMean"
            )
        x, scale = node.inputs[:2]
        return build.emit(
            "LayerNormalizationGrad",
            [upstream[0], x, scale, node.output_name(1), node.output_name(2)],
            {"axis": node.attribute("axis", -1), "epsilon": epsilon_of(node)},
            outputs=(*wanted, *(False,) * (3 - len(wanted))),
            hint=f"{x}_grad",
        )


class LayerNormalizationGrad(Operator):
    """(dY, X, scale, mean?, 1/std?) -> (dX?, dscale?, dbias?). Absent statistics are computed from X."""

    name = "LayerNormalizationGrad"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(3, 5)
        node.expect_dtype(0, DType.F32)
        node.expect_shape(0, node.input(1).shape, "gradient of Y")
        node.input(2)
        _check(node, 1, (2, "scale"))
        for position, what in ((3, "saved mean"), (4, "saved inverse deviation")):
            if node.has_input(position):
                node.expect_dtype(position, DType.F32)
                node.expect_shape(position, _statistic_type(node, 1).shape, what)
        return (node.input(1), node.input(2), node.input(2))

    def _has_statistics(self, node: NodeView) -> bool:
        return node.has_input(3) and node.has_input(4)

    def temporaries(self, node: NodeView) -> tuple[TensorType, ...]:
        return () if self._has_statistics(node) else (_statistic_type(node, 1),) * 2

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        r, k = _rows_and_columns(node, 1)
        dy, x, scale = node.inputs[:3]
        nests = []
        if self._has_statistics(node):
            mean, inverse = node.inputs[3:5]
        else:
            mean, inverse = node.temporary(0), node.temporary(1)
            results = (_row("mean", mean, Access.WRITE, r), _row("spread", inverse, Access.WRITE, r))
            operands: tuple[Operand, ...] = (_data("x", x, Access.READ, r, k), *results)
            constants = {"count": float(k), "epsilon": epsilon_of(node), "y_by_r": 0}
            nests.append(Nest("layer_norm_statistics", _row_axes(r, k), operands, constants))
        reads = (_data("dy", dy, Access.READ, r, k), _data("x", x, Access.READ, r, k))
        statistics = (_row("mean", mean, Access.READ, r), _row("spread", inverse, Access.READ, r))
        if node.has_output(1) or node.has_output(2):
            results = (
                _column("dscale", node.output_name(1), Access.WRITE, k),
                _column("dbias", node.output_name(2), Access.WRITE, k),
            )
            axes = (Axis("r", r, AxisKind.REDUCTION), Axis("k", k))
            nests.append(Nest("layer_norm_parameters", axes, (*reads, *statistics, *results)))
        if node.has_output(0):
            gain = _column("scale", scale, Access.READ, k)
            result = _data("dx", node.outputs[0], Access.WRITE, r, k)
            operands = (*reads, gain, *statistics, result)
            nests.append(Nest("layer_norm_grad", _row_axes(r, k), operands, {"count": float(k)}))
        return tuple(nests)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0), (0, 1))
