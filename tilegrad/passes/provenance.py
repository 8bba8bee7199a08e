"""What can be told of an initializer from where its partner comes from and, in PyTorch's files, from its name.

A file does not say whether PyTorch had a tensor as a parameter or as a buffer. Three things help: nothing that is
learned stands before a fixed front end (a filterbank, input statistics); layers multiply activations from the right and
have biases; and PyTorch's exporters keep the names of what they do not change, while numbers in Python code have none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from tilegrad.ir.graph import Graph, Node
from tilegrad.ir.types import DType

# Operators that move elements without computing: the initializer stays itself.
MOVEMENT = frozenset(
    (
        *("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Slice", "Split", "Concat"),
        *("Tile", "Cast", "Dropout", "Pad", "Gather", "DepthToSpace", "SpaceToDepth"),
    )
)
PRODUCTS = frozenset(("Gemm", "MatMul", "Conv", "ConvTranspose"))

MADE_UP_NAME = re.compile(
    r"(_?val_\d+|onnx::\w+|.*Constant(_\d+)?_output_\d+|\d+|.*(lifted_tensor|_tensor_constant|scalar_tensor|lift_fresh).*)"
)
_SAYS_LEARNED = re.compile(
    r"weight|kernel|bias|embed|token|quer|prompt|latent|lora|proj|param|(^|[._])[WUVwuv]_?\d*$", re.IGNORECASE
)
_SAYS_STATISTIC = re.compile(r"(^|[._])(running_(mean|var)|moving_(mean|variance)|num_batches_tracked)$")


class Provenance:
    """`constant` are the values that depend on no input of the graph."""

    def __init__(
        self,
        graph: Graph,
        producers: Mapping[str, Node],
        consumers: Mapping[str, Collection[Node]],
        constant: Collection[str],
        *,
        from_pytorch: bool,
    ) -> None:
        self.graph = graph
        self.producers = producers
        self.consumers = consumers
        self.constant = constant
        self.from_pytorch = from_pytorch
        self._raw: dict[str, bool] = {}

    def is_statistic_by_name(self, name: str) -> bool:
        return _SAYS_STATISTIC.search(name) is not None

    def is_learned_number(self, name: str) -> bool:
        """One element under a name of its own: a number in Python code reaches a file of PyTorch's without one."""
        if not self.from_pytorch or name not in self.graph.constants:
            return False
        return MADE_UP_NAME.fullmatch(name) is None and not re.search(r"(^|[._])eps(ilon)?$", name)

    def is_raw(self, value: str) -> bool:
        """Nothing that may be learned has touched this value: it is an input, or made of inputs by fixed means."""
        if value not in self._raw:
            self._raw[value] = False  # a cycle would be no graph; nor would it be raw
            self._raw[value] = self._compute_raw(value)
        return self._raw[value]

    def _compute_raw(self, value: str) -> bool:
        pending, seen = [value], {value}
        while pending:
            node = self.producers.get(pending.pop())
            if node is None:
                continue
            for position, name in enumerate(node.inputs):
                if not name or name in seen:
                    continue
                if name in self.constant:
                    if self._may_be_learned(name) and not self._is_fixed_use(name, node, position):
                        return False
                else:
                    seen.add(name)
                    pending.append(name)
        return True

    def _may_be_learned(self, value: str) -> bool:
        tensor = self.graph.types.get(value)
        return tensor is None or (tensor.dtype is DType.F32 and (tensor.size > 1 or self.is_learned_number(value)))

    def _is_fixed_use(self, value: str, node: Node, position: int) -> bool:
        if node.op in PRODUCTS:
            return self.is_fixed_matrix(self.root(value) or value, node, position)
        return node.op in ("Sub", "Div") and not self.enlarges(node, node.inputs[1 - position])

    def root(self, value: str) -> str | None:
        """The one initializer that a value is a view or copy of."""
        while value not in self.graph.constants:
            node = self.producers.get(value)
            if node is None or node.op not in MOVEMENT or node.op == "Concat":
                return None
            value = node.inputs[0]
        return value

    def is_fixed_matrix(self, initializer: str, node: Node, position: int) -> bool:
        """A matrix that is no layer's: without a bias, under a name of its own that speaks of no weight, and either
        from the left (a graph's adjacency) or on what nothing learned has touched yet (a filterbank)."""
        if not self.from_pytorch or node.op not in PRODUCTS or position > 1:
            return False
        if MADE_UP_NAME.fullmatch(initializer) or _SAYS_LEARNED.search(initializer) or self.has_bias(node):
            return False
        return position == 0 or self.is_raw(node.inputs[0])

    def is_layer_data(self, initializer: str, node: Node, position: int) -> bool:
        """A table that a layer reads as its data, though no input is involved (coordinates for a learned bias).

        What is repeated over the batch first is a learned query or token, and so is what its name calls one.
        """
        if node.op not in PRODUCTS or position != 0 or not self.has_bias(node) or _SAYS_LEARNED.search(initializer):
            return False
        before = self.producers.get(node.inputs[0])
        while before is not None and before.op in MOVEMENT:
            if before.op in ("Expand", "Tile"):
                return False
            before = self.producers.get(before.inputs[0])
        return True

    def has_bias(self, node: Node) -> bool:
        """One element per output channel is added to a product."""
        if node.op != "MatMul":
            return len(node.inputs) > 2 and bool(node.inputs[2])
        values = [node.outputs[0]]
        while values:
            for reader in self.consumers.get(values.pop(), []):
                if reader.op == "Add" and any(self._is_bias(name) for name in reader.inputs):
                    return True
                if reader.op in MOVEMENT and reader.op not in ("Concat", "Gather"):
                    values.append(reader.outputs[0])
        return False

    def _is_bias(self, value: str) -> bool:
        if value not in self.constant:
            return False
        tensor = self.graph.types.get(value)
        return tensor is not None and (tensor.size > 1 or self.is_learned_number(value))

    def enlarges(self, node: Node, other: str) -> bool:
        """Whether an operand makes more elements of its partner: every one of one with every one of the other."""
        result, partner = self.graph.types.get(node.outputs[0]), self.graph.types.get(other)
        return result is not None and partner is not None and result.size > partner.size
