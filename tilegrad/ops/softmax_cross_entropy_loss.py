"""SoftmaxCrossEntropyLoss in its canonical form (loss, log_prob), NegativeLogLikelihoodLoss, and their gradients.

Logits are [N, C] or [N, C, d1, ...], labels [N] or [N, d1, ...]. Each row gives -weight[label] * log_prob[label];
the loss is the rows' sum in index order, for a mean divided by the sum of their weights. An ignored row counts
nothing; a label that is no class makes the loss NaN. The attribute `smoothing` of SoftmaxCrossEntropyLoss is ours: it
is PyTorch's label smoothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from math import prod
from typing import ClassVar

import numpy as np

from tilegrad.ir.graph import Attribute
from tilegrad.ir.nest import FIXED, Access, Axis, AxisKind, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops.base import GradientBuilder, NodeView, Operator
from tilegrad.ops.example import Draw, Example

_REDUCTIONS = ("mean", "sum", "none")
_INT32_LIMIT = 2**31


def _reduction(node: NodeView) -> str:
    reduction = node.attribute("reduction", "mean")
    if reduction not in _REDUCTIONS:
        raise node.error(f"{node.node.op}: unknown reduction", expected=" or ".join(_REDUCTIONS), got=str(reduction))
    return reduction


def _ignored(node: NodeView) -> dict[str, int]:
    """The kernels' two fields about ignore_index."""
    ignored = node.attribute("ignore_index", 0)
    if not -_INT32_LIMIT <= ignored < _INT32_LIMIT:
        raise node.error(f"{node.node.op}: ignore_index is too large", expected="a 32-bit integer", got=str(ignored))
    return {"has_ignored": int("ignore_index" in node.node.attributes), "ignored": ignored}


def _smoothing(node: NodeView) -> dict[str, float]:
    """The kernels' two fields about smoothing, or none."""
    smoothing = node.attribute("smoothing", 0.0)
    if not 0.0 <= smoothing < 1.0:
        raise node.error(f"{node.node.op}: bad smoothing", expected="0 up to, not including, 1", got=str(smoothing))
    scores = node.input(1 if node.node.op.endswith("Grad") else 0).shape
    return {"kept": 1.0 - smoothing, "spread": smoothing / scores[1]} if smoothing else {}


def _check_labels(node: NodeView, scores: int, label: int, weight: int) -> tuple[int, ...]:
    """Checks scores, labels and class weights (by input position); returns the labels' shape."""
    node.expect_dtype(scores, DType.F32)
    node.expect_dtype(label, DType.I32, DType.I64)
    shape = node.input(scores).shape
    if len(shape) < 2:
        raise node.error(
            f"{node.node.op} takes scores with a batch and a class dimension",
            expected="rank 2 or more",
            got=str(list(shape)),
        )
    rows = (shape[0], *shape[2:])
    node.expect_shape(label, rows, "labels")
    if node.has_input(weight):
        node.expect_dtype(weight, DType.F32)
        node.expect_shape(weight, (shape[1],), "class weights")
    _reduction(node)
    _refuse_bad_labels(node, label, shape[1], _ignored(node))
    return rows


def _refuse_bad_labels(node: NodeView, label: int, classes: int, ignored: Mapping[str, int]) -> None:
    """Labels that are known now: one that is no class makes every loss NaN."""
    known = node.constants.get(node.inputs[label])
    if known is None:
        return
    labels = known.array.reshape(-1).astype(np.int64)
    wrong = (labels < 0) | (labels >= classes)
    if ignored["has_ignored"]:
        wrong &= labels != ignored["ignored"]
    if wrong.any():
        raise node.error(
            f"{node.node.op}: a label ('{node.inputs[label]}') is no class",
            expected=f"0 to {classes - 1}",
            got=str(labels[wrong][0]),
        )


def _needs_weights(node: NodeView, weight: int) -> bool:
    """Whether the mean's divisor depends on the labels; without weights or ignore_index it is the row count."""
    return _reduction(node) == "mean" and (node.has_input(weight) or "ignore_index" in node.node.attributes)


def _extents(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Scores as [n, c, s]."""
    return shape[0], shape[1], prod(shape[2:])


def _axes(n: int, c: int, s: int) -> tuple[Axis, Axis, Axis]:
    return Axis("n", n), Axis("c", c, AxisKind.INNER), Axis("s", s)


def _scores(name: str, value: str | None, access: Access, n: int, c: int, s: int) -> Operand:
    return Operand(name, value, access, (n, c, s), (along("n"), along("c"), along("s")))


def _rows(name: str, value: str | None, access: Access, n: int, s: int) -> Operand:
    return Operand(name, value, access, (n, s), (along("n"), along("s")))


def _class_weights(value: str | None, c: int) -> Operand:
    return Operand("weight", value, Access.READ, (c,))


class _LabelLoss(Operator):
    """`softmax`: the input is logits and there is an output log_prob."""

    softmax: ClassVar[bool]
    parameter_inputs = ()
    nondifferentiable_inputs = (1,)

    def example(self, draw: Draw) -> Example:
        return Example((), outputs=None if draw.is_so() else (True,))

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(2, 3)
        rows = _check_labels(node, 0, 1, 2)
        loss = TensorType(DType.F32, rows if _reduction(node) == "none" else ())
        if self.softmax:
            _smoothing(node)
        return (loss, node.input(0)) if self.softmax else (loss,)

    def _temporaries(self, node: NodeView) -> dict[str, TensorType]:
        n, c, s = _extents(node.input(0).shape)
        wanted = {
            "prob": (self.softmax and not node.has_output(1), (n, c, s)),
            "loss": (_reduction(node) != "none", (n, s)),
            "share": (_needs_weights(node, 2), (n, s)),
            "total": (_needs_weights(node, 2), ()),
        }
        return {name: TensorType(DType.F32, shape) for name, (is_wanted, shape) in wanted.items() if is_wanted}

    def temporaries(self, node: NodeView) -> tuple[TensorType, ...]:
        return tuple(self._temporaries(node).values())

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        n, c, s = _extents(node.input(0).shape)
        own = {name: node.temporary(i) for i, name in enumerate(self._temporaries(node))}
        prob = own.get("prob", node.output_name(1)) if self.softmax else None
        smoothing = _smoothing(node) if self.softmax else {}
        rows = Nest(
            f"{'smooth_' if smoothing else ''}nll_{node.input(1).dtype}",
            _axes(n, c, s),
            (
                _scores("x", node.inputs[0], Access.READ, n, c, s),
                _rows("label", node.inputs[1], Access.READ, n, s),
                _class_weights(node.input_name(2), c),
                _scores("prob", prob, Access.WRITE, n, c, s),
                _rows("loss", own.get("loss", node.outputs[0]), Access.WRITE, n, s),
                _rows("share", own.get("share"), Access.WRITE, n, s),
            ),
            {**_ignored(node), **smoothing},
        )
        if "loss" not in own:
            return (rows,)
        part, one = ((n * s,), (along("i"),)), ((1,), (FIXED,))
        total = Nest(
            "nll_total",
            (Axis("i", n * s, AxisKind.REDUCTION),),
            (
                Operand("part", own["loss"], Access.READ, *part),
                Operand("weight", own.get("share"), Access.READ, *part),
                Operand("loss", node.outputs[0], Access.WRITE, *one),
                Operand("total", own.get("total"), Access.WRITE, *one),
            ),
            {"count": float(n * s) if _reduction(node) == "mean" else 1.0},
        )
        return (rows, total)

    def weight_gradient(self, node: NodeView, dy: str, log_prob: str, build: GradientBuilder) -> str:
        """Of class weights that the graph computes, by other operators: it is rare.

        Class c has the sum S of -log_prob over the rows that it labels, and of those the number n. Its gradient is
        dy S, or for a mean dy (S - loss n) / (sum of the rows' weights).
        """
        if "smoothing" in node.node.attributes:
            raise node.error("class weights that are computed have no gradient under label smoothing")
        given = self.loss_attributes(node)
        rank = node.input(0).rank
        others = tuple(d for d in range(rank) if d != 1)
        is_none = _reduction(node) == "none"
        one = dy if is_none else build.constant(1.0)
        attributes: dict[str, Attribute] = {**given, "reduction": "none" if is_none else "sum"}
        (marks,) = build.emit("NegativeLogLikelihoodLossGrad", [one, log_prob, node.inputs[1]], attributes)
        (picked,) = build.emit("Mul", [marks, log_prob])
        (sums,) = build.emit("ReduceSum", [picked], {"axes": others, "keepdims": 0})
        if is_none:
            return sums
        if _reduction(node) == "mean":
            (minus_counts,) = build.emit("ReduceSum", [marks], {"axes": others, "keepdims": 0})
            (shares,) = build.emit("Mul", [minus_counts, node.inputs[2]])
            (minus_total,) = build.emit("ReduceSum", [shares], {"axes": (0,), "keepdims": 0})
            (expected,) = build.emit("Mul", [minus_counts, node.outputs[0]])
            (excess,) = build.emit("Add", [sums, expected])
            (sums,) = build.emit("Neg", [build.emit("Div", [excess, minus_total])[0]])
        return build.emit("Mul", [sums, dy])[0]

    @staticmethod
    def loss_attributes(node: NodeView) -> dict[str, Attribute]:
        kept = ("reduction", "ignore_index", "smoothing")
        return {key: node.node.attributes[key] for key in kept if key in node.node.attributes}


class SoftmaxCrossEntropyLoss(_LabelLoss):
    name = "SoftmaxCrossEntropyLoss"
    softmax = True

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((1, 0),)

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        log_prob = node.output_name(1) or build.emit("LogSoftmax", [node.inputs[0]], {"axis": 1})[0]
        parts: list[str] = []
        if upstream[0] is not None:
            inputs = [upstream[0], log_prob, node.inputs[1], *filter(None, [node.input_name(2)])]
            parts += build.emit(
                "SoftmaxCrossEntropyLossGrad", inputs, self.loss_attributes(node), hint=f"{node.inputs[0]}_grad"
            )
        if len(upstream) > 1 and upstream[1] is not None:
            parts += build.emit("LogSoftmaxGrad", [upstream[1], log_prob], {"axis": 1})
        dx = parts[0] if len(parts) == 1 else build.emit("Add", parts)[0]
        dweight = None
        if wanted[2:] == [True] and upstream[0] is not None:
            dweight = self.weight_gradient(node, upstream[0], log_prob, build)
        return (dx, None, dweight)


class NegativeLogLikelihoodLoss(_LabelLoss):
    name = "NegativeLogLikelihoodLoss"
    softmax = False

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        inputs = [upstream[0], node.inputs[0], node.inputs[1], *filter(None, [node.input_name(2)])]
        (dx,) = build.emit(
            "NegativeLogLikelihoodLossGrad", inputs, self.loss_attributes(node), hint=f"{node.inputs[0]}_grad"
        )
        dweight = None
        if wanted[2:] == [True] and upstream[0] is not None:
            dweight = self.weight_gradient(node, upstream[0], node.inputs[0], build)
        return (dx, None, dweight)


class _LabelLossGrad(Operator):
    """(dY, scores, label, weight?) -> dX."""

    @abstractmethod
    def log_probabilities(self, node: NodeView) -> str | None:
        """The value whose exponential enters the gradient."""

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(3, 4)
        rows = _check_labels(node, 1, 2, 3)
        node.expect_dtype(0, DType.F32)
        node.expect_shape(0, rows if _reduction(node) == "none" else (), "gradient of the loss")
        if self.log_probabilities(node) is not None:
            _smoothing(node)
        return (node.input(1),)

    def temporaries(self, node: NodeView) -> tuple[TensorType, ...]:
        return (TensorType(DType.F32, ()),) if _needs_weights(node, 3) else ()

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        n, c, s = _extents(node.input(1).shape)
        suffix = node.input(2).dtype
        weight = _class_weights(node.input_name(3), c)
        one = ((1,), (FIXED,))
        sums: tuple[Nest, ...] = ()
        total = None
        if _needs_weights(node, 3):
            total = node.temporary(0)
            sums = (
                Nest(
                    f"label_weights_{suffix}",
                    (Axis("i", n * s, AxisKind.REDUCTION),),
                    (
                        Operand("label", node.inputs[2], Access.READ, (n * s,), (along("i"),)),
                        weight,
                        Operand("total", total, Access.WRITE, *one),
                    ),
                    {"classes": c, **_ignored(node)},
                ),
            )
        reduction = _reduction(node)
        smoothing = _smoothing(node) if self.log_probabilities(node) is not None else {}
        dy = (
            _rows("dy", node.inputs[0], Access.READ, n, s)
            if reduction == "none"
            else Operand("dy", node.inputs[0], Access.READ, *one)
        )
        return (
            *sums,
            Nest(
                f"{'smooth_' if smoothing else ''}nll_grad_{suffix}",
                _axes(n, c, s),
                (
                    dy,
                    _scores("prob", self.log_probabilities(node), Access.READ, n, c, s),
                    _rows("label", node.inputs[2], Access.READ, n, s),
                    weight,
                    Operand("total", total, Access.READ, *one),
                    _scores("dx", node.outputs[0], Access.WRITE, n, c, s),
                ),
                {"count": float(n * s) if reduction == "mean" else 1.0, **_ignored(node), **smoothing},
            ),
        )


class SoftmaxCrossEntropyLossGrad(_LabelLossGrad):
    """(dY, log_prob, label, weight?) -> gradient of the logits, as in ONNX Runtime."""

    name = "SoftmaxCrossEntropyLossGrad"

    def log_probabilities(self, node: NodeView) -> str | None:
        return node.inputs[1]

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ((0, 1),)


class NegativeLogLikelihoodLossGrad(_LabelLossGrad):
    """(dY, log_prob, label, weight?) -> gradient of the log probabilities, whose values do not enter."""

    name = "NegativeLogLikelihoodLossGrad"

    def log_probabilities(self, node: NodeView) -> str | None:
        return None
