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
_REWRITES: dict[str, str] = {
    **dict.fromkeys(("LSTM", "GRU", "RNN"), "unroll it over time into Gemm, Sigmoid, Tanh and Mul"),
    **dict.fromkeys(("Loop", "Scan", "SequenceMap"), _UNROLL),
    **dict.fromkeys(("ArgMax", "ArgMin", "TopK", "NonMaxSuppression", "Multinomial"), _LOGITS),
    **dict.fromkeys(("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli"), _NOISE),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger"), _FLOAT),
    **dict.fromkeys(("Resize", "Upsample"), "use ConvTranspose; for nearest neighbours Unsqueeze, Expand, Reshape"),
    **dict.fromkeys(("ScatterND", "ScatterElements", "Scatter"), "use Where, Concat or Pad"),
    **dict.fromkeys(("GatherND", "GatherElements"), "use Gather, Slice or a Mul with a mask"),
    "If": "export with the condition fixed",
    "Einsum": "write it as Transpose, Reshape and MatMul",
    "NonZero": "its shape depends on data; use Where",
    "Shape": "export with fixed shapes",
    "Mean": "use Add and Mul",
    "Sum": "use Add",
    "LRN": "use a BatchNormalization or GroupNormalization",
    "LpPool": "use Pow, AveragePool and Pow",
    "MaxUnpool": "use ConvTranspose",
    "FusedMatMul": "export without ONNX Runtime's graph optimizations",
    "FusedConv": "export without ONNX Runtime's graph optimizations",
    "FusedGemm": "export without ONNX Runtime's graph optimizations",
    "SkipLayerNormalization": "export without ONNX Runtime's graph optimizations",
}


def node_label(node: onnx.NodeProto, position: int) -> str:
    """What to call a node that may have no name."""
    return node.name or f"{node.op_type}_{position}"


def unknown_to_onnx(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Nodes of the standard domain whose operator the standard does not have at this opset."""
    versions = {entry.domain: int(entry.version) for entry in model.opset_import}
    opset = versions.get("", versions.get("ai.onnx", 0))
    found = []
    for node in model.graph.node:
        if node.domain in ("", "ai.onnx"):
            try:
                defs.get_schema(node.op_type, opset, "")
            except defs.SchemaError:
                found.append(node)
    return found


def refuse_unsupported(model: onnx.ModelProto) -> None:
    """For a model that cannot even be checked: lists what the registry does not have, foldable or not."""
    found = {
        node_label(node, position): operator_name(node)
        for position, node in enumerate(model.graph.node)
        if registry.find(operator_name(node)) is None and node.op_type != "Constant"
    }
    raise unsupported_error(found, {})


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
        rewrite = _REWRITES.get(operator.rpartition(".")[2])
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
