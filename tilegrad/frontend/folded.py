"""BatchNormalization that an exporter folded into the convolution before it, found by what the exporter left behind.

PyTorch's newer exporter keeps the convolution's name for the folded weight, so that what is trained would be saved as
something that it is not: such initializers are called NAME.folded here.
"""

from __future__ import annotations

import re

import onnx

from tilegrad.frontend.weights import SMALL_ELEMENTS, Arrays, with_initializers

FOLDED = ".folded"
_LAYERS = frozenset(("Conv", "ConvTranspose", "Gemm"))
_MADE_BY_FOLDING = re.compile(r"onnx::Conv_\d+")


def name_folded(model: onnx.ModelProto, arrays: Arrays) -> tuple[onnx.ModelProto, Arrays, tuple[str, ...]]:
    """The model with folded weights named as such, and the names of the layers that hold them."""
    if model.producer_name != "pytorch":
        return model, arrays, ()
    layers = [node for node in model.graph.node if node.op_type in _LAYERS and _is_folded(node)]
    names = {name: f"{name}{FOLDED}" for node in layers for name in node.input[1:] if _keeps_its_name(name, arrays)}
    if names and not set(names.values()) & set(arrays):
        result = onnx.ModelProto()
        result.CopyFrom(model)
        for node in result.graph.node:
            for position, name in enumerate(node.input):
                node.input[position] = names.get(name, name)
        arrays = {names.get(name, name): array for name, array in arrays.items()}
        model = with_initializers(result, arrays, limit=SMALL_ELEMENTS)
    return model, arrays, tuple(node.name or node.output[0] for node in layers)


def folding_note(layers: tuple[str, ...]) -> tuple[str, ...]:
    if not layers:
        return ()
    shown = ", ".join(layers[:4]) + (", …" if len(layers) > 4 else "")
    return (
        f"the exporter folded BatchNormalization into {len(layers)} layer(s) ({shown}): there is none to train, and "
        "what their weights learn does not load back into the unfolded module",
    )


def _keeps_its_name(name: str, arrays: Arrays) -> bool:
    return name in arrays and not name.startswith("onnx::")


def _is_folded(node: onnx.NodeProto) -> bool:
    """The newer exporter notes which rule made a node; the older one gives a folded weight a name of its own."""
    rules = [entry.value for entry in node.metadata_props if entry.key == "pkg.onnxscript.rewriter.rule_name"]
    if any("FuseBatchNorm" in rule for rule in rules):
        return True
    return len(node.input) > 1 and _MADE_BY_FOLDING.fullmatch(node.input[1]) is not None
