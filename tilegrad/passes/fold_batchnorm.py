"""Policy `fold`: BatchNormalization with running statistics becomes part of the weights before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tilegrad.analysis.verify import verify_graph
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import Constant, TensorType
from tilegrad.ops.base import NodeView
from tilegrad.passes.parameters import ParameterInfo

_Array = npt.NDArray[np.float64]


def _scaled_weight(layer: NodeView, weight: _Array, factor: _Array) -> _Array:
    """The weight with each output channel multiplied by its factor."""
    if layer.node.op == "Gemm":
        return weight * factor.reshape((-1, 1) if layer.attribute("transB", 0) else (1, -1))
    if layer.node.op == "Conv":
        return weight * factor.reshape(-1, *(1,) * (weight.ndim - 1))
    # ConvTranspose: [in, out / group, ...], groups along `in`.
    group = layer.attribute("group", 1)
    grouped = weight.reshape(group, -1, *weight.shape[1:])
    return (grouped * factor.reshape(group, 1, -1, *(1,) * (weight.ndim - 2))).reshape(weight.shape)


def _folded(layer: NodeView, norm: NodeView, constants: Mapping[str, Constant]) -> tuple[_Array, _Array]:
    """The weight and bias that do the work of both nodes."""

    def array(name: str) -> _Array:
        return constants[name].array.astype(np.float64)

    scale, shift, mean, variance = (array(name) for name in norm.inputs[1:5])
    epsilon = float(np.float32(norm.attribute("epsilon", 1e-5)))
    factor = scale / np.sqrt(variance + epsilon)
    bias = np.zeros_like(mean)
    if layer.has_input(2):
        bias = array(layer.inputs[2]) * (layer.attribute("beta", 1.0) if layer.node.op == "Gemm" else 1.0)
    return _scaled_weight(layer, array(layer.inputs[1]), factor), (bias - mean) * factor + shift


@dataclass(frozen=True)
class FoldedLayer:
    """A layer that does a BatchNormalization's work as well, and what its weight and bias are now made of."""

    node: Node
    norm: Node
    weight: str
    bias: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Folded:
    graph: Graph
    layers: tuple[FoldedLayer, ...]


@dataclass(frozen=True)
class FoldBatchNorm:
    """Folds each BatchNormalization into the Conv, ConvTranspose or Gemm that alone feeds it.

    The sums are made in float64 and rounded once. The weight keeps its name, the bias takes that of the layer's bias or
    else of the BatchNormalization's; one that others read too is a new tensor, NAME.folded. A layer that is used twice
    with the same BatchNormalization behind it stays one layer: its folded tensors are tied. A BatchNormalization that
    follows anything else, or whose operands are not constant, stays.
    """

    def apply(self, graph: Graph) -> Graph:
        return self.fold(graph).graph

    def fold(self, graph: Graph) -> Folded:
        producers, consumers = graph.producers(), graph.consumers()
        constants, types = dict(graph.constants), dict(graph.types)
        replaced: dict[str, FoldedLayer] = {}
        tied: dict[tuple[object, ...], list[str]] = {}
        gone: set[str] = set()
        for norm in graph.nodes:
            layer = producers.get(norm.inputs[0]) if norm.inputs else None
            if layer is None or not _can_fold(graph, layer, norm, consumers):
                continue
            names = tied.get(_origin(layer, norm), [])
            if not names:
                tied[_origin(layer, norm)] = names
                names += _add_folded(graph, layer, norm, consumers, constants, types)
            attributes = {**layer.attributes, "beta": 1.0} if layer.op == "Gemm" else layer.attributes
            node = replace(layer, inputs=(layer.inputs[0], *names), outputs=norm.outputs[:1], attributes=attributes)
            sources = (*filter(None, layer.inputs[1:3]), *norm.inputs[1:3])
            replaced[layer.name] = FoldedLayer(node, norm, names[0], names[1], sources)
            gone.add(norm.name)
            types.pop(layer.outputs[0])
        nodes = tuple(
            replaced[node.name].node if node.name in replaced else node for node in graph.nodes if node.name not in gone
        )
        read = {name for node in nodes for name in node.inputs} | set(graph.outputs)
        dropped = set(constants) - read
        folded = replace(
            graph,
            nodes=nodes,
            constants={name: value for name, value in constants.items() if name not in dropped},
            types={name: value for name, value in types.items() if name not in dropped},
        )
        return Folded(verify_graph(folded), tuple(replaced.values()))


def _origin(layer: Node, norm: Node) -> tuple[object, ...]:
    """All that a folded weight and bias are made of."""
    shape = tuple(layer.attributes.get(name) for name in ("transB", "beta", "group"))
    return (layer.op, *layer.inputs[1:], *norm.inputs[1:5], norm.attributes.get("epsilon"), *shape)


def _add_folded(
    graph: Graph,
    layer: Node,
    norm: Node,
    consumers: Mapping[str, Sequence[Node]],
    constants: dict[str, Constant],
    types: dict[str, TensorType],
) -> list[str]:
    """Stores the folded weight and bias, and returns their names."""
    weight, bias = _folded(NodeView(layer, graph.types), NodeView(norm, graph.types), graph.constants)
    bias_name = next(filter(None, layer.inputs[2:3]), norm.inputs[2])
    names = []
    for name, array in ((layer.inputs[1], weight), (bias_name, bias)):
        uses = [reader for reader in consumers[name] if reader not in (layer, norm)]
        is_own = not uses and (layer.inputs + norm.inputs).count(name) == 1
        new = name if is_own else _unique(f"{name}.folded", types)
        constants[new] = Constant(array.astype(np.float32))
        types[new] = constants[new].type
        names.append(new)
    return names


def _can_fold(graph: Graph, layer: Node, norm: Node, consumers: Mapping[str, Sequence[Node]]) -> bool:
    if norm.op != "BatchNormalization" or norm.attributes.get("training_mode", 0):
        return False
    if layer.op not in ("Conv", "ConvTranspose", "Gemm"):
        return False
    between = layer.outputs[0]
    operands = (layer.inputs[1], *filter(None, layer.inputs[2:3]), *norm.inputs[1:5])
    is_private = len(consumers[between]) == 1 and between not in graph.outputs
    return is_private and all(name in graph.constants for name in operands)


def folded_parameters(infos: Mapping[str, ParameterInfo], folded: Folded) -> dict[str, ParameterInfo]:
    """What each initializer is once layers do the work of their BatchNormalizations.

    A folded bias is a parameter where anything that it is made of was one: one that folding creates trains like any
    other. Weight and bias belong to the layer. What a torch module has frozen stays so: a weight with the layer's, a
    bias where all parameters that are added are frozen.
    """
    result = dict(infos)
    for layer in folded.layers:
        trains = any(infos[name].role == "parameter" for name in layer.sources if name in infos)
        where = f"{layer.node.op} '{layer.node.name}', with BatchNormalization '{layer.norm.name}' folded in"
        for name, word in ((layer.weight, "weight"), (layer.bias, "bias")):
            known = infos.get(layer.sources[0]) if word == "weight" else None
            role = "parameter" if (trains if known is None else known.role == "parameter") else "constant"
            made_of = layer.sources[:1] if word == "weight" else (*layer.sources[1:-2], layer.sources[-1])
            learned = [infos[source] for source in made_of if source in infos and infos[source].role == "parameter"]
            is_frozen = bool(learned) and all(info.is_frozen for info in learned)
            result[name] = ParameterInfo(
                *(
                    name,
                    folded.graph.types[name],
                    role,
                    f"{word} of {where}",
                    layer.node.name,
                    word == "bias",
                    is_frozen,
                )
            )
    gone = {name for layer in folded.layers for name in layer.norm.inputs[1:5]} - set(folded.graph.constants)
    for name in gone & set(result):
        result[name] = replace(result[name], role="constant", reason=f"folded away: it was {result[name].reason}")
    return result


def _unique(hint: str, taken: dict[str, TensorType]) -> str:
    return hint if hint not in taken else next(n for i in range(len(taken) + 1) if (n := f"{hint}.{i}") not in taken)
