"""Whether the gradients of what trains are those that PyTorch has for the module, and what makes them so."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from tilegrad.errors import UserError
from tilegrad.frontend.torch_facts import TorchModule
from tilegrad.ir.graph import Graph, Node
from tilegrad.ops.gather import PADDING_INDEX

if TYPE_CHECKING:
    from tilegrad.frontend.model import ImportedModel


def with_padding(graph: Graph, module: TorchModule | None) -> Graph:
    """Marks the lookups of an embedding with `padding_idx`, which ONNX has no word for.

    Only where they are as many as the module makes: a table that is read in another way, too, stays as it is, and
    `check_gradients` refuses to train it.
    """
    marked: dict[str, Node] = {}
    for name, padding in module.gradients.padding.items() if module is not None else ():
        lookups = _lookups(graph, name)
        if len(lookups) == padding.lookups:
            for node in lookups:
                marked[node.name] = replace(node, attributes={**node.attributes, PADDING_INDEX: padding.row})
    if not marked:
        return graph
    return replace(graph, nodes=tuple(marked.get(node.name, node) for node in graph.nodes))


def _lookups(graph: Graph, table: str) -> list[Node]:
    return [node for node in graph.nodes if node.op == "Gather" and node.inputs[0] == table]


def _has_padding(graph: Graph, table: str) -> bool:
    lookups = _lookups(graph, table)
    return bool(lookups) and all(PADDING_INDEX in node.attributes for node in lookups)


def check_gradients(model: ImportedModel, trainable: Collection[str]) -> None:
    """Refuses to train what would get another gradient than in PyTorch: a graph has no word for a gradient cut off."""
    if model.module is None:
        return
    facts = model.module.gradients
    unsaid = [name for name in facts.padding if not _has_padding(model.graph, name)]
    partial = [name for name in dict.fromkeys((*facts.partial, *unsaid)) if name in trainable]
    if partial:
        cutting = (*facts.cutting, *(f"padding_idx of '{name}'" for name in unsaid))
        more = f" and {len(partial) - 4} more" if len(partial) > 4 else ""
        raise UserError(
            "the module keeps a part of the gradient from its parameters, which ONNX cannot say",
            stage="recipe",
            expected="gradients that follow from what the module computes",
            got=f"{', '.join(cutting)}; it changes {', '.join(partial[:4])}{more}",
            hint="freeze these parameters (requires_grad_(False)), train others (train='names:…'), or leave it out",
        )
