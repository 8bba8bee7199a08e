"""SoftmaxCrossEntropyLossWithGrad: (logits, label, dY) -> (loss, dX), a loss and its gradient in one call.

A small step takes longer to fetch the code of a loss than to run it, and both have most of theirs in common. It is the
plain form: a mean or a sum, without class weights, ignore_index or smoothing. The bits are those of
SoftmaxCrossEntropyLoss followed by SoftmaxCrossEntropyLossGrad.
"""

from __future__ import annotations

from math import prod

from tilegrad.ir.nest import FIXED, Access, Axis, AxisKind, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops.base import NodeView, Operator
from tilegrad.ops.example import Draw, Example, floats


class SoftmaxCrossEntropyLossWithGrad(Operator):
    name = "SoftmaxCrossEntropyLossWithGrad"
    parameter_inputs = ()

    def example(self, draw: Draw) -> Example:
        scores = (draw.one_of(1, 1, draw.between(1, 64)), draw.between(2, 64))
        labels = TensorType(draw.one_of(DType.I32, DType.I64), scores[:1])
        return Example((*floats(scores), labels, *floats(())), {"reduction": draw.one_of("mean", "sum")})

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(3)
        node.expect_dtype(0, DType.F32)
        node.expect_dtype(1, DType.I32, DType.I64)
        node.expect_dtype(2, DType.F32)
        scores = node.input(0)
        if scores.rank < 2:
            raise node.error(
                f"{self.name} takes scores with a batch and a class dimension",
                expected="rank 2 or more",
                got=str(list(scores.shape)),
            )
        node.expect_shape(1, (scores.shape[0], *scores.shape[2:]), "labels")
        node.expect_shape(2, (), "gradient of the loss")
        reduction = node.attribute("reduction", "mean")
        if reduction not in ("mean", "sum"):
            raise node.error(f"{self.name}: unknown reduction", expected="mean or sum", got=str(reduction))
        return TensorType(DType.F32, ()), scores

    def temporaries(self, node: NodeView) -> tuple[TensorType, ...]:
        """The rows' losses, before they are added."""
        rows = node.input(1).size
        return (TensorType(DType.F32, (rows,)),) if rows > 1 else ()

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        n, c, s = node.input(0).shape[0], node.input(0).shape[1], prod(node.input(0).shape[2:])
        is_whole, one = n * s == 1, ((1,), (FIXED,))
        count = float(n * s) if node.attribute("reduction", "mean") == "mean" else 1.0
        part = node.outputs[0] if is_whole else node.temporary(0)
        rows = Nest(
            f"nll_with_grad_{node.input(1).dtype}",
            (Axis("n", n), Axis("c", c, AxisKind.INNER), Axis("s", s)),
            (
                Operand("x", node.inputs[0], Access.READ, (n, c, s), (along("n"), along("c"), along("s"))),
                Operand("label", node.inputs[1], Access.READ, (n, s), (along("n"), along("s"))),
                Operand("dy", node.inputs[2], Access.READ, *one),
                Operand("loss", part, Access.WRITE, (n, s), (along("n"), along("s"))),
                Operand("dx", node.outputs[1], Access.WRITE, (n, c, s), (along("n"), along("c"), along("s"))),
            ),
            {"is_whole": int(is_whole), "count": count},
        )
        if is_whole:
            return (rows,)
        total = Nest(
            "nll_with_grad_total",
            (Axis("i", n * s, AxisKind.REDUCTION),),
            (
                Operand("part", part, Access.READ, (n * s,), (along("i"),)),
                Operand("loss", node.outputs[0], Access.WRITE, *one),
            ),
            {"count": count},
        )
        return (rows, total)
