"""Nests that all normalisations share: the tensor as [o, g, d, s] (see runtime/tg_normalize.h)."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from tilegrad.ir.nest import Access, Axis, AxisKind, Index, Nest, Operand, along
from tilegrad.ir.types import DType
from tilegrad.ops.base import NodeView


def epsilon_of(node: NodeView) -> float:
    epsilon = float(node.attribute("epsilon", 1e-5))
    if not 0.0 <= epsilon < inf:
        raise node.error(f"{node.node.op}: epsilon must not be negative", expected="0 or more", got=str(epsilon))
    return epsilon


def expect_image(node: NodeView, position: int) -> None:
    """[N, C, ...], float."""
    node.expect_dtype(position, DType.F32)
    shape = node.input(position).shape
    if len(shape) < 2:
        raise node.error(
            f"{node.node.op} takes a batch and a channel dimension", expected="rank 2 or more", got=str(list(shape))
        )


def expect_channels(node: NodeView, data: int, *channel_inputs: tuple[int, str]) -> None:
    """Inputs of one value per channel of [N, C, ...] data, each (position, what it is)."""
    for position, what in channel_inputs:
        node.expect_dtype(position, DType.F32)
        node.expect_shape(position, (node.input(data).shape[1],), what)


@dataclass(frozen=True)
class Layout:
    """Statistics are per (o, g), or per g where `per_sample` is False; the affine is per (g, d).

    `prefix` begins the names of the operator's kernels.
    """

    prefix: str
    o: int
    g: int
    d: int
    s: int
    per_sample: bool
    epsilon: float

    @property
    def channels(self) -> int:
        return self.g * self.d

    def _axes(self, s_kind: AxisKind = AxisKind.PARALLEL) -> tuple[Axis, ...]:
        return Axis("o", self.o), Axis("g", self.g), Axis("d", self.d), Axis("s", self.s, s_kind)

    def _data(self, name: str, value: str | None, access: Access = Access.READ) -> Operand:
        index = tuple(along(axis) for axis in "ogds")
        return Operand(name, value, access, (self.o, self.g, self.d, self.s), index)

    def _statistic(self, name: str, value: str | None, access: Access = Access.READ) -> Operand:
        if self.per_sample:
            return Operand(name, value, access, (self.o, self.g), (along("o"), along("g")))
        return Operand(name, value, access, (self.g,), (along("g"),))

    def _affine(self, name: str, value: str | None, access: Access = Access.READ) -> Operand:
        return Operand(name, value, access, (self.g, self.d), (along("g"), along("d")))

    def _channel_rows(self, name: str, value: str | None, access: Access) -> Operand:
        return Operand(name, value, access, (self.o, self.g, self.d), (along("o"), along("g"), along("d")))

    def apply(self, x: str, scale: str, bias: str, mean: str, spread: str, y: str) -> Nest:
        operands = (
            self._data("x", x),
            self._affine("scale", scale),
            self._affine("bias", bias),
            self._statistic("mean", mean),
            self._statistic("spread", spread),
            self._data("y", y, Access.WRITE),
        )
        return Nest(self.prefix, self._axes(), operands)

    def row_statistics(self, x: str, mean: str | None, total: str, finish: int) -> Nest:
        """Sums over (d, s) for each (o, g): of x, or of squared distances from the mean (see the kernel's `finish`)."""
        k = self.d * self.s
        index: tuple[Index, ...] = (along("o"), along("g"), along("k"))
        operands = (
            Operand("x", x, Access.READ, (self.o, self.g, k), index),
            self._statistic("mean", mean),
            Operand("total", total, Access.WRITE, (self.o, self.g), index[:2]),
        )
        axes = (Axis("o", self.o), Axis("g", self.g), Axis("k", k, AxisKind.REDUCTION))
        constants = {"finish": finish, "count": float(k), "epsilon": self.epsilon}
        return Nest(f"{self.prefix}_partial", axes, operands, constants)

    def dots(self, dy: str, x: str, mean: str, spread: str, total: str, dot: str) -> Nest:
        """Sums over s of dy and of dy times the normalised x, for each sample and channel."""
        operands = (
            self._data("dy", dy),
            self._data("x", x),
            self._statistic("mean", mean),
            self._statistic("spread", spread),
            self._channel_rows("sum", total, Access.WRITE),
            self._channel_rows("dot", dot, Access.WRITE),
        )
        return Nest(f"{self.prefix}_dots", self._axes(AxisKind.REDUCTION), operands)

    def parameters(self, total: str | None, dot: str | None, dscale: str | None, dbias: str | None) -> Nest:
        """The gradients of scale and bias: those sums over the samples."""
        rows = ((self.o, self.channels), (along("o"), along("c")))
        columns = ((self.channels,), (along("c"),))
        operands = (
            Operand("sum", total, Access.READ, *rows),
            Operand("dot", dot, Access.READ, *rows),
            Operand("dscale", dscale, Access.WRITE, *columns),
            Operand("dbias", dbias, Access.WRITE, *columns),
        )
        axes = (Axis("o", self.o, AxisKind.REDUCTION), Axis("c", self.channels))
        return Nest(f"{self.prefix}_parameters", axes, operands)

    def moments(self, total: str, dot: str, scale: str, shift: str, tilt: str, count: int) -> Nest:
        """What the statistics pass back. Statistics of the whole batch have sums of the whole batch (o is 1)."""
        o = self.o if self.per_sample else 1
        rows = ((o, self.g, self.d), (along("o"), along("g"), along("d")))
        groups = ((o, self.g), (along("o"), along("g")))
        operands = (
            Operand("sum", total, Access.READ, *rows),
            Operand("dot", dot, Access.READ, *rows),
            self._affine("scale", scale),
            Operand("shift", shift, Access.WRITE, *groups),
            Operand("tilt", tilt, Access.WRITE, *groups),
        )
        axes = (Axis("o", o), Axis("g", self.g), Axis("d", self.d, AxisKind.INNER))
        return Nest(f"{self.prefix}_moments", axes, operands, {"count": float(count)})

    def input_gradient(
        self, dy: str, x: str, scale: str, mean: str, spread: str, shift: str, tilt: str, dx: str
    ) -> Nest:
        operands = (
            self._data("dy", dy),
            self._data("x", x),
            self._affine("scale", scale),
            self._statistic("mean", mean),
            self._statistic("spread", spread),
            self._statistic("shift", shift),
            self._statistic("tilt", tilt),
            self._data("dx", dx, Access.WRITE),
        )
        return Nest(f"{self.prefix}_grad", self._axes(), operands)
