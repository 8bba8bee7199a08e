"""Pad: constant (also crops, with negative pads), reflect, edge and wrap; and PadGrad for the last three."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tilegrad.ir.nest import Access, Axis, AxisKind, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._axes import normalised_axes
from tilegrad.ops._copy import sized
from tilegrad.ops._integers import integer_list, required_integers
from tilegrad.ops._pad import PadDim, merge_dims, pad_nest
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example

_MODES = ("constant", "reflect", "edge", "wrap")
_MAX_MAPPED_LOOPS = 4


def _pads(node: NodeView, rank: int) -> list[tuple[int, int]]:
    """(before, after) for each dimension."""
    pads, given = required_integers(node, "pads"), integer_list(node, "axes")
    axes = tuple(range(rank)) if given is None else given
    if len(pads) != 2 * len(axes):
        raise node.error(
            f"{node.node.op}: wrong number of pads", expected=f"{2 * len(axes)}, two for each axis", got=str(len(pads))
        )
    normalised_axes(node, axes, rank)
    result = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        result[axis % rank] = (pads[i], pads[i + len(axes)])
    return result


def _dims(node: NodeView, shape: tuple[int, ...]) -> list[PadDim]:
    """One per dimension of the unpadded tensor."""
    mode = node.attribute("mode", "constant")
    if mode not in _MODES:
        raise node.error(f"{node.node.op}: unknown mode", expected=" or ".join(_MODES), got=repr(mode))
    dims = []
    for d, (extent, (before, after)) in enumerate(zip(shape, _pads(node, len(shape)), strict=True)):
        if extent + before + after < 0:
            raise node.error(
                f"{node.node.op}: dimension {d} would be cropped below nothing",
                expected=f"pads that take at most {extent}",
                got=f"{before} and {after}",
            )
        if mode != "constant" and (before < 0 or after < 0):
            raise node.error(
                f"{node.node.op}: mode {mode} cannot crop", expected="pads of 0 or more", got=f"{before} and {after}"
            )
        if mode != "constant" and extent == 0 and before + after > 0:
            raise node.error(f"{node.node.op}: dimension {d} has no elements to repeat", expected="1 or more", got="0")
        dims.append(PadDim(extent + before + after, extent, -before))
    return dims


def _mapped_dims(node: NodeView, shape: tuple[int, ...]) -> list[PadDim]:
    """Runs of untouched dimensions merged; a touched one stands alone."""
    result: list[PadDim] = []
    for dim in _dims(node, shape):
        if result and dim.is_same and result[-1].is_same:
            extent = result.pop().out_extent * dim.out_extent
            dim = PadDim(extent, extent)
        result.append(dim)
    if len(result) > _MAX_MAPPED_LOOPS:
        raise node.error(
            f"{node.node.op}: too many dimensions change", expected=f"at most {_MAX_MAPPED_LOOPS}", got=str(len(result))
        )
    return [PadDim(1, 1)] * (_MAX_MAPPED_LOOPS - len(result)) + result


def _mapped_nest(node: NodeView, kernel: str, dims: Sequence[PadDim], loops_over_input: bool) -> Nest:
    """x -> y with loops over y, or dy -> dx with loops over dx. A padded dimension of what is read is needed whole."""
    extents = [(dim.in_extent, dim.out_extent) if loops_over_input else (dim.out_extent, dim.in_extent) for dim in dims]
    constants: dict[str, int | float] = {"mode": _MODES.index(node.attribute("mode", "constant"))}
    for d, dim in enumerate(dims):
        constants |= {f"is_padded_{d}": int(not dim.is_same), f"before_{d}": -dim.offset}
    read_name, write_name = ("dy", "dx") if loops_over_input else ("x", "y")
    return Nest(
        kernel,
        (
            *(Axis(f"d{d}", own) for d, (own, _) in enumerate(extents)),
            *(
                Axis(f"r{d}", 1 if dim.is_same else other, AxisKind.INNER)
                for d, (dim, (_, other)) in enumerate(zip(dims, extents, strict=True))
            ),
        ),
        (
            Operand(
                read_name,
                node.inputs[0],
                Access.READ,
                tuple(other for _, other in extents),
                tuple(along(f"d{d}" if dim.is_same else f"r{d}") for d, dim in enumerate(dims)),
            ),
            Operand(
                write_name,
                node.outputs[0],
                Access.WRITE,
                tuple(own for own, _ in extents),
                tuple(along(f"d{d}") for d in range(len(dims))),
            ),
        ),
        constants,
    )


class Pad(Operator):
    name = "Pad"
    static_inputs: ClassVar = {1: "pads", 2: "value", 3: "axes"}

    def example(self, draw: Draw) -> Example:
        shape = draw.between(1, 6), draw.between(4, 24), draw.between(4, 40)
        pads = tuple(draw.one_of(0, 0, 1, 2, 3) if d % 3 else 0 for d in range(6))
        mode = draw.one_of("constant", "reflect", "edge", "wrap")
        return Example((TensorType(draw.dtype(), shape),), {"pads": pads, "mode": mode})

    def _value(self, node: NodeView) -> float:
        value = node.node.attributes.get("value", 0)
        if isinstance(value, tuple) and len(value) == 1:
            value = value[0]
        if not isinstance(value, (int, float)):
            raise node.error("Pad: the value is no number", expected="one number", got=repr(value))
        return value

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        x = node.input(0)
        dims = _dims(node, x.shape)
        self._value(node)
        if node.attribute("mode", "constant") == "constant":
            merge_dims(node, dims)
        else:
            _mapped_dims(node, x.shape)
        return (TensorType(x.dtype, tuple(dim.out_extent for dim in dims)),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        x = node.input(0)
        if node.attribute("mode", "constant") != "constant":
            return (_mapped_nest(node, sized("pad_mapped", x.dtype), _mapped_dims(node, x.shape), False),)
        dims = merge_dims(node, _dims(node, x.shape))
        kernel = sized("pad_constant", x.dtype)
        return (pad_nest(kernel, node.inputs[0], node.outputs[0], dims, self._value(node), x.dtype),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        shape = node.input(0).shape
        pads = _pads(node, len(shape))
        flat = tuple(before for before, _ in pads) + tuple(after for _, after in pads)
        mode = node.attribute("mode", "constant")
        if mode == "constant":  # what was added is cut off, what was cut off has gradient 0
            return build.emit("Pad", [upstream[0]], {"mode": mode, "pads": tuple(-pad for pad in flat)})
        return build.emit("PadGrad", [upstream[0]], {"mode": mode, "pads": flat, "shape": shape})


class PadGrad(Operator):
    """dY -> dX of the attribute `shape`: each element gathers all the places it was copied to, in ascending order."""

    name = "PadGrad"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        node.expect_dtype(0, DType.F32)
        if node.attribute("mode", "constant") == "constant":
            raise node.error("PadGrad is for the other modes", expected="reflect, edge or wrap", got="constant")
        shape = required_integers(node, "shape")
        node.expect_shape(0, tuple(dim.out_extent for dim in _dims(node, shape)), "gradient of Y")
        _mapped_dims(node, shape)
        return (TensorType(DType.F32, shape),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        return (_mapped_nest(node, "pad_grad", _mapped_dims(node, node.output().shape), True),)
