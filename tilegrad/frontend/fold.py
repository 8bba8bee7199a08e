"""Constant folding and type propagation, one node at a time, in execution order.

Each node either becomes constants, evaluated by ONNX's own reference implementation whatever its operator is, or its
output types are inferred from its input types and the constants among its inputs. One sweep suffices, because shapes
are static by now: the Shape of any value is a constant as soon as the value's type is known.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import checker, defs, helper, numpy_helper, shape_inference

from tilegrad.bounds import MAX_FOLDED_BYTES, MAX_FOLDED_TOTAL_BYTES, MAX_FOLDED_WORK
from tilegrad.frontend.check import opset_of
from tilegrad.frontend.loop import NotFolded, run_loop
from tilegrad.frontend.onnx_values import array_type, static_shape, to_array
from tilegrad.frontend.weights import Array, Arrays, true_inputs

_READ_BY_INFERENCE_ELEMENTS = 1024
_RANDOM = frozenset(
    ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout")
)
# Operators whose output size no inference can tell, but which make no more than a coordinate of what they are given.
_DATA_DEPENDENT = frozenset(
    (
        *("NonZero", "Unique", "Compress", "NonMaxSuppression", "Identity", "SequenceConstruct", "ConcatFromSequence"),
        *("SplitToSequence", "SequenceAt", "SequenceInsert", "SequenceErase", "SequenceEmpty", "SequenceLength"),
        *("Optional", "OptionalGetElement", "OptionalHasElement"),
    )
)
# Operators that go through their operands once, in NumPy's own code.
_LINEAR = frozenset(
    """
    Abs Add And Cast CastLike Ceil Clip Concat Constant ConstantOfShape Cos Div Equal Exp Expand Flatten Floor Gather
    GatherElements Greater GreaterOrEqual Identity Less LessOrEqual Log Max Min Mod Mul Neg Not Or Pad Pow Range
    Reciprocal ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Reshape Round Shape Sign Sin Size Slice Split Sqrt
    Squeeze Sub Sum Tanh Tile Transpose Trilu Unsqueeze Where Xor EyeLike ReduceL2 Sigmoid Erf Relu Softmax
    SequenceConstruct SequenceAt SequenceInsert SequenceErase SequenceEmpty SequenceLength ConcatFromSequence Optional
    OptionalGetElement OptionalHasElement IsNaN IsInf
    """.split()
)
_ELEMENT_WORK = 1000  # of an operator that may be a loop in Python
_NODE_WORK = 10_000  # of computing anything at all

InferenceFailure = (
    *(shape_inference.InferenceError, checker.ValidationError, RuntimeError, ValueError),
    *(MemoryError, OverflowError, TypeError),
)


@dataclass
class _Spent:
    """What computing constants has taken so far, in the units of the bounds."""

    size_bytes: int = 0
    work: int = 0

    def refusal(self, work: int) -> str | None:
        """Why so much more work cannot be done, or None: then it is counted."""
        if self.work + work > MAX_FOLDED_WORK:
            return f"computing constants at import would take over {MAX_FOLDED_WORK:,} operations"
        self.work += work
        return None


class Propagation:
    """Types and constants known so far. `opaque` initializers are never read: they may change in training."""

    def __init__(
        self,
        opset: int,
        types: Mapping[str, onnx.TypeProto],
        constants: Mapping[str, Any],
        opaque: set[str],
        spent: _Spent | None = None,
    ) -> None:
        self.types = dict(types)
        self.constants: dict[str, Any] = dict(constants)
        self.opaque = opaque
        self.reasons: dict[str, str] = {}  # why a node of constant inputs was not folded, by first output
        self._opset = opset
        self._opset_imports = [helper.make_opsetid("", opset)]
        self._spent = spent or _Spent()

    @staticmethod
    def start(model: onnx.ModelProto, arrays: Arrays) -> Propagation:
        """Before it is known what trains: nothing that might is read."""
        return Propagation(opset_of(model), known_types(model, arrays), arrays, _opaque(arrays))

    def learn(self, arrays: Arrays) -> None:
        """More initializers, as `start` takes them."""
        self.constants.update(arrays)
        self.types.update({name: array_type(array) for name, array in arrays.items()})
        self.opaque.update(_opaque(arrays))

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
        if not node.output:
            return None
        try:
            reason = self._too_much_work(node)
            if reason is None:
                feeds = {name: self.constants[name] for name in names}
                values = self._run_body(node, feeds) if _bodies(node) else _run(node, feeds, self._opset)
                self._spent.size_bytes += sum(map(_size_bytes, values))
                return values
        except NotFolded as refused:
            reason = str(refused)
        # The reference is NumPy code of any operator on any data: whatever it raises means "not folded".
        except (Exception, MemoryError) as error:  # noqa: BLE001
            reason = f"its inputs are constants, but ONNX's reference fails on them: {_one_line(error)}"
        self.reasons[node.output[0]] = reason
        return None

    def _too_much_work(self, node: onnx.NodeProto) -> str | None:
        """Why a node is not computed at import, or None: then its work is counted."""
        if _bodies(node):
            return None if node.op_type in ("If", "Loop") else f"a {node.op_type} is not run at import"
        given = [self.constants[name] for name in filter(None, node.input)]
        if node.op_type == "Constant":
            made_bytes, own_work = node.ByteSize(), 0
            if any(attribute.name == "sparse_value" for attribute in node.attribute):
                return "it is sparse"
        elif node.op_type in _DATA_DEPENDENT:
            made_bytes, own_work = sum(map(_coordinate_bytes, given)), _NODE_WORK
        else:
            made_bytes, own_work = self._result_bytes(node), _NODE_WORK
        if made_bytes > MAX_FOLDED_BYTES and node.op_type != "Constant":
            return f"its constant result may be over {MAX_FOLDED_BYTES >> 20} MB"
        if self._spent.size_bytes + made_bytes > MAX_FOLDED_TOTAL_BYTES and node.op_type != "Constant":
            return f"with it, constants computed at import would be over {MAX_FOLDED_TOTAL_BYTES >> 20} MB"
        elements = made_bytes // 8 + sum(map(_elements, given))
        if node.op_type in _LINEAR:
            return self._spent.refusal(own_work + elements)
        return self._spent.refusal(max(_ELEMENT_WORK * elements, prod(max(_elements(value), 1) for value in given)))

    def _result_bytes(self, node: onnx.NodeProto) -> int:
        """Of all outputs, eight bytes an element, as ONNX infers them before anything is computed."""
        try:
            inferred = self.infer(node)
        except InferenceFailure as error:
            raise NotFolded(_one_line(error)) from error
        total = 0
        for name in filter(None, node.output):
            shape = static_shape(inferred[name]) if name in inferred else None
            if shape is None:
                raise NotFolded("the size of its result cannot be told")
            if inferred[name].tensor_type.elem_type == onnx.TensorProto.STRING:
                raise NotFolded("texts are not computed at import")
            if 8 * prod(shape) > MAX_FOLDED_BYTES:
                raise NotFolded(f"its constant result of shape {list(shape)} is over {MAX_FOLDED_BYTES >> 20} MB")
            total += 8 * prod(shape)
        return total

    def _run_body(self, node: onnx.NodeProto, feeds: Mapping[str, Any]) -> list[Any]:
        """An If or a Loop, node by node, so that every bound holds inside it too."""
        bodies = _bodies(node)
        outer = {name: feeds[name] for name in captured(node) if name in feeds}
        if node.op_type == "If":
            wanted = "then_branch" if bool(np.asarray(feeds[node.input[0]]).reshape(-1)[0]) else "else_branch"
            return self._run_graph(bodies[wanted], outer)[: len(node.output)]
        return run_loop(
            node, bodies["body"], feeds, lambda inputs: self._run_graph(bodies["body"], {**outer, **inputs})
        )

    def _run_graph(self, graph: onnx.GraphProto, feeds: Mapping[str, Any]) -> list[Any]:
        if (reason := self._spent.refusal(_NODE_WORK)) is not None:
            raise NotFolded(reason)
        arrays = {tensor.name: to_array(tensor, f"initializer '{tensor.name}'") for tensor in graph.initializer}
        constants = {**arrays, **feeds}
        types = {name: array_type(value) for name, value in constants.items() if isinstance(value, np.ndarray)}
        inner = Propagation(self._opset, types, constants, set(), self._spent)
        for node in graph.node:
            if not inner.fold(node):
                what = f"'{node.name or node.op_type}' in its body is not computed at import"
                reason = inner.reasons.get(node.output[0] if node.output else "")
                raise NotFolded(what if reason is None else f"{what}: {reason}")
        return [inner.constants[value.name] for value in graph.output]


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


def _opaque(arrays: Arrays) -> set[str]:
    return {name for name, array in arrays.items() if array.dtype == np.float32 and array.size > 1}


def _bodies(node: onnx.NodeProto) -> dict[str, onnx.GraphProto]:
    return {attribute.name: attribute.g for attribute in node.attribute if attribute.HasField("g")}


def _elements(value: Any) -> int:
    """Of a tensor, or of all tensors of a sequence."""
    if isinstance(value, list | tuple):
        return sum(map(_elements, value))
    return int(value.size) if isinstance(value, np.ndarray) else 1


def _coordinate_bytes(value: Any) -> int:
    """A coordinate of every element, which is the most that an operator makes whose output depends on data."""
    if isinstance(value, list | tuple):
        return sum(map(_coordinate_bytes, value))
    return 8 * int(value.size) * max(value.ndim, 1) if isinstance(value, np.ndarray) else 8


def _size_bytes(value: Any) -> int:
    """Of what was made. Sequences share their tensors."""
    return int(value.nbytes) if isinstance(value, np.ndarray) else 8 * len(value) if isinstance(value, list) else 8


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
        results = iter(ReferenceEvaluator(node, opsets={"": opset}).run(None, dict(feeds)))
        found = [next(results) if name else None for name in node.output]
    return [np.asarray(value) if isinstance(value, np.generic) else value for value in found]
