"""Normalisations, softmax and dropout."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from tilegrad.verify.torch_ops.base import Call, Function, ModalFunction, Mode, Outputs


def _channels(x: Tensor, values: Tensor) -> Tensor:
    return values.reshape(-1, *([1] * (x.dim() - 2)))


def _batch_normalization(
    call: Call, mode: Mode, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Outputs:
    """With batch statistics PyTorch updates `mean` and `variance` in place, its unbiased variance included.

    Statistics that the graph computes are no running ones: they carry gradients, and no policy changes them.
    """
    epsilon = call.get("epsilon", 1e-5)
    if not call.has_running_statistics:
        if call.get("training_mode", 0):
            return functional.batch_norm(x, None, None, scale, bias, True, 0.0, epsilon)
        spread = torch.sqrt(_channels(x, variance) + epsilon)
        return (x - _channels(x, mean)) / spread * _channels(x, scale) + _channels(x, bias)
    keep = 1.0 - call.get("momentum", 0.9)
    if mode.batch_statistics and x.numel() == x.shape[1]:
        raise call.fail(f"batch statistics need more than one value per channel, input {tuple(x.shape)} has one")
    y = functional.batch_norm(x, mean, variance, scale, bias, mode.batch_statistics, keep, epsilon)
    return (y, mean, variance)[: call.output_count] if call.output_count > 1 else y


def _dropout(call: Call, mode: Mode, x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None) -> Outputs:
    share = float(ratio) if ratio is not None else float(call.get("ratio", 0.5))
    wanted = None if mode.dropout_mask is None else mode.dropout_mask(call.name, tuple(x.shape), mode.minibatch)
    if wanted is None:
        keep, y = torch.ones(x.shape, dtype=torch.bool), x
    else:
        keep = torch.tensor(wanted).reshape(x.shape) != 0
        y = torch.where(keep, x / (1.0 - share) if share < 1.0 else x, torch.zeros_like(x))
    return (y, keep) if call.output_count > 1 else y


def _layer_normalization(call: Call, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Outputs:
    axis = call.get("axis", -1) % x.dim()
    normalized, epsilon = x.shape[axis:], call.get("epsilon", 1e-5)
    if scale.shape == normalized and (bias is None or bias.shape == normalized):
        y = functional.layer_norm(x, normalized, scale, bias, eps=epsilon)
    else:
        y = functional.layer_norm(x, normalized, eps=epsilon) * scale
        y = y if bias is None else y + bias
    if call.output_count == 1:
        return y
    axes = list(range(axis, x.dim()))
    mean = x.mean(dim=axes, keepdim=True)
    inverse = torch.rsqrt(x.var(dim=axes, keepdim=True, correction=0) + epsilon)
    return (y, mean, inverse)[: call.output_count]


def _rms_normalization(call: Call, x: Tensor, scale: Tensor) -> Tensor:
    axes = list(range(call.get("axis", -1) % x.dim(), x.dim()))
    return x * torch.rsqrt((x * x).mean(dim=axes, keepdim=True) + call.get("epsilon", 1e-5)) * scale


def _group_normalization(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Scale and bias were per group in opset 18 to 20 and are per channel since 21."""
    groups = call.get("num_groups")
    y = torch.group_norm(x, groups, eps=call.get("epsilon", 1e-5))
    if call.opset < 21 and scale.numel() == groups:
        repeats = x.shape[1] // groups
        scale, bias = scale.repeat_interleave(repeats), bias.repeat_interleave(repeats)
    return y * _channels(x, scale) + _channels(x, bias)


def _instance_normalization(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    y = torch.group_norm(x, x.shape[1], eps=call.get("epsilon", 1e-5))
    return y * _channels(x, scale) + _channels(x, bias)


def _soft(call: Call, x: Tensor, logarithm: bool) -> Tensor:
    """Before opset 13 the input was flattened to two dimensions at `axis`, 1 by default."""
    function = functional.log_softmax if logarithm else functional.softmax
    if call.opset >= 13:
        return function(x, dim=call.get("axis", -1))
    axis = call.get("axis", 1) % max(1, x.dim())
    rows = 1
    for size in x.shape[:axis]:
        rows *= size
    return function(x.reshape(rows, -1), dim=1).reshape(x.shape)


def _softmax(call: Call, x: Tensor) -> Tensor:
    return _soft(call, x, logarithm=False)


def _log_softmax(call: Call, x: Tensor) -> Tensor:
    return _soft(call, x, logarithm=True)


def _weighted_loss(call: Call, scores: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """By definition: PyTorch's own does not differentiate its class weights."""
    ignored = call.get("ignore_index")
    counts = torch.ones_like(labels, dtype=torch.bool) if ignored is None else labels != ignored
    label = torch.where(counts, labels, torch.zeros_like(labels))
    share = weights[label] * counts
    rows = -scores.gather(1, label.unsqueeze(1)).squeeze(1) * share
    reduction = call.get("reduction", "mean")
    if reduction == "none":
        return rows
    return rows.sum() / share.sum() if reduction == "mean" else rows.sum()


def _softmax_cross_entropy(call: Call, scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Outputs:
    ignored = call.get("ignore_index")
    if weights is not None and weights.requires_grad:
        loss = _weighted_loss(call, functional.log_softmax(scores, dim=1), labels.to(torch.int64), weights)
        return (loss, functional.log_softmax(scores, dim=1)) if call.output_count > 1 else loss
    loss = functional.cross_entropy(
        scores,
        labels.to(torch.int64),
        weight=weights,
        ignore_index=-100 if ignored is None else ignored,
        reduction=call.get("reduction", "mean"),
    )
    return (loss, functional.log_softmax(scores, dim=1)) if call.output_count > 1 else loss


TABLE: dict[str, Function] = {
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": _instance_normalization,
    "LayerNormalization": _layer_normalization,
    "LogSoftmax": _log_softmax,
    "RMSNormalization": _rms_normalization,
    "Softmax": _softmax,
    "SoftmaxCrossEntropyLoss": _softmax_cross_entropy,
}
MODAL: dict[str, ModalFunction] = {
    "BatchNormalization": _batch_normalization,
    "Dropout": _dropout,
}
