"""Initializers that an exporter merged because they were equal, taken apart again.

PyTorch's TorchScript exporter keeps one of several initializers of equal content and reaches the others through an
Identity named after them: fresh normalisations all share one weight then, and a fresh BatchNormalization's scale
is its variance. Training would tie what was equal by accident. So an initializer that is read directly by several
nodes is one tensor; one that is reached through Identity is a copy.

PyTorch's newer exporter leaves no Identity behind. Whatever it merged stays merged, except what cannot be one tensor in
any framework: a running statistic and something that is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np
import onnx

from tilegrad.frontend.weights import SMALL_ELEMENTS, Arrays, with_initializers
from tilegrad.ir.graph import Graph

_LAYERS = frozenset(
    (
        *("Gemm", "MatMul", "Conv", "ConvTranspose", "PRelu", "BatchNormalization", "LayerNormalization"),
        *("GroupNormalization", "InstanceNormalization", "RMSNormalization"),
    )
)


def split_copies(model: onnx.ModelProto, arrays: Arrays) -> tuple[onnx.ModelProto, Arrays, tuple[str, ...]]:
    """The model without Identities of float initializers, their copies among the arrays, and a note for each."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    arrays = dict(arrays)
    notes = [*_split_identities(result.graph, arrays), *_split_statistics(result.graph, arrays)]
    if not notes:
        return model, arrays, ()
    return with_initializers(result, arrays, limit=SMALL_ELEMENTS), arrays, tuple(notes)


def _split_identities(graph: onnx.GraphProto, arrays: Arrays) -> list[str]:
    outputs = {value.name for value in graph.output}
    readers = Counter(name for node in graph.node for name in set(node.input))
    kept, notes = [], []
    for node in graph.node:
        source = node.input[0] if node.op_type == "Identity" and len(node.input) == 1 else ""
        is_copy = source in arrays and arrays[source].dtype.kind == "f" and readers[source] > 1
        if not is_copy or node.domain not in ("", "ai.onnx") or node.output[0] in outputs:
            kept.append(node)
            continue
        arrays[node.output[0]] = np.array(arrays[source])
        notes.append(f"'{node.output[0]}' is an Identity of initializer '{source}': a copy of its own, not tied to it")
    if notes:
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
        del graph.node[:]
        graph.node.extend(nodes)
        _forget_unread(graph, arrays)
    return notes


def _forget_unread(graph: onnx.GraphProto, arrays: Arrays) -> None:
    """What is an initializer now is declared by none of the values any more."""
    left = [value for value in graph.value_info if value.name not in arrays]
    del graph.value_info[:]
    graph.value_info.extend(left)


def _split_statistics(graph: onnx.GraphProto, arrays: Arrays) -> list[str]:
    """Running means and variances that are also read as something else get a tensor of their own."""
    uses: dict[str, set[str]] = {}
    for node in graph.node:
        for position, name in enumerate(node.input):
            is_statistic = node.op_type == "BatchNormalization" and position in (3, 4)
            uses.setdefault(name, set()).add(("mean", "variance")[position - 3] if is_statistic else "other")
    notes = []
    for node in graph.node:
        if node.op_type != "BatchNormalization":
            continue
        for position, what in ((3, "mean"), (4, "variance")):
            name = node.input[position] if position < len(node.input) else ""
            if name not in arrays or len(uses[name]) == 1:
                continue
            label = node.name or node.output[0]
            hint = f"{label}.running_{what}"
            own = next(n for i in range(len(arrays) + 1) if (n := f"{hint}.{i}" if i else hint) not in arrays)
            arrays[own] = np.array(arrays[name])
            node.input[position] = own
            notes.append(f"'{own}' is a copy of initializer '{name}', which is not only a running {what}")
    return notes


def tied_notes(graph: Graph, parameters: Collection[str], producer: str) -> tuple[str, ...]:
    """PyTorch's newer exporter merges equal initializers without a trace: what looks tied is worth a word."""
    if producer != "pytorch":
        return ()
    readers = Counter(name for node in graph.nodes if node.op in _LAYERS for name in set(node.inputs))
    return tuple(
        f"'{name}' is a parameter of {count} layers and trains as one; an exporter may have merged equal ones: "
        "tg.load(module, example=…) keeps them apart"
        for name, count in readers.items()
        if count > 1 and name in parameters
    )
