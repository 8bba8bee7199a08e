"""Layers that are replaced before anything else sees a model (adapters, channels): what is alike in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import onnx

from tilegrad.frontend.inline import inline_local_functions
from tilegrad.passes.parameters import ParameterInfo

if TYPE_CHECKING:
    from tilegrad.frontend.model import ImportedModel


def copied(proto: Any) -> Any:
    made = type(proto)()
    made.CopyFrom(proto)
    return made


def own_proto(model: ImportedModel) -> onnx.ModelProto:
    """To be changed: without functions, so that every layer is a node of the graph."""
    return inline_local_functions(copied(model.unbound))


class FreshNames:
    """Names that a graph does not have yet."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.taken = {name for node in graph.node for name in (*node.input, *node.output)}
        self.taken |= {tensor.name for tensor in graph.initializer}

    def __call__(self, name: str) -> str:
        found = next(n for i in range(len(self.taken) + 1) if (n := f"{name}.{i}" if i else name) not in self.taken)
        self.taken.add(found)
        return found


def replace_layers(
    graph: onnx.GraphProto, made: Mapping[int, Sequence[onnx.NodeProto]], first: Sequence[onnx.NodeProto] = ()
) -> None:
    """Puts nodes in the place of others, by position; `first` are in front of all."""
    nodes = [copied(each) for i, node in enumerate(graph.node) for each in made.get(i, (node,))]
    del graph.node[:]
    graph.node.extend([*first, *nodes])


def imported_again(model: ImportedModel, proto: onnx.ModelProto) -> ImportedModel:
    from tilegrad.frontend import import_source  # the frontend is made of this module
    from tilegrad.frontend.source import Source

    return import_source(Source(model.name, model.kind, proto), model.batch)


def in_place_of(
    model: ImportedModel, made: ImportedModel, parameters: Mapping[str, ParameterInfo], adapted: Any
) -> ImportedModel:
    """What was imported again, with all that was known of the model before."""
    notes = tuple(dict.fromkeys((*model.notes, *made.notes)))
    return replace(made, parameters=parameters, notes=notes, module=model.module, adapted=adapted)
