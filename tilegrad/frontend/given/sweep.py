"""From a training graph's nodes to ours: sorted, folded, typed and translated, one node at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from tilegrad.analysis.verify import infer_node
from tilegrad.errors import UserError
from tilegrad.frontend.check import ONNX_DOMAINS
from tilegrad.frontend.fold import Propagation
from tilegrad.frontend.given.operators import RULES
from tilegrad.frontend.onnx_values import array_type, refuse_huge, tensor_type, type_proto
from tilegrad.frontend.translate import to_node
from tilegrad.frontend.unsupported import node_label, unsupported_error
from tilegrad.frontend.version import convert_node, is_unchanged
from tilegrad.frontend.weights import Array, Arrays
from tilegrad.ir.graph import Attribute, Node
from tilegrad.ir.types import Constant, DType, TensorType
from tilegrad.ops import registry

NOT_NODES = ("SGD", "SGDOptimizerV2", "AdamWOptimizer")
"""They update parameters: no part of a step."""


def opset_of(model: onnx.ModelProto) -> int:
    """A file may import the standard operators more than once; the newest import is what its nodes are of."""
    return max((int(entry.version) for entry in model.opset_import if entry.domain in ONNX_DOMAINS), default=1)


def sorted_nodes(model: onnx.ModelProto, known: set[str]) -> list[onnx.NodeProto]:
    """In an order that can be executed, the file's own where it can be."""
    waiting, done = list(model.graph.node), set(known) | {""}
    made: list[onnx.NodeProto] = []
    while waiting:
        ready: list[onnx.NodeProto] = []
        left: list[onnx.NodeProto] = []
        for node in waiting:
            if all(name in done for name in node.input):
                ready.append(node)
                done.update(node.output)
            else:
                left.append(node)
        if not ready:
            node = left[0]
            produced = {name for other in left for name in other.output}
            missing = [name for name in node.input if name not in done and name not in produced]
            raise UserError(
                f"{node.op_type} reads '{(missing or [n for n in node.input if n not in done])[0]}', which "
                + ("nothing produces" if missing else "depends on it"),
                stage="import",
                node=node.name or next(iter(node.output), node.op_type),
            )
        made += ready
        waiting = left
    return made


@dataclass
class Translation:
    """`arrays` are constants that may be read now; `opaque` of them may change in training."""

    model: onnx.ModelProto
    types: dict[str, TensorType]
    arrays: Arrays
    opaque: set[str]
    nodes: list[Node] = field(default_factory=list)
    accumulators: list[Node] = field(default_factory=list)
    unsupported: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.opset = opset_of(self.model)
        protos = {name: type_proto(found) for name, found in self.types.items()}
        self._known = Propagation(self.opset, protos, self.arrays, self.opaque)
        self._sources = sorted_nodes(self.model, set(self.types) | set(self.arrays))
        self._producers = {name: node for node in self._sources for name in node.output if name}
        self._names: set[str] = {*self.types, *self.arrays, *self._producers}
        self._node_names: set[str] = set()
        self._label = ""
        self._lost: set[str] = set()  # what unsupported nodes make, and what is made of that

    def run(self) -> Translation:
        for position, node in enumerate(self._sources):
            if node.op_type in NOT_NODES:
                continue
            self._take(node, node_label(node, position))
        if self.unsupported:
            raise unsupported_error(self.unsupported, {})
        return self

    @property
    def constants(self) -> dict[str, Array]:
        return {name: value for name, value in self._known.constants.items() if isinstance(value, np.ndarray)}

    def _take(self, node: onnx.NodeProto, label: str) -> None:
        """Whatever is wrong behind an unsupported node may come of it: all of these are told first."""
        self._label = label
        plain = onnx.NodeProto()
        plain.CopyFrom(node)
        kept = [attribute for attribute in node.attribute if attribute.name != "description"]
        del plain.attribute[:]
        plain.attribute.extend(kept)
        if any(name in self._lost for name in node.input):
            self._lost.update(node.output)
            return
        if plain.domain in ONNX_DOMAINS and plain.op_type not in RULES and self._known.fold(plain):
            for name in filter(None, plain.output):
                found = tensor_type(self._known.types.get(name))
                if found is not None:
                    self.types[name] = found
            return
        rule = RULES.get(plain.op_type)
        made = None if rule is None else rule(self, plain)
        if made is not None:
            for each in made:
                self._append(each)
            return
        if rule is None and plain.domain in ONNX_DOMAINS and not is_unchanged(plain, self.opset):
            converted = convert_node(plain, self._known.types, self.opset)
            if [each.op_type for each in converted] != [plain.op_type]:
                for each in converted:
                    self._take(each, f"{label}/{each.op_type}")
                return
            plain = converted[0]
        operator = registry.find(plain.op_type)
        if operator is None:
            self.unsupported[label] = f"{plain.domain}.{plain.op_type}".lstrip(".")
            self._lost.update(filter(None, plain.output))
            return
        plain.domain = ""
        translated = to_node(plain, label, operator, self._known.constants, self.opaque)
        self._append(translated)

    def _append(self, node: Node) -> None:
        name = node.name
        while name in self._node_names:
            name += "'"
        self._node_names.add(name)
        node = Node(name, node.op, node.inputs, node.outputs, node.attributes)
        types = {value: self.type_of(value) for value in filter(None, node.inputs)}
        constants = {}
        for value in filter(None, node.inputs):
            array = self._known.constants.get(value)
            if isinstance(array, np.ndarray) and value not in self.opaque:
                constants[value] = Constant(array)
        inferred = infer_node(node, types, constants)
        for value, found in zip(node.outputs, inferred, strict=True):
            if value:
                refuse_huge(found.shape, f"node '{name}': output '{value}'")
                self.types[value] = found
                self._known.types[value] = type_proto(found)
                self._names.add(value)
        (self.accumulators if node.op == "InPlaceAccumulatorV2" else self.nodes).append(node)

    # ---- what rules may ask (operators.Context)

    def type_of(self, value: str) -> TensorType:
        found = self.types.get(value)
        if found is None:
            array = self._known.constants.get(value)
            dtype = DType.from_numpy(array.dtype) if isinstance(array, np.ndarray) else None
            if dtype is None or array is None:
                raise UserError(f"the shape of '{value}' is not known", stage="import", node=self._label)
            found = TensorType(dtype, array.shape)
            self.types[value] = found
        return found

    def array_of(self, value: str, what: str) -> Array:
        array = self._known.constants.get(value)
        if not isinstance(array, np.ndarray) or value in self.opaque:
            raise UserError(f"{what} ('{value}') must be a constant", stage="import", node=self._label)
        return array

    def producer(self, value: str) -> onnx.NodeProto | None:
        return self._producers.get(value)

    def readers(self, value: str) -> Sequence[onnx.NodeProto]:
        return [node for node in self._sources if value in node.input]

    def nodes_of(self, op: str) -> Sequence[onnx.NodeProto]:
        return [node for node in self._sources if node.op_type == op]

    def constant(self, array: Any, hint: str) -> str:
        name = self.fresh(hint)
        self.define(name, array)
        return name

    def define(self, value: str, array: Any) -> None:
        found = np.asarray(array)
        self._known.constants[value] = found
        self._known.types[value] = array_type(found)
        self._names.add(value)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def fresh(self, hint: str) -> str:
        name, count = hint, 0
        while name in self._names:
            count += 1
            name = f"{hint}.{count}"
        self._names.add(name)
        return name

    def make(self, op: str, inputs: Sequence[str], outputs: Sequence[str], attributes: Mapping[str, Any]) -> Node:
        plain: dict[str, Attribute] = {
            key: tuple(value) if isinstance(value, list | tuple) else value for key, value in attributes.items()
        }
        while outputs and not outputs[-1]:
            outputs = outputs[:-1]
        return Node(self._label, op, tuple(inputs), tuple(outputs), plain)


