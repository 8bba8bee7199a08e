"""The sweep over a model's nodes: fold, type, translate, and compare three opinions on every type.

Ours (`Operator.infer`), ONNX's shape inference and what the model declares must agree, or the model is refused with
the node's name. Unsupported operators are collected first, because a user wants to see all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from tilegrad.analysis.verify import infer_node
from tilegrad.errors import UserError
from tilegrad.frontend.check import opset_of
from tilegrad.frontend.computed_operands import taken_apart
from tilegrad.frontend.fold import InferenceFailure, Propagation, captured, known_types
from tilegrad.frontend.onnx_values import (
    array_type,
    describe_type,
    element_type_name,
    refuse_huge,
    static_shape,
    tensor_type,
    type_proto,
)
from tilegrad.frontend.translate import to_node
from tilegrad.frontend.unsupported import node_label, operator_name, unsupported_error
from tilegrad.frontend.weights import Array, Arrays, true_inputs
from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import Constant, DType, TensorType
from tilegrad.ops import registry
from tilegrad.ops.base import Operator


@dataclass
class Swept:
    """The nodes that remain, in both forms, and the constants that they read."""

    graph: Graph
    proto_nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: Arrays = field(default_factory=dict)


def live_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Nodes on which an output depends, in order."""
    wanted = {value.name for value in model.graph.output}
    kept = []
    for node in reversed(model.graph.node):
        if any(name in wanted for name in node.output if name):
            kept.append(node)
            wanted.update(filter(None, (*node.input, *captured(node))))
    return kept[::-1]


def sweep(model: onnx.ModelProto, arrays: Arrays, parameters: set[str], name: str) -> Swept:
    """Everything but the parameters folds."""
    return _Sweep(model, arrays, parameters, name).run()


class _Sweep:
    def __init__(self, model: onnx.ModelProto, arrays: Arrays, parameters: set[str], name: str) -> None:
        self.model = model
        self.name = name
        self.arrays = arrays
        self.inputs = true_inputs(model, arrays)
        self.known = Propagation(opset_of(model), known_types(model, arrays), arrays, parameters)
        self.declared = {value.name: value.type for value in (*model.graph.value_info, *model.graph.output)}
        self.nodes: list[tuple[Node, onnx.NodeProto]] = []
        self.types: dict[str, TensorType] = {}
        self.unsupported: dict[str, tuple[str, onnx.NodeProto]] = {}
        self.first_error: UserError | None = None
        self.taken_names: dict[str, int] = {}
        self.folded: list[str] = []

    def run(self) -> Swept:
        for position, node in enumerate(live_nodes(self.model)):
            if self.known.fold(node):
                self.folded += filter(None, node.output)
                self._check_declared(node, node_label(node, position))
                continue
            name = self._unique(node_label(node, position))
            operator = registry.find(operator_name(node))
            if operator is None:
                self.unsupported[name] = (operator_name(node), node)
                self._guess_types(node)
                continue
            try:
                self._keep(node, name, operator)
            except UserError as error:
                self.first_error = self.first_error or error
                self._guess_types(node)
        self._raise_errors()
        return self._finish()

    def _unique(self, name: str) -> str:
        fresh = name
        count = self.taken_names.get(name, 0)
        while fresh in self.taken_names:
            count += 1
            fresh = f"{name}.{count}"
        self.taken_names[name] = count  # the next of this name goes on from here
        self.taken_names.setdefault(fresh, 0)
        return fresh

    def _guess_types(self, node: onnx.NodeProto) -> None:
        """So that the sweep goes on behind a node that will be refused."""
        with suppress(*InferenceFailure):
            self.known.types.update(self.known.infer(node))
        for name in node.output:
            if name in self.declared and name not in self.known.types:
                self.known.types[name] = self.declared[name]

    def _keep(self, node: onnx.NodeProto, name: str, operator: Operator) -> None:
        node = self._with_float_exponent(node)
        parts = taken_apart(node, name, self.known)
        if parts:
            for part in parts:
                self._keep(part, self._unique(part.name), registry.get(part.op_type))
            return
        translated = to_node(node, name, operator, self.known.constants, self.known.opaque)
        types = {value: self._type(value, name) for value in filter(None, translated.inputs)}
        ours = infer_node(translated, types, self._constants_of(translated))
        theirs = self._theirs(node, name)
        for value, inferred in zip(translated.outputs, ours, strict=True):
            if not value:
                continue
            refuse_huge(inferred.shape, f"node '{name}': output '{value}'")
            other = theirs.get(value)
            if other is not None and static_shape(other) is not None and tensor_type(other) != inferred:
                raise self._contradiction(node, name, value, inferred, other)
            self.types[value] = inferred
            self.known.types[value] = type_proto(inferred)
        self._check_declared(node, name)
        self.nodes.append((translated, node))

    def _theirs(self, node: onnx.NodeProto, name: str) -> dict[str, onnx.TypeProto]:
        try:
            return self.known.infer(node)
        except InferenceFailure as error:
            raise UserError(
                f"{node.op_type}: ONNX's shape inference refuses it",
                stage="import",
                node=name,
                got=" ".join(str(error).split())[:300],
            ) from error

    def _type(self, value: str, name: str) -> TensorType:
        known = self.known.types.get(value)
        found = tensor_type(known)
        if found is not None:
            return found
        if known is None or (known.WhichOneof("value") == "tensor_type" and static_shape(known) is None):
            raise UserError(
                f"the shape of '{value}' is not known at compile time",
                stage="import",
                node=name,
                got="nothing" if known is None else describe_type(known),
                hint="export the model with fixed shapes",
            )
        what = element_type_name(known.tensor_type.elem_type) if known.HasField("tensor_type") else describe_type(known)
        raise UserError(
            f"'{value}' is of element type {what}",
            stage="import",
            node=name,
            expected="f32, an integer type or bool",
            got=what,
            hint="export the model in float32 (module.float() in PyTorch)" if "float" in what else None,
        )

    def _with_float_exponent(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Pow alone may mix types: a constant exponent of another type is the same number in the base's type."""
        if node.op_type != "Pow" or len(node.input) != 2:
            return node
        exponent, base = self.known.constants.get(node.input[1]), tensor_type(self.known.types.get(node.input[0]))
        if not isinstance(exponent, np.ndarray) or base is None or base.dtype is not DType.F32:
            return node
        if exponent.dtype == np.float32 or exponent.dtype.kind not in "iuf" or node.input[1] in self.known.opaque:
            return node
        fresh = f"{node.input[1]}.f32"
        self.known.constants[fresh] = exponent.astype(np.float32)
        self.known.types[fresh] = array_type(self.known.constants[fresh])
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[1] = fresh
        return copy

    def _constants_of(self, node: Node) -> dict[str, Constant]:
        """Constant operands that an operator may look at; parameters are not among them."""
        found = {}
        for name in filter(None, node.inputs):
            array = self.known.constants.get(name)
            if isinstance(array, np.ndarray) and name not in self.known.opaque:
                found[name] = Constant(array)
        return found

    def _check_declared(self, node: onnx.NodeProto, name: str) -> None:
        for value in filter(None, node.output):
            inferred, declared = self.known.types.get(value), self.declared.get(value)
            if inferred is None or declared is None or declared.WhichOneof("value") != "tensor_type":
                continue
            ours = tensor_type(inferred)
            if ours is not None and not _agrees(ours, declared.tensor_type):
                raise self._contradiction(node, name, value, ours, declared)

    def _contradiction(
        self, node: onnx.NodeProto, name: str, value: str, wanted: TensorType, got: onnx.TypeProto
    ) -> UserError:
        return UserError(
            f"{node.op_type}: the declared type of output '{value}' is wrong",
            stage="import",
            node=name,
            expected=str(wanted),
            got=describe_type(got),
        )

    def _raise_errors(self) -> None:
        """Unsupported nodes that nothing needs any more are none."""
        needed = {value.name for value in self.model.graph.output}
        for node in reversed(live_nodes(self.model)):
            if any(name in needed for name in node.output) and not all(
                name in self.known.constants for name in node.output if name
            ):
                needed.update(node.input)
        found = {
            name: operator
            for name, (operator, node) in self.unsupported.items()
            if any(output in needed for output in node.output)
        }
        if found:
            outputs = {node.output[0]: name for name, (_, node) in self.unsupported.items() if node.output}
            reasons = {outputs[o]: reason for o, reason in self.known.reasons.items() if o in outputs}
            raise unsupported_error(found, reasons)
        if self.first_error is not None:
            raise self.first_error

    def _finish(self) -> Swept:
        outputs = tuple(value.name for value in self.model.graph.output)
        inputs = tuple(value.name for value in self.inputs)
        read = {name for node, _ in self.nodes for name in node.inputs} | set(outputs)
        constants: dict[str, Constant] = {}
        for name in (*self.arrays, *self.known.constants):
            if name in read and name not in constants and name not in self.types:
                constants[name] = self._constant(name)
        types = {name: self._type(name, name) for name in inputs}
        types.update({name: constant.type for name, constant in constants.items()})
        types.update(self.types)
        graph = Graph(self.name, inputs, outputs, tuple(node for node, _ in self.nodes), types, constants)
        nodes = []
        for translated, node in self.nodes:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.name = translated.name
            nodes.append(copy)
        proto_read = {name for node in nodes for name in node.input} | set(outputs)
        arrays = {
            name: value
            for name, value in self.known.constants.items()
            if name in proto_read and isinstance(value, np.ndarray)
        }
        return Swept(graph, nodes, arrays)

    def _constant(self, name: str) -> Constant:
        array = self.known.constants[name]
        if not isinstance(array, np.ndarray) or DType.from_numpy(array.dtype) is None:
            what = str(array.dtype) if isinstance(array, np.ndarray) else type(array).__name__
            raise UserError(
                f"constant '{name}' is of type {what}",
                stage="import",
                expected="f32, an integer type or bool",
                got=what,
            )
        return Constant(array)


def _agrees(inferred: TensorType, declared: onnx.TypeProto.Tensor) -> bool:
    """Free dimensions agree with anything."""
    if declared.elem_type not in (0, int(helper.np_dtype_to_tensor_dtype(inferred.dtype.numpy))):
        return False
    if not declared.HasField("shape"):
        return True
    dims = declared.shape.dim
    return len(dims) == inferred.rank and all(
        not dim.HasField("dim_value") or dim.dim_value == extent
        for dim, extent in zip(dims, inferred.shape, strict=True)
    )


def build_proto(model: onnx.ModelProto, swept: Swept, order: Mapping[str, Array]) -> onnx.ModelProto:
    """The canonical model as ONNX: initializers in their original order first, folded constants after them."""
    graph = swept.graph
    names = [name for name in order if name in swept.constants]
    names += [name for name in swept.constants if name not in order]
    initializers = [onnx.numpy_helper.from_array(swept.constants[name], name) for name in names]

    def described(name: str) -> onnx.ValueInfoProto:
        return helper.make_value_info(name, type_proto(graph.types[name]))

    inner = [name for node in swept.proto_nodes for name in node.output]
    proto_graph = helper.make_graph(
        swept.proto_nodes,
        graph.name,
        [described(name) for name in graph.inputs],
        [described(name) for name in graph.outputs],
        initializers,
        value_info=[described(name) for name in inner if name in graph.types and name not in graph.outputs],
    )
    return helper.make_model(
        proto_graph,
        opset_imports=[helper.make_opsetid("", opset_of(model))],
        ir_version=model.ir_version,
        producer_name="tilegrad",
    )
