"""GroupNormalization (opset 21: scale and bias per channel) and InstanceNormalization, which is one group per channel.

A mean is the sum over the group's channels and planes in index order, divided by the count; the variance is that of
the squared distances from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilegrad.ir.nest import Nest
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._normalize import Layout, epsilon_of, expect_channels, expect_image
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example, floats


def _layout(node: NodeView, data: int, groups: int) -> Layout:
    n, c, *plane = node.input(data).shape
    return Layout("group_norm", n, groups, c // groups, prod(plane), True, epsilon_of(node))


def _groups(node: NodeView, data: int) -> int:
    """`num_groups`, which must divide the channels."""
    groups, channels = node.required("num_groups"), node.input(data).shape[1]
    if not isinstance(groups, int) or groups < 1 or channels % groups:
        raise node.error(
            f"{node.node.op}: the channels do not divide into groups",
            expected=f"a divisor of {channels}",
            got=f"num_groups {groups}",
        )
    return groups


def _statistic_nests(layout: Layout, x: str, mean: str, inverse: str) -> tuple[Nest, ...]:
    return (layout.row_statistics(x, None, mean, 1), layout.row_statistics(x, mean, inverse, 2))


def _statistics(layout: Layout) -> tuple[TensorType, ...]:
    return (TensorType(DType.F32, (layout.o, layout.g)),) * 2


class GroupNormalization(Operator):
    name = "GroupNormalization"
    parameter_inputs = (1, 2)

    def example(self, draw: Draw) -> Example:
        groups = draw.one_of(1, 2, 3, 4)
        channels = groups * draw.between(1, 8)
        shape = (draw.one_of(1, 2, 3, 5), channels, draw.between(1, 12), draw.between(1, 12))
        return Example(
            floats(shape, (channels,), (channels,)), {"num_groups": groups} if self.name == "GroupNormalization" else {}
        )

    def groups(self, node: NodeView) -> int:
        return _groups(node, 0)

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(3)
        expect_image(node, 0)
        expect_channels(node, 0, (1, "scale"), (2, "bias"))
        epsilon_of(node)
        self.groups(node)
        stash_type = node.attribute("stash_type", 1)
        if stash_type != 1:
            raise node.error(
                f"{node.node.op}: statistics are computed in float", expected="stash_type 1", got=str(stash_type)
            )
        return (node.input(0),)

    def temporaries(self, node: NodeView) -> tuple[TensorType, ...]:
        return _statistics(_layout(node, 0, self.groups(node)))

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        layout = _layout(node, 0, self.groups(node))
        x, scale, bias = node.inputs
        mean, inverse = node.temporary(0), node.temporary(1)
        return (
            *_statistic_nests(layout, x, mean, inverse),
            layout.apply(x, scale, bias, mean, inverse, node.outputs[0]),
        )

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        x, scale = node.inputs[:2]
        attributes = {"num_groups": self.groups(node), "epsilon": epsilon_of(node)}
        return build.emit(
            "GroupNormalizationGrad",
            [upstream[0], x, scale],
            attributes,
            outputs=tuple(wanted[:3]),
            hint=f"{x}_grad",
        )


class InstanceNormalization(GroupNormalization):
    name = "InstanceNormalization"

    def groups(self, node: NodeView) -> int:
        return max(node.input(0).shape[1], 1)


class GroupNormalizationGrad(Operator):
    """(dY, X, scale) -> (dX?, dscale?, dbias?); the statistics are computed again from X."""

    name = "GroupNormalizationGrad"

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(3)
        expect_image(node, 1)
        node.expect_dtype(0, DType.F32)
        node.expect_shape(0, node.input(1).shape, "gradient of Y")
        expect_channels(node, 1, (2, "scale"))
        epsilon_of(node)
        _groups(node, 1)
        return (node.input(1), node.input(2), node.input(2))

    def temporaries(self, node: NodeView) -> tuple[TensorType, ...]:
        """Statistics, the sums of each sample and channel, and what the statistics pass back."""
        layout = _layout(node, 1, _groups(node, 1))
        sums = (TensorType(DType.F32, (layout.o, layout.channels)),) * 2
        return (*_statistics(layout), *sums, *_statistics(layout))

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        layout = _layout(node, 1, _groups(node, 1))
        dy, x, scale = node.inputs
        mean, inverse, total, dot, shift, tilt = (node.temporary(i) for i in range(6))
        nests = [*_statistic_nests(layout, x, mean, inverse), layout.dots(dy, x, mean, inverse, total, dot)]
        if node.has_output(1) or node.has_output(2):
            nests.append(layout.parameters(total, dot, node.output_name(1), node.output_name(2)))
        if node.has_output(0):
            nests.append(layout.moments(total, dot, scale, shift, tilt, layout.d * layout.s))
            nests.append(layout.input_gradient(dy, x, scale, mean, inverse, shift, tilt, node.outputs[0]))
        return tuple(nests)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 0), (0, 1))
