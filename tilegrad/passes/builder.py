"""Appends operators to a growing graph, inferring every type on the way."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tilegrad.analysis.verify import infer_node
from tilegrad.ir.graph import Attribute, Graph, Node
from tilegrad.ir.types import Constant, DType, TensorType


class GraphBuilder:
    """Mutable while a pass runs; `finish` freezes it. Satisfies `ops.base.GradientBuilder`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, Constant] = {}
        self.inputs: list[str] = []
        self.state: list[str] = []
        self._state_names: set[str] = set()
        self._tried: dict[tuple[str, str], int] = {}  # where the search for a free name of this hint goes on
        self._shared: dict[Constant, str] = {}
        self.writes: list[tuple[str, str]] = []
        self.node_name = name
        self._node_names: set[str] = set()

    @staticmethod
    def from_graph(graph: Graph, name: str | None = None) -> GraphBuilder:
        builder = GraphBuilder(name or graph.name)
        builder.types.update(graph.types)
        builder.constants.update(graph.constants)
        builder.inputs += graph.inputs
        builder.state += graph.state
        builder._state_names.update(graph.state)
        for name, constant in graph.constants.items():
            if name.startswith("tg.constant"):
                builder._shared.setdefault(constant, name)
        builder.writes += graph.writes
        for node in graph.nodes:
            builder.append(node)
        return builder

    def unique(self, hint: str) -> str:
        """A value name nobody has yet."""
        return self._unlike(hint, self.types, "value")

    def unique_node_name(self, hint: str) -> str:
        return self._unlike(hint, self._node_names, "node")

    def _unlike(self, hint: str, taken: Container[str], kind: str) -> str:
        """The hint, or the first of `hint.1`, `hint.2`, … that is not taken."""
        if hint not in taken:
            return hint
        number = self._tried.get((kind, hint), 1)
        while f"{hint}.{number}" in taken:
            number += 1
        self._tried[kind, hint] = number
        return f"{hint}.{number}"

    def add_input(self, name: str, tensor_type: TensorType) -> str:
        self.inputs.append(name)
        self.types[name] = tensor_type
        return name

    def add_state(self, name: str, tensor_type: TensorType) -> str:
        if name not in self._state_names:
            self._state_names.add(name)
            self.state.append(name)
        self.types[name] = tensor_type
        return name

    def append(self, node: Node) -> None:
        """Adds a ready node; output types not yet known are inferred."""
        if any(name and name not in self.types for name in node.outputs):
            for name, tensor_type in zip(node.outputs, infer_node(node, self.types, self.constants), strict=True):
                if name:
                    self.types[name] = tensor_type
        self.nodes.append(node)
        self._node_names.add(node.name)

    def type_of(self, value: str) -> TensorType:
        return self.types[value]

    def emit(
        self,
        op: str,
        inputs: Sequence[str | None],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        outputs: Sequence[bool] = (True,),
        hint: str | None = None,
    ) -> tuple[str, ...]:
        """`hint` names the outputs; without one they are called after the node."""
        name = self.unique_node_name(f"{self.node_name}/{op}")
        names = []
        for position, is_wanted in enumerate(outputs):
            stem = hint if hint is not None else name
            names.append(self.unique(stem if position == 0 else f"{stem}.{position}") if is_wanted else "")
            if is_wanted:
                self.types[names[-1]] = TensorType(DType.BOOL, ())  # claims the name until its type is inferred
        node = Node(name, op, tuple(value or "" for value in inputs), tuple(names), dict(attributes or {}))
        for value, tensor_type in zip(names, infer_node(node, self.types, self.constants), strict=True):
            if value:
                self.types[value] = tensor_type
        self.nodes.append(node)
        self._node_names.add(name)
        return tuple(names)

    def constant(self, array: npt.ArrayLike, dtype: DType = DType.F32) -> str:
        """A constant of this content; equal ones are shared."""
        constant = Constant(np.asarray(array, dtype=dtype.numpy))
        shared = self._shared.get(constant)
        if shared is not None and shared in self.constants:
            return shared
        name = self._shared[constant] = self.unique("tg.constant")
        self.constants[name] = constant
        self.types[name] = constant.type
        return name

    def sum_to(self, value: str, shape: tuple[int, ...]) -> str:
        have = self.types[value].shape
        if have == shape:
            return value
        padded = (1,) * (len(have) - len(shape)) + shape
        axes = tuple(d for d, (wide, narrow) in enumerate(zip(have, padded, strict=True)) if narrow == 1 != wide)
        if axes:
            (value,) = self.emit("ReduceSum", [value], {"axes": axes, "keepdims": 1})
        if self.types[value].shape != shape:
            (value,) = self.emit("Reshape", [value], {"shape": shape, "allowzero": 1})
        return value

    def finish(self, outputs: Iterable[str]) -> Graph:
        outputs = tuple(outputs)
        used = {*outputs, *(value for value, _ in self.writes)}
        used.update(name for node in self.nodes for name in node.inputs)
        constants = {name: constant for name, constant in self.constants.items() if name in used}
        named = {name for node in self.nodes for name in node.outputs}
        named.update(constants, self.inputs, self.state)
        types = {name: tensor_type for name, tensor_type in self.types.items() if name in named}
        return Graph(
            self.name,
            tuple(self.inputs),
            outputs,
            tuple(self.nodes),
            types,
            constants,
            tuple(self.state),
            tuple(self.writes),
        )
