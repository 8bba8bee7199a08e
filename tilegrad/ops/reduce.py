"""ReduceSum, ReduceMean, ReduceMax and their kin.

Neighbouring reduced axes are one run; runs are reduced one after another, the last first. Each run is one nest over
[o, r, i] -> [o, i] with one accumulator per output and r ascending: that order is these operators' meaning. A mean is
the sum divided by the count, with one rounding.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tilegrad.ir.nest import Access, Axis, AxisKind, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._axes import normalised_axes
from tilegrad.ops._integers import integer_list
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example


@dataclass(frozen=True)
class _Run:
    """Neighbouring axes reduced together: the tensor seen as [o, r, i], reduced over r."""

    o: int
    r: int
    i: int


def _reduced_axes(node: NodeView) -> tuple[int, ...]:
    rank = node.input(0).rank
    axes = integer_list(node, "axes")
    if not axes and not node.attribute("noop_with_empty_axes", 0):
        return tuple(range(rank))
    return normalised_axes(node, axes or (), rank)


def _kept_shape(node: NodeView) -> tuple[int, ...]:
    """The output's shape with the reduced axes kept as 1."""
    axes = _reduced_axes(node)
    return tuple(1 if d in axes else extent for d, extent in enumerate(node.input(0).shape))


def _runs(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[_Run, ...]:
    """At least one run (of extent 1 where nothing is reduced), last first."""
    merged: list[tuple[bool, int]] = []
    for d, extent in enumerate(shape):
        if extent == 1:
            continue
        is_reduced = d in axes
        if merged and merged[-1][0] == is_reduced:
            merged[-1] = (is_reduced, merged[-1][1] * extent)
        else:
            merged.append((is_reduced, extent))
    runs: list[_Run] = []
    while reduced := [position for position, (is_reduced, _) in enumerate(merged) if is_reduced]:
        last = reduced[-1]
        before, after = prod(n for _, n in merged[:last]), prod(n for _, n in merged[last + 1 :])
        runs.append(_Run(before, merged[last][1], after))
        del merged[last]
    return tuple(runs) or (_Run(prod(shape), 1, 1),)


class _Reduce(Operator):
    """`first_kernel` reduces the first run, `next_kernel` further ones, `finish_kernel` the last of several."""

    static_inputs: ClassVar = {1: "axes"}
    dtypes: ClassVar[tuple[DType, ...]] = (DType.F32,)
    first_kernel: ClassVar[str]
    next_kernel: ClassVar[str]
    # For a single run, and for the last of several, where they differ from the two above.
    only_kernel: ClassVar[str | None] = None
    finish_kernel: ClassVar[str | None] = None

    def example(self, draw: Draw) -> Example:
        shape = draw.between(1, 30), draw.between(1, 60), 1 if draw.is_so(0.4) else draw.between(1, 60)
        dtype = DType.F32 if draw.is_so(0.6) else draw.one_of(DType.I32, DType.I64, DType.BOOL)
        axes = (1,) if draw.is_so(0.8) else (0, 2)  # the latter in two nests
        return Example((TensorType(dtype, shape),), {"axes": axes, "keepdims": 0})

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(1)
        node.expect_dtype(0, *self.dtypes)
        axes = _reduced_axes(node)
        shape = _kept_shape(node)
        if not node.attribute("keepdims", 1):
            shape = tuple(extent for d, extent in enumerate(shape) if d not in axes)
        return (TensorType(node.input(0).dtype, shape),)

    def temporaries(self, node: NodeView) -> tuple[TensorType, ...]:
        x = node.input(0)
        return tuple(TensorType(x.dtype, (run.o, run.i)) for run in _runs(x.shape, _reduced_axes(node))[:-1])

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        x = node.input(0)
        runs = _runs(x.shape, _reduced_axes(node))
        kernels = [self.first_kernel, *[self.next_kernel] * (len(runs) - 1)]
        if len(runs) == 1:
            kernels[0] = self.only_kernel or kernels[0]
        else:
            kernels[-1] = self.finish_kernel or kernels[-1]
        suffix = "" if x.dtype is DType.F32 else f"_{x.dtype}"
        values = [node.inputs[0], *(node.temporary(i) for i in range(len(runs) - 1)), node.outputs[0]]
        count = x.size // node.output().size if node.output().size else 1
        return tuple(
            Nest(
                kernel + suffix,
                (Axis("o", run.o), Axis("r", run.r, AxisKind.REDUCTION), Axis("i", run.i)),
                (
                    Operand("x", source, Access.READ, (run.o, run.r, run.i), (along("o"), along("r"), along("i"))),
                    Operand("y", target, Access.WRITE, (run.o, run.i), (along("o"), along("i"))),
                ),
                {"count": float(count)},
            )
            for kernel, run, source, target in zip(kernels, runs, values[:-1], values[1:], strict=True)
        )

    @staticmethod
    def spread(node: NodeView, value: str, build: GradientBuilder) -> str:
        """A tensor of the output's shape, repeated along the reduced axes."""
        kept, shape = _kept_shape(node), node.input(0).shape
        if build.type_of(value).shape != kept:
            (value,) = build.emit("Reshape", [value], {"shape": kept})
        if kept != shape:
            (value,) = build.emit("Expand", [value], {"shape": shape})
        return value


class ReduceSum(_Reduce):
    name = "ReduceSum"
    dtypes = (DType.F32, DType.I32, DType.I64)
    first_kernel = next_kernel = "reduce_sum"

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        assert upstream[0] is not None
        return (self.spread(node, upstream[0], build),)


class ReduceMean(_Reduce):
    name = "ReduceMean"
    first_kernel = next_kernel = "reduce_sum"
    only_kernel = finish_kernel = "reduce_mean"

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        count = node.input(0).size // max(node.output().size, 1)
        (dy,) = build.emit("Div", [upstream[0], build.constant(float(count))])
        return (self.spread(node, dy, build),)


class _ReduceExtremum(_Reduce):
    """The gradient goes to the extremal elements of a run, evenly where several are equal (PyTorch's amax)."""

    dtypes = (DType.F32, DType.I32, DType.BOOL)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        x = node.input(0)
        runs = _runs(x.shape, _reduced_axes(node))
        (value,) = build.emit("Reshape", [node.inputs[0]], {"shape": (runs[0].o, runs[0].r, runs[0].i)})
        sources, extrema = [value], []
        for following in runs[1:]:  # what lies between the runs is not kept: reduce once more
            (value,) = build.emit(self.name, [value], {"axes": (1,), "keepdims": 0})
            extrema.append(value)
            (value,) = build.emit("Reshape", [value], {"shape": (following.o, following.r, following.i)})
            sources.append(value)
        extrema.append(node.outputs[0])
        gradient = upstream[0]
        for run, source, extremum in reversed(list(zip(runs, sources, extrema, strict=True))):
            flat = [build.emit("Reshape", [each], {"shape": (run.o, run.i)})[0] for each in (gradient, extremum)]
            (gradient,) = build.emit("ReduceExtremumGrad", [flat[0], source, flat[1]])
        return build.emit("Reshape", [gradient], {"shape": x.shape})


class ReduceMax(_ReduceExtremum):
    name = "ReduceMax"
    first_kernel = next_kernel = "reduce_max"


class ReduceMin(_ReduceExtremum):
    name = "ReduceMin"
    first_kernel = next_kernel = "reduce_min"


class ReduceExtremumGrad(Operator):
    """(dY [o, i], X [o, r, i], Y [o, i]) -> dX, for a maximum or a minimum over r."""

    name = "ReduceExtremumGrad"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(3)
        for position in range(3):
            node.expect_dtype(position, DType.F32)
        x = node.input(1)
        if x.rank != 3:
            raise node.error("ReduceExtremumGrad reduces the middle axis", expected="rank 3", got=str(list(x.shape)))
        for position, what in ((0, "gradient of Y"), (2, "forward output")):
            node.expect_shape(position, (x.shape[0], x.shape[2]), what)
        return (x,)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        o, r, i = node.input(1).shape
        narrow = ((o, i), (along("o"), along("i")))
        wide = ((o, r, i), (along("o"), along("r"), along("i")))
        return (
            Nest(
                "reduce_extremum_grad",
                (Axis("o", o), Axis("r", r, AxisKind.INNER), Axis("i", i)),
                (
                    Operand("dy", node.inputs[0], Access.READ, *narrow),
                    Operand("x", node.inputs[1], Access.READ, *wide),
                    Operand("y", node.inputs[2], Access.READ, *narrow),
                    Operand("dx", node.outputs[0], Access.WRITE, *wide),
                ),
            ),
        )

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 1),)


class ReduceProd(_Reduce):
    name = "ReduceProd"
    first_kernel = next_kernel = "reduce_prod"


class _ReduceSquares(_Reduce):
    """Norms of second order: the gradient is X times a factor per output."""

    first_kernel = "reduce_sum_square"
    next_kernel = "reduce_sum"

    @abstractmethod
    def factor(self, node: NodeView, dy: str, build: GradientBuilder) -> str:
        """The factor, in the output's shape."""

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        assert upstream[0] is not None
        factor = self.spread(node, self.factor(node, upstream[0], build), build)
        return build.emit("Mul", [factor, node.inputs[0]])


class ReduceSumSquare(_ReduceSquares):
    name = "ReduceSumSquare"

    def factor(self, node: NodeView, dy: str, build: GradientBuilder) -> str:
        return build.emit("Mul", [dy, build.constant(2.0)])[0]


class ReduceL2(_ReduceSquares):
    name = "ReduceL2"
    only_kernel = "reduce_l2"
    finish_kernel = "reduce_root"

    def factor(self, node: NodeView, dy: str, build: GradientBuilder) -> str:
        return build.emit("Div", [dy, node.outputs[0]])[0]


class ReduceL1(_Reduce):
    name = "ReduceL1"
    first_kernel = "reduce_l1"
    next_kernel = "reduce_sum"

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        assert upstream[0] is not None
        (signs,) = build.emit("Sign", [node.inputs[0]])
        return build.emit("Mul", [self.spread(node, upstream[0], build), signs])
