"""Operators that tilegrad does not have: all of them at once, with their nodes and what would help."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import defs

from tilegrad.errors import UserError
from tilegrad.ops import registry

_UNROLL = "unroll it before exporting"
_LOGITS = "leave it out and let the model return the scores it is computed from"
_NOISE = "feed the random numbers as an input"
_FLOAT = "export the float model, without quantization"
_OPTIMIZED = "export without ONNX Runtime's graph optimizations"
REWRITES: dict[str, str] = {
    **dict.fromkeys(("LSTM", "GRU", "RNN"), "unroll it over time into Gemm, Sigmoid, Tanh and Mul"),
    **dict.fromkeys(("Loop", "Scan", "SequenceMap"), _UNROLL),
    **dict.fromkeys(("ArgMax", "ArgMin", "TopK", "NonMaxSuppression", "Multinomial"), _LOGITS),
    **dict.fromkeys(("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli"), _NOISE),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger"), _FLOAT),
    **dict.fromkeys(("Resize", "Upsample"), "use ConvTranspose; for nearest neighbours Unsqueeze, Expand, Reshape"),
    **dict.fromkeys(("ScatterND", "ScatterElements", "Scatter"), "use Where, Concat or Pad"),
    "GatherND": "use Gather, GatherElements or Slice",
    "If": "export with the condition fixed",
    "Einsum": "write it as Transpose, Reshape and MatMul",
    "NonZero": "its shape depends on data; use Where",
    "Shape": "export with fixed shapes",
    "LRN": "use a BatchNormalization or GroupNormalization",
    "LpPool": "use Pow, AveragePool and Pow",
    "MaxUnpool": "use ConvTranspose",
    **dict.fromkeys(("FusedConv", "FusedGemm", "SkipLayerNormalization"), _OPTIMIZED),
}


def node_label(node: onnx.NodeProto, position: int) -> str:
    """What to call a node that may have no name."""
    return node.name or f"{node.op_type}_{position}"


def unsupported_nodes(model: onnx.ModelProto) -> dict[str, str]:
    """For a model that ONNX itself cannot process: operators by node name that we do not have and that cannot fold.

    What folds is told from the graph alone here: nodes that depend on nothing but constants and shapes.
    """
    constant = {tensor.name for tensor in model.graph.initializer}
    found = {}
    for position, node in enumerate(model.graph.node):
        is_known = _is_known_to_onnx(node, model)
        if is_known and (node.op_type in ("Shape", "Size") or all(name in constant for name in node.input if name)):
            constant.update(node.output)
        elif registry.find(operator_name(node)) is None:
            found[node_label(node, position)] = operator_name(node)
    return found


def _is_known_to_onnx(node: onnx.NodeProto, model: onnx.ModelProto) -> bool:
    """An operator of the standard domain that the standard has at the model's opset."""
    versions = {entry.domain: int(entry.version) for entry in model.opset_import}
    if node.domain not in ("", "ai.onnx"):
        return False
    try:
        defs.get_schema(node.op_type, versions.get("", versions.get("ai.onnx", 0)), "")
    except defs.SchemaError:
        return False
    return True


def operator_name(node: onnx.NodeProto) -> str:
    """The name in the registry; other domains are part of it, so that they never meet a standard operator.

    ONNX Runtime's operators that we have (FusedMatMul, gradients) go by their plain name.
    """
    if node.domain in ("", "ai.onnx"):
        return node.op_type
    if node.domain == "com.microsoft" and registry.find(node.op_type) is not None:
        return node.op_type
    return f"{node.domain}.{node.op_type}"


def unsupported_error(nodes: Mapping[str, str], reasons: Mapping[str, str]) -> UserError:
    """`nodes` is operator by node name; `reasons` says more about single nodes."""
    by_operator: dict[str, list[str]] = {}
    for name, operator in nodes.items():
        by_operator.setdefault(operator, []).append(name)
    lines = []
    hints = []
    for operator in sorted(by_operator):
        names = by_operator[operator]
        lines.append(f"{operator}: {', '.join(repr(name) for name in names)}")
        hints += [f"'{name}': {reasons[name]}" for name in names if name in reasons]
        rewrite = REWRITES.get(operator.rpartition(".")[2])
        if rewrite is not None:
            hints.append(f"{operator}: {rewrite}")
    count = len(by_operator)
    what = "an operator" if count == 1 else f"{count} operators"
    return UserError(
        f"the model uses {what} that tilegrad does not have",
        stage="import",
        expected="operators listed by `tilegrad ops`",
        got=_list(lines),
        hint=_list(hints) if hints else None,
    )


def _list(lines: list[str]) -> str:
    return lines[0] if len(lines) == 1 else "".join(f"\n    {line}" for line in lines)
