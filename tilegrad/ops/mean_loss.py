"""MSELoss, L1Loss, HuberLoss and BCEWithLogitsLoss: (prediction, target) -> the mean over all elements, a scalar.

The sum's order is part of the meaning: blocks of `BLOCK` elements in flat order, each summed from +0, then the blocks'
sums in order, then one division by the element count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tilegrad.ir.nest import FIXED, Access, Axis, AxisKind, Index, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._pointwise import float_attribute
from tilegrad.ops.base import GradientBuilder, NodeView, Operator

BLOCK = 64


def _check_pair(node: NodeView, prediction: int, target: int) -> None:
    node.expect_dtype(prediction, DType.F32)
    node.expect_dtype(target, DType.F32)
    node.expect_shape(target, node.input(prediction).shape, "target")


class _MeanLoss(Operator):
    kernel: ClassVar[str]

    def constants(self, node: NodeView) -> dict[str, float]:
        """What else the kernels take."""
        return {}

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2)
        _check_pair(node, 0, 1)
        self.constants(node)
        return (TensorType(DType.F32, ()),)

    def temporaries(self, node: NodeView) -> tuple[TensorType, ...]:
        return (TensorType(DType.F32, (-(-node.input(0).size // BLOCK),)),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        size = node.input(0).size
        blocks = -(-size // BLOCK)
        elements = ((size,), (Index((("b", BLOCK), ("j", 1))),))
        part = node.temporary(0)
        return (
            Nest(
                self.kernel,
                (Axis("b", blocks), Axis("j", BLOCK, AxisKind.INNER)),
                (
                    Operand("x", node.inputs[0], Access.READ, *elements),
                    Operand("t", node.inputs[1], Access.READ, *elements),
                    Operand("part", part, Access.WRITE, (blocks,), (along("b"),)),
                ),
                self.constants(node),
            ),
            Nest(
                "mean_loss_total",
                (Axis("i", blocks, AxisKind.REDUCTION),),
                (
                    Operand("part", part, Access.READ, (blocks,), (along("i"),)),
                    Operand("loss", node.outputs[0], Access.WRITE, (1,), (FIXED,)),
                ),
                {"count": float(size)},
            ),
        )

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        x, t = node.inputs
        dx = dt = None
        if wanted[0]:
            (dx,) = build.emit(f"{self.name}Grad", [upstream[0], x, t], node.node.attributes, hint=f"{x}_grad")
        if wanted[1]:
            dt = self.target_gradient(node, upstream[0], build)
        return (dx, dt)

    def target_gradient(self, node: NodeView, dy: str | None, build: GradientBuilder) -> str:
        """For losses of the difference: prediction and target change places."""
        x, t = node.inputs
        return build.emit(f"{self.name}Grad", [dy, t, x], node.node.attributes, hint=f"{t}_grad")[0]


class MSELoss(_MeanLoss):
    name = "MSELoss"
    kernel = "mse_loss"


class L1Loss(_MeanLoss):
    name = "L1Loss"
    kernel = "l1_loss"


def _delta(node: NodeView) -> dict[str, float]:
    delta = float_attribute(node, "delta", 1.0)
    if delta <= 0.0:
        raise node.error(f"{node.node.op}: bad attribute 'delta'", expected="more than 0", got=str(delta))
    return {"delta": delta}


class HuberLoss(_MeanLoss):
    """Half the squared difference up to `delta`, delta (|difference| - delta / 2) beyond it."""

    name = "HuberLoss"
    kernel = "huber_loss"

    def constants(self, node: NodeView) -> dict[str, float]:
        return _delta(node)


class BCEWithLogitsLoss(_MeanLoss):
    name = "BCEWithLogitsLoss"
    kernel = "bce_with_logits_loss"

    def target_gradient(self, node: NodeView, dy: str | None, build: GradientBuilder) -> str:
        """The loss is softplus(x) - x t."""
        (scale,) = build.emit("Div", [dy, build.constant(-float(node.input(0).size))])
        return build.emit("Mul", [node.inputs[0], scale])[0]


class _MeanLossGrad(Operator):
    """(dY, prediction, target) -> gradient of the prediction."""

    kernel: ClassVar[str]

    def constants(self, node: NodeView) -> dict[str, float]:
        """What else the kernel takes."""
        return {}

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(3)
        node.expect_dtype(0, DType.F32)
        node.expect_shape(0, (), "gradient of the loss")
        _check_pair(node, 1, 2)
        self.constants(node)
        return (node.input(1),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        size = node.output().size
        elements = ((size,), (along("i"),))
        return (
            Nest(
                self.kernel,
                (Axis("i", size),),
                (
                    Operand("dy", node.inputs[0], Access.READ, (1,), (FIXED,)),
                    Operand("x", node.inputs[1], Access.READ, *elements),
                    Operand("t", node.inputs[2], Access.READ, *elements),
                    Operand("dx", node.outputs[0], Access.WRITE, *elements),
                ),
                {"count": float(size), **self.constants(node)},
            ),
        )

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 1), (0, 2))


class MSELossGrad(_MeanLossGrad):
    name = "MSELossGrad"
    kernel = "mse_loss_grad"


class L1LossGrad(_MeanLossGrad):
    name = "L1LossGrad"
    kernel = "l1_loss_grad"


class HuberLossGrad(_MeanLossGrad):
    name = "HuberLossGrad"
    kernel = "huber_loss_grad"

    def constants(self, node: NodeView) -> dict[str, float]:
        return _delta(node)


class BCEWithLogitsLossGrad(_MeanLossGrad):
    name = "BCEWithLogitsLossGrad"
    kernel = "bce_with_logits_loss_grad"
