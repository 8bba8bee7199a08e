"""Puts low-rank adapters into a model before anything else sees it: references train them like any other parameter.

Beside a product `x·W` with a matrix that is a parameter goes `(x·A · scale)·B`, added to its result. Products are
Gemm, MatMul with the matrix on the right, and convolutions whose kernel is one element; a matrix may be transposed on
the way. One matrix has one pair of factors, whatever reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from tilegrad.errors import UserError
from tilegrad.frontend.layers import FreshNames, copied, imported_again, in_place_of, own_proto, replace_layers
from tilegrad.passes.parameters import ParameterInfo
from tilegrad.recipe.adapters import Lora, first_factor

if TYPE_CHECKING:
    from tilegrad.frontend.model import ImportedModel

Array = npt.NDArray[Any]
_DENSE = ("Gemm", "MatMul")
_TOLD = 8


@dataclass(frozen=True)
class Adapter:
    """`weight` is the initializer that `down` [inputs, rank] and `up` [rank, outputs] belong to; convolutions have two
    dimensions of one element more, outputs first. `is_transposed` says that the weight is stored as [outputs, inputs].
    `others` read the weight without an adapter; `product` is what the layer multiplies its product with (Gemm's alpha).
    """

    weight: str
    down: str
    up: str
    scale: float
    is_convolution: bool
    is_transposed: bool
    layers: tuple[str, ...]
    others: tuple[str, ...]
    product: float = 1.0

    def merged(self, arrays: Mapping[str, Array]) -> Array:
        """The weight with its adapter in it: made in float64, rounded once."""
        weight = arrays[self.weight]
        down, up = (np.asarray(arrays[name], np.float64) for name in (self.down, self.up))
        if self.is_convolution:
            delta = up.reshape(up.shape[:2]) @ down.reshape(down.shape[:2])
        else:
            delta = down @ up
            delta = delta.T if self.is_transposed else delta
        wide = weight.astype(np.float64) + self.scale / self.product * delta.reshape(weight.shape)
        return wide.astype(weight.dtype)


@dataclass(frozen=True, eq=False)
class Adapted:
    """Of an imported model: what it was before, and what was put in."""

    base: ImportedModel
    lora: Lora
    seed: int
    adapters: tuple[Adapter, ...]

    def again(self, base: ImportedModel) -> ImportedModel:
        return with_adapters(base, self.lora, self.seed)

    def merged(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Initializers of the model as it was, from all those that there are now."""
        factors = {name for adapter in self.adapters for name in (adapter.down, adapter.up)}
        result = {name: array for name, array in arrays.items() if name not in factors}
        return result | {adapter.weight: adapter.merged(arrays) for adapter in self.adapters}


def with_adapters(model: ImportedModel, lora: Lora, seed: int) -> ImportedModel:
    """The same model, imported again with adapters in it; as it is where it has these already."""
    if isinstance(model.adapted, Adapted):
        if (model.adapted.lora, model.adapted.seed) == (lora, seed):
            return model
        return with_adapters(model.adapted.base, lora, seed)
    proto = own_proto(model)
    found = _layers(proto, model.parameters, lora)
    adapters = _insert(proto, found, lora, seed)
    made = imported_again(model, proto)
    infos = {name: model.parameters.get(name, info) for name, info in made.parameters.items()}
    for adapter in adapters:
        for name in (adapter.down, adapter.up):
            what = f"adapter of '{adapter.weight}', rank {lora.rank}"
            infos[name] = ParameterInfo(name, made.parameters[name].type, "parameter", what, is_adapter=True)
    return in_place_of(model, made, infos, Adapted(model, lora, seed, adapters))


@dataclass(frozen=True)
class _Layer:
    position: int  # among the graph's nodes
    node: onnx.NodeProto
    weight: str
    is_transposed: bool  # of the initializer, beside the matrix that multiplies
    inputs: int
    outputs: int

    @property
    def is_convolution(self) -> bool:
        return self.node.op_type == "Conv"


def _layers(proto: onnx.ModelProto, infos: Mapping[str, ParameterInfo], lora: Lora) -> list[_Layer]:
    shapes = {tensor.name: tuple(tensor.dims) for tensor in proto.graph.initializer}
    producers = {name: node for node in proto.graph.node for name in node.output}
    nodes = enumerate(proto.graph.node)
    able = [layer for i, node in nodes if (layer := _layer(i, node, shapes, producers)) is not None]
    able = [layer for layer in able if layer.weight not in infos or infos[layer.weight].role == "parameter"]
    chosen = [layer for layer in able if not lora.globs or any(fnmatchcase(layer.weight, g) for g in lora.globs)]
    for glob in lora.globs:
        if not any(fnmatchcase(layer.weight, glob) for layer in able):
            raise _unfit(glob, infos, able)
    if not chosen:
        raise _unfit("", infos, able)
    return chosen


def _unfit(glob: str, infos: Mapping[str, ParameterInfo], able: list[_Layer]) -> UserError:
    matches = [info for name, info in infos.items() if glob and fnmatchcase(name, glob)]
    names = list(dict.fromkeys(layer.weight for layer in able))
    shown = ", ".join(names[:_TOLD]) + (f" and {len(names) - _TOLD} more" if len(names) > _TOLD else "")
    first = f"'{matches[0].name}' {matches[0].type}: {matches[0].reason}" if matches else f"nothing matches '{glob}'"
    return UserError(
        f"no layer of '{glob}' has a matrix to adapt" if glob else "the model has no matrix to adapt",
        stage="recipe",
        expected="the weight of a Gemm, MatMul or 1 × 1 Conv" + (f": {shown}" if shown else ""),
        got=first if glob else f"{len(infos)} initializers",
    )


def _layer(
    position: int,
    node: onnx.NodeProto,
    shapes: Mapping[str, tuple[int, ...]],
    producers: Mapping[str, onnx.NodeProto],
) -> _Layer | None:
    """A node whose second operand is a matrix that is an initializer, perhaps transposed."""
    if node.domain not in ("", "ai.onnx") or len(node.input) < 2:
        return None
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type == "Conv":
        shape = shapes.get(node.input[1])
        plain = not any(attributes.get("pads", ())) and attributes.get("group", 1) == 1
        if shape is None or not plain or attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
            return None
        return _Layer(position, node, node.input[1], True, shape[1], shape[0]) if set(shape[2:]) <= {1} else None
    if node.op_type not in _DENSE or node.input[0] in shapes:
        return None
    name, is_transposed = node.input[1], bool(attributes.get("transB", 0))
    while name not in shapes:
        producer = producers.get(name)
        if producer is None or producer.op_type not in ("Transpose", "Identity"):
            return None
        is_transposed ^= producer.op_type == "Transpose"
        name = producer.input[0]
    if len(shapes[name]) != 2:
        return None
    rows, columns = shapes[name]
    return _Layer(position, node, name, is_transposed, *((columns, rows) if is_transposed else (rows, columns)))


def _insert(proto: onnx.ModelProto, layers: list[_Layer], lora: Lora, seed: int) -> tuple[Adapter, ...]:
    graph = proto.graph
    fresh = FreshNames(graph)
    by_weight: dict[str, list[_Layer]] = {}
    for layer in layers:
        by_weight.setdefault(layer.weight, []).append(layer)
    adapters: dict[str, Adapter] = {}
    for ordinal, (weight, readers) in enumerate(by_weight.items()):
        adapter = _adapter(graph, weight, readers, lora, fresh)
        adapters[weight] = adapter
        layer = readers[0]
        first = first_factor(seed, ordinal, layer.inputs, lora.rank)
        second = np.zeros((lora.rank, layer.outputs), np.float32)
        if layer.is_convolution:
            ones = (1,) * (len(next(t for t in graph.initializer if t.name == weight).dims) - 2)
            first, second = first.T.reshape(lora.rank, layer.inputs, *ones), second.T.reshape(-1, lora.rank, *ones)
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(first), adapter.down))
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(second), adapter.up))
    replace_layers(graph, {layer.position: _with_adapter(layer, adapters[layer.weight], fresh) for layer in layers})
    return tuple(adapters.values())


def _adapter(graph: onnx.GraphProto, weight: str, readers: list[_Layer], lora: Lora, fresh: FreshNames) -> Adapter:
    ways = {(layer.is_convolution, layer.is_transposed, _alpha(layer.node)) for layer in readers}
    labels = tuple(layer.node.name or layer.node.output[0] for layer in readers)
    if len(ways) > 1:
        raise UserError(
            f"'{weight}' is read in different ways, so that one adapter cannot serve all",
            stage="recipe",
            got=", ".join(labels),
        )
    ((is_convolution, is_transposed, product),) = ways
    own = {layer.position for layer in readers}
    others = tuple(n.name or n.output[0] for i, n in _readers(graph, weight) if i not in own)
    down, up = (fresh(f"{weight}.lora_{letter}") for letter in "AB")
    return Adapter(weight, down, up, lora.scale, is_convolution, is_transposed, labels, others, product)


def _alpha(node: onnx.NodeProto) -> float:
    return next((attribute.f for attribute in node.attribute if attribute.name == "alpha"), 1.0)


def _readers(graph: onnx.GraphProto, weight: str) -> list[tuple[int, onnx.NodeProto]]:
    """What reads an initializer, through transpositions as well."""
    pending: list[str] = [weight]
    found: list[tuple[int, onnx.NodeProto]] = []
    while pending:
        name = pending.pop()
        for i, node in enumerate(graph.node):
            if name in node.input:
                if node.op_type in ("Transpose", "Identity"):
                    pending += node.output
                else:
                    found.append((i, node))
    return found


def _with_adapter(layer: _Layer, adapter: Adapter, fresh: FreshNames) -> list[onnx.NodeProto]:
    """The node, and what adds the adapter's part to its result under the result's name."""
    node = copied(layer.node)
    path, result = node.name or node.output[0], node.output[0]
    base, narrow, wide = (fresh(f"{result}.{word}") for word in ("base", "lora_narrow", "lora_wide"))
    node.output[0] = base
    made = [node]

    def add(op: str, inputs: list[str], output: str, word: str, **attributes: Any) -> None:
        made.append(helper.make_node(op, inputs, [output], name=f"{path}/lora_{word}", **attributes))

    x = node.input[0]
    if layer.is_convolution:
        kept = {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name == "strides"}
        add("Conv", [x, adapter.down], narrow, "A", **kept)
    else:
        if any(attribute.name == "transA" and attribute.i for attribute in node.attribute):
            x = fresh(f"{result}.lora_x")
            add("Transpose", [node.input[0]], x, "x", perm=[1, 0])
        add("MatMul", [x, adapter.down], narrow, "A")
    if adapter.scale != 1.0:
        factor, scaled = fresh(f"{result}.lora_scale"), fresh(f"{result}.lora_scaled")
        value = numpy_helper.from_array(np.array(adapter.scale, np.float32), factor)
        made.append(helper.make_node("Constant", [], [factor], name=f"{path}/lora_factor", value=value))
        add("Mul", [narrow, factor], scaled, "scale")
        narrow = scaled
    add("Conv" if layer.is_convolution else "MatMul", [narrow, adapter.up], wide, "B")
    add("Add", [base, wide], result, "add")
    return made
