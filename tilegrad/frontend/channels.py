"""Parts a model's layers, so that some of their channels train and the rest stays as it is (`--train sparse:…`).

A layer whose weight trains in part becomes several, one beside the other, each with a run of its channels, and what
they make is put together again: the forward pass keeps its bits. The parts that do not train are frozen like any other
parameter: no gradient, no optimizer state, and flash where there is some. What is no layer of its own (a bias, an
embedding, a weight that several nodes read) is put together before it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from tilegrad.errors import UserError
from tilegrad.frontend.layers import FreshNames, copied, imported_again, in_place_of, own_proto, replace_layers
from tilegrad.recipe.sparse import Selected

if TYPE_CHECKING:
    from tilegrad.frontend.model import ImportedModel

Array = npt.NDArray[Any]
MOST_RUNS = 4
"""Of channels in their order; more are gathered, and put back into order behind the layer."""
_TOLD = 8


@dataclass(frozen=True)
class Part:
    """Some channels of an initializer, as one of its own."""

    name: str
    weight: str
    axis: int
    channels: tuple[int, ...]
    trains: bool


@dataclass(frozen=True)
class PartedWeight:
    weight: str
    axis: int
    parts: tuple[Part, ...]
    others: tuple[str, ...] = ()  # nothing reads the weight beside its parts

    def merged(self, arrays: Mapping[str, Array]) -> Array:
        """The weight, from its parts."""
        order = np.argsort(np.concatenate([np.asarray(part.channels) for part in self.parts]))
        together = np.concatenate([arrays[part.name] for part in self.parts], axis=self.axis)
        return np.ascontiguousarray(together.take(order, axis=self.axis))


@dataclass(frozen=True, eq=False)
class Parted:
    """Of an imported model: what it was before, what was asked for, and what was parted."""

    base: ImportedModel
    text: str
    selected: Selected
    adapters: tuple[PartedWeight, ...]

    def again(self, base: ImportedModel) -> ImportedModel:
        return with_channels(base, self.selected, self.text)

    def merged(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Initializers of the model as it was, from all those that there are now."""
        parts = {part.name for parted in self.adapters for part in parted.parts}
        result = {name: array for name, array in arrays.items() if name not in parts}
        return result | {parted.weight: parted.merged(arrays) for parted in self.adapters}

    @property
    def trained_parts(self) -> dict[str, Part]:
        return {part.name: part for parted in self.adapters for part in parted.parts if part.trains}


def with_channels(model: ImportedModel, selected: Selected, text: str) -> ImportedModel:
    """The same model, imported again in parts; `text` is how this was asked for."""
    _check_names(model, selected)
    partial = {name: channels for name, channels in selected.tensors.items() if channels is not None}
    whole = frozenset(name for name, channels in selected.tensors.items() if channels is None)
    parting = _Parting(own_proto(model), partial, whole)
    parted = parting.apply() if partial else ()
    made = model if not parted else imported_again(model, parting.proto)
    owners = {part.name: part for each in parted for part in each.parts}
    infos = {}
    for name, info in made.parameters.items():
        part = owners.get(name)
        before = model.parameters.get(name if part is None else part.weight, info)
        trains = name in selected.tensors if part is None else part.trains
        infos[name] = replace(before, name=name, type=info.type, role="parameter" if trains else before.role)
        infos[name] = replace(infos[name], is_chosen=trains)
    return in_place_of(model, made, infos, Parted(model, text, selected, parted))


def _check_names(model: ImportedModel, selected: Selected) -> None:
    """Names all that does not exist, or cannot train, at once."""
    known = model.parameters
    wrong = []
    for name, channels in selected.tensors.items():
        info = known.get(name)
        if info is None:
            wrong.append(f"no tensor '{name}'")
        elif info.type.dtype.short != "f32" or info.role == "statistic" or info.is_frozen:
            wrong.append(f"'{name}' does not train: {info.reason}")
        elif channels is not None:
            extent = info.type.shape[channel_axis(model, name)] if info.type.rank else 1
            beyond = [channel for channel in channels if channel >= extent]
            if beyond:
                wrong.append(f"no channels {_listed(beyond)} of '{name}', which has {extent}")
    if wrong:
        raise UserError(
            "the model does not have what is to train",
            stage="recipe",
            expected=f"tensors of '{model.name}' and their channels (`tilegrad inspect MODEL --parameters`)",
            got="; ".join(wrong[:_TOLD]) + (f"; and {len(wrong) - _TOLD} more" if len(wrong) > _TOLD else ""),
        )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:_TOLD])) + (", …" if len(numbers) > _TOLD else "")


def channel_axis(model: ImportedModel, name: str) -> int:
    """The dimension of an initializer along which a layer's outputs lie."""
    return _axis_of(model.unbound.graph.node, name, model.parameters[name].type.shape)


def _axis_of(nodes: Iterable[onnx.NodeProto], name: str, shape: tuple[int, ...]) -> int:
    if len(shape) < 2:
        return 0
    for node in nodes:
        if name not in node.input:
            continue
        position = list(node.input).index(name)
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        if node.op_type == "Conv" and position == 1:
            return 0
        if node.op_type == "ConvTranspose" and position == 1:
            return 1 if attributes.get("group", 1) == 1 else 0
        if node.op_type == "Gemm" and position == 1:
            return 0 if attributes.get("transB", 0) else 1
        if node.op_type == "MatMul" and position == 1:
            return len(shape) - 1
    return next((axis for axis, extent in enumerate(shape) if extent > 1), 0)


@dataclass
class _Parting:
    """One use: the model with its layers parted."""

    proto: onnx.ModelProto
    partial: Mapping[str, tuple[int, ...]]
    whole: frozenset[str]
    arrays: dict[str, Array] = field(init=False)
    fresh: FreshNames = field(init=False)
    done: list[PartedWeight] = field(default_factory=list)

    def apply(self) -> tuple[PartedWeight, ...]:
        graph = self.proto.graph
        self.arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self.fresh = FreshNames(graph)
        missing = [name for name in self.partial if name not in self.arrays]
        if missing:
            raise UserError(
                f"'{missing[0]}' cannot train in part: the importer made it of other tensors",
                stage="recipe",
                hint='"all" trains it whole',
            )
        layers = {i: node for i, node in enumerate(graph.node) if self._is_layer(node)}
        inside = {node.input[k] for node in layers.values() for k in (1, 2) if k < len(node.input)}
        first = [node for name in self.partial if name not in inside for node in self._together(name)]
        replace_layers(graph, {i: self._parted(node) for i, node in layers.items()}, first)
        gone = {parted.weight for parted in self.done}
        kept = [copied(tensor) for tensor in graph.initializer if tensor.name not in gone]
        del graph.initializer[:]
        graph.initializer.extend(kept)
        for parted in self.done:
            for part in parted.parts:
                rows = self.arrays[parted.weight].take(part.channels, axis=parted.axis)
                graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(rows), part.name))
        return tuple(self.done)

    def _is_layer(self, node: onnx.NodeProto) -> bool:
        """One that can be several: its weight, and a bias where it has one, are its own, and part of them trains."""
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        if node.domain not in ("", "ai.onnx") or node.op_type not in ("Conv", "Gemm", "MatMul") or len(node.input) < 2:
            return False
        own = [name for name in node.input[1:3] if name]
        weight = self.arrays.get(node.input[1])
        if weight is None or node.input[0] in self.arrays or not set(own) & set(self.partial):
            return False
        if attributes.get("group", 1) != 1 or (node.op_type == "MatMul" and weight.ndim != 2):
            return False
        extent = weight.shape[_axis_of([node], node.input[1], weight.shape)]
        shapes = ((extent,), (1, extent))
        is_own = all(name in self.arrays and self._reader_count(name) == 1 for name in own)
        return is_own and (len(own) < 2 or self.arrays[own[1]].shape in shapes)

    def _reader_count(self, name: str) -> int:
        return sum(list(node.input).count(name) for node in self.proto.graph.node)

    def _parted(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        own = [name for name in node.input[1:3] if name]
        weight = self.arrays[own[0]]
        axes = [_axis_of([node], own[0], weight.shape), *(self.arrays[name].ndim - 1 for name in own[1:])]
        extent = weight.shape[axes[0]]
        pieces, is_ordered = _pieces(extent, [self.partial.get(name) for name in own])
        parts = [self._parts(name, axis, pieces) for name, axis in zip(own, axes, strict=True)]
        made = []
        results = []
        for k in range(len(pieces)):
            piece = copied(node)
            piece.name = f"{node.name or node.output[0]}/part{k}"
            for position, each in enumerate(parts, start=1):
                piece.input[position] = each[k].name
            results.append(self.fresh(f"{node.output[0]}.part{k}"))
            piece.output[0] = results[-1]
            made.append(piece)
        axis = -1 if node.op_type == "MatMul" else 1
        return [*made, *self._joined(results, node.output[0], axis, pieces, is_ordered, node.name or node.output[0])]

    def _together(self, name: str) -> list[onnx.NodeProto]:
        """What makes a tensor of its parts under its own name."""
        array = self.arrays[name]
        axis = _axis_of(self.proto.graph.node, name, array.shape)
        pieces, is_ordered = _pieces(array.shape[axis] if array.ndim else 1, [self.partial[name]])
        parts = self._parts(name, axis, pieces)
        return self._joined([part.name for part in parts], name, axis, pieces, is_ordered, name)

    def _parts(self, name: str, axis: int, pieces: Sequence[tuple[int, ...]]) -> tuple[Part, ...]:
        chosen = self.partial.get(name)
        parts = []
        for piece in pieces:
            is_run = piece[-1] - piece[0] + 1 == len(piece)
            word = f"{piece[0]}-{piece[-1]}" if is_run else f"{len(piece)}-from-{piece[0]}"
            trains = name in self.whole or (chosen is not None and piece[0] in chosen)
            parts.append(Part(self.fresh(f"{name}.{word}"), name, axis, piece, trains))
        self.done.append(PartedWeight(name, axis, tuple(parts)))
        return tuple(parts)

    def _joined(
        self, sources: list[str], result: str, axis: int, pieces: Sequence[tuple[int, ...]], is_ordered: bool, path: str
    ) -> list[onnx.NodeProto]:
        if len(sources) == 1:
            return [helper.make_node("Identity", sources, [result], name=f"{path}/joined")]
        if is_ordered:
            return [helper.make_node("Concat", sources, [result], name=f"{path}/joined", axis=axis)]
        together, order = self.fresh(f"{result}.together"), self.fresh(f"{result}.order")
        positions = np.argsort(np.concatenate([np.asarray(piece) for piece in pieces])).astype(np.int64)
        return [
            helper.make_node("Concat", sources, [together], name=f"{path}/joined", axis=axis),
            helper.make_node("Constant", [], [order], value=numpy_helper.from_array(positions, order)),
            helper.make_node("Gather", [together, order], [result], name=f"{path}/ordered", axis=axis),
        ]


def _pieces(
    extent: int, chosen: Sequence[tuple[int, ...] | None]
) -> tuple[list[tuple[int, ...]], bool]:
    """Channels that train alike in all of these tensors; whether they are runs in order."""
    sets = [frozenset(channels or ()) for channels in chosen]

    def kind(channel: int) -> tuple[bool, ...]:
        return tuple(channel in each for each in sets)

    runs = [tuple(run) for _, run in groupby(range(extent), kind)]
    if len(runs) <= MOST_RUNS:
        return runs, True
    alike = sorted(range(extent), key=kind)
    return [tuple(group) for _, group in groupby(alike, kind)], False
