"""Constant folding and type propagation, one node at a time, in execution order.

Each node either becomes constants, evaluated by ONNX's own reference implementation whatever its operator is, or its
output types are inferred from its input types and the constants among its inputs. One sweep suffices, because shapes
are static by now: the Shape of any value is a constant as soon as the value's type is known.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
from onnx import checker, defs, helper, numpy_helper, shape_inference

from tilegrad.frontend.check import opset_of
from tilegrad.frontend.onnx_values import array_type, static_shape
from tilegrad.frontend.weights import Array, Arrays, true_inputs

MAX_FOLDED_BYTES = 64 * 2**20
"""A larger constant is left to be computed at run time."""

MAX_TRIPS = 10_000
"""Of a constant loop; a longer one is refused rather than run at import."""

_READ_BY_INFERENCE_ELEMENTS = 1024
_RANDOM = frozenset(
    ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout")
)
# Operators whose output size no inference can tell, but which never make more than they are given.
_DATA_DEPENDENT = frozenset(
    (
        *("NonZero", "Unique", "Compress", "NonMaxSuppression", "Loop", "If", "Identity", "SequenceConstruct"),
        *("SplitToSequence", "SequenceAt", "SequenceInsert", "SequenceErase", "SequenceEmpty", "SequenceLength"),
        *("ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement", "StringConcat", "StringSplit"),
    )
)

InferenceFailure = (shape_inference.InferenceError, checker.ValidationError, RuntimeError, ValueError)


class Propagation:
    """Types and constants known so far. `opaque` initializers are never read: they may change in training."""

    def __init__(
        self, opset: int, types: Mapping[str, onnx.TypeProto], constants: Mapping[str, Array], opaque: set[str]
    ) -> None:
        self.types = dict(types)
        self.constants: dict[str, Any] = dict(constants)
        self.opaque = opaque
        self.reasons: dict[str, str] = {}  # why a node of constant inputs was not folded, by first output
        self._opset = opset
        self._opset_imports = [helper.make_opsetid("", opset)]

    @staticmethod
    def start(model: onnx.ModelProto, arrays: Arrays) -> Propagation:
        """Before it is known what trains: nothing that might is read."""
        opaque = {name for name, array in arrays.items() if array.dtype == np.float32 and array.size > 1}
        return Propagation(opset_of(model), known_types(model, arrays), arrays, opaque)

    def step(self, node: onnx.NodeProto) -> None:
        """Folds or infers, and goes on whatever happens: what is wrong is found later and reported by name."""
        if not self.fold(node):
            with suppress(*InferenceFailure):
                self.types.update(self.infer(node))

    def fold(self, node: onnx.NodeProto) -> bool:
        """Turns the node's outputs into constants if they are ones."""
        if node.domain not in ("", "ai.onnx") or node.op_type in _RANDOM:
            return False
        values = self._shape_of(node) if node.op_type in ("Shape", "Size") else self._evaluate(node)
        if values is None or len(values) < len(node.output):
            return False
        for name, value in zip(node.output, values, strict=False):
            if name:
                self.constants[name] = value
                if isinstance(value, np.ndarray):
                    self.types[name] = array_type(value)
        return True

    def infer(self, node: onnx.NodeProto) -> dict[str, onnx.TypeProto]:
        """The output types ONNX can tell; raises one of `InferenceFailure` where it finds a contradiction."""
        try:
            schema = defs.get_schema(node.op_type, self._opset, node.domain)
        except defs.SchemaError:
            return {}
        if any(name and name not in self.types for name in node.input):
            return {}
        data = {
            name: numpy_helper.from_array(self.constants[name], name)
            for name in node.input
            if isinstance(self.constants.get(name), np.ndarray)
            and name not in self.opaque
            and self.constants[name].size <= _READ_BY_INFERENCE_ELEMENTS
        }
        types = {name: self.types[name] for name in (*node.input, *captured(node)) if name in self.types}
        return shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=self._opset_imports)

    def _shape_of(self, node: onnx.NodeProto) -> Sequence[Array] | None:
        known = self.types.get(node.input[0]) if node.input else None
        shape = None if known is None else static_shape(known)
        if shape is None:
            return None
        if node.op_type == "Size":
            return [np.array(int(np.prod(shape, dtype=np.int64)), np.int64)]
        bounds = {attribute.name: attribute.i for attribute in node.attribute}
        return [np.array(shape[bounds.get("start", 0) : bounds.get("end", len(shape))], np.int64)]

    def _evaluate(self, node: onnx.NodeProto) -> Sequence[Any] | None:
        names = [*filter(None, node.input), *captured(node)]
        if any(name not in self.constants or name in self.opaque for name in names):
            return None
        reason = self._too_much_work(node)
        if reason is None:
            feeds = {name: self.constants[name] for name in names}
            try:
                return _run(node, feeds, self._opset)
            # The reference is NumPy code of any operator on any data: whatever it raises means "not folded".
            except (Exception, MemoryError) as error:  # noqa: BLE001
                reason = f"its inputs are constants, but ONNX's reference fails on them: {_one_line(error)}"
        self.reasons[node.output[0]] = reason
        return None

    def _too_much_work(self, node: onnx.NodeProto) -> str | None:
        if node.op_type == "Scan":
            return "a Scan is not run at import"
        if node.op_type == "Loop":
            trips = self.constants.get(node.input[0]) if node.input and node.input[0] else None
            if trips is None or int(np.asarray(trips).reshape(-1)[0]) > MAX_TRIPS:
                return f"a Loop of more than {MAX_TRIPS} trips is not run at import"
        if node.op_type == "Constant" or node.op_type in _DATA_DEPENDENT:
            return None
        try:
            inferred = self.infer(node)
        except InferenceFailure as error:
            return _one_line(error)
        for name in filter(None, node.output):
            shape = static_shape(inferred[name]) if name in inferred else None
            if shape is None:
                return "the size of its result cannot be told"
            size_bytes = int(np.prod([float(extent) for extent in shape])) * 8
            if size_bytes > MAX_FOLDED_BYTES:
                return f"its constant result of shape {list(shape)} is over {MAX_FOLDED_BYTES >> 20} MB"
        return None


def known_types(model: onnx.ModelProto, arrays: Arrays) -> dict[str, onnx.TypeProto]:
    """Of inputs and initializers."""
    types = {value.name: value.type for value in true_inputs(model, arrays)}
    types.update({name: array_type(array) for name, array in arrays.items()})
    return types


def lenient_types(model: onnx.ModelProto, arrays: Arrays) -> dict[str, onnx.TypeProto]:
    """Every type that can be told, constants among the inputs read. (ONNX's own inference of whole models with
    data propagation is not used: a bad Slice makes it allocate without bound.)"""
    known = Propagation.start(model, arrays)
    for node in model.graph.node:
        known.step(node)
    return known.types


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def captured(node: onnx.NodeProto) -> Iterator[str]:
    """Names that the node's subgraphs read from outside."""
    for attribute in node.attribute:
        for graph in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
            inside = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
            for inner in graph.node:
                yield from (name for name in (*inner.input, *captured(inner)) if name and name not in inside)
                inside.update(inner.output)
            yield from (value.name for value in graph.output if value.name not in inside)


def _run(node: onnx.NodeProto, feeds: Mapping[str, Any], opset: int) -> Sequence[Any]:
    if node.op_type == "Constant" and node.attribute[0].name == "value":
        return [np.asarray(numpy_helper.to_array(node.attribute[0].t))]
    from onnx.reference import ReferenceEvaluator

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        if any(attribute.HasField("g") for attribute in node.attribute):
            graph = helper.make_graph(
                [node],
                "constant",
                [helper.make_empty_tensor_value_info(name) for name in feeds],
                [helper.make_empty_tensor_value_info(name) for name in node.output if name],
            )
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
            results = iter(ReferenceEvaluator(model).run(None, dict(feeds)))
        else:
            results = iter(ReferenceEvaluator(node, opsets={"": opset}).run(None, dict(feeds)))
        found = [next(results) if name else None for name in node.output]
    return [np.asarray(value) if isinstance(value, np.generic) else value for value in found]
