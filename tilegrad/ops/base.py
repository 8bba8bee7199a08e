"""What an operator is: checks, shapes, nests, gradient. One subclass of `Operator` per ONNX operator.

An operator lives in a pair of files, `ops/NAME.py` and `ops/NAME.c`. Its forward and gradient forms share the pair.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from tilegrad.errors import UserError
from tilegrad.ir.graph import Attribute, Node
from tilegrad.ir.nest import Nest
from tilegrad.ir.types import Constant, DType, TensorType
from tilegrad.ops.example import Draw, Example

T = TypeVar("T")

MINIBATCH_COUNTER = "tg.minibatch"


@dataclass(frozen=True)
class NodeView:
    """A node together with the types of what it touches. This is all that an operator ever sees of a graph."""

    node: Node
    types: Mapping[str, TensorType]
    constants: Mapping[str, Constant] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.node.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.node.outputs

    def has_input(self, position: int) -> bool:
        return position < len(self.node.inputs) and self.node.inputs[position] != ""

    def has_output(self, position: int) -> bool:
        return position < len(self.node.outputs) and self.node.outputs[position] != ""

    def input(self, position: int) -> TensorType:
        """Type of a required input; a missing one is the user's error."""
        if not self.has_input(position):
            raise self.error(f"{self.node.op} has no input {position}")
        return self.types[self.node.inputs[position]]

    def output(self, position: int = 0) -> TensorType:
        return self.types[self.node.outputs[position]]

    def input_name(self, position: int) -> str | None:
        """The value's name, or None for an absent optional input (as `Operand.value` wants it)."""
        return self.node.inputs[position] if self.has_input(position) else None

    def output_name(self, position: int) -> str | None:
        return self.node.outputs[position] if self.has_output(position) else None

    def attribute(self, name: str, default: T) -> T:
        """An attribute with its default; the default's type is the attribute's."""
        return cast(T, self.node.attributes.get(name, cast(Attribute, default)))

    def required(self, name: str) -> Attribute:
        if name not in self.node.attributes:
            raise self.error(f"{self.node.op} needs the attribute '{name}'")
        return self.node.attributes[name]

    def temporary(self, position: int) -> str:
        """Name of the operator's own scratch tensor (see `Operator.temporaries`)."""
        return f"{next(filter(None, self.node.outputs))}.tmp{position}"

    def error(
        self, message: str, *, expected: str | None = None, got: str | None = None, hint: str | None = None
    ) -> UserError:
        return UserError(message, stage="verify", node=self.node.name, expected=expected, got=got, hint=hint)

    def expect_inputs(self, low: int, high: int | None = None) -> None:
        """Refuses a node with too few or too many inputs."""
        high = low if high is None else high
        count = len(self.node.inputs)
        if not low <= count <= high:
            wanted = str(low) if low == high else f"{low} to {high}"
            raise self.error(f"{self.node.op} has a wrong number of inputs", expected=wanted, got=str(count))

    def expect_dtype(self, position: int, *allowed: DType) -> None:
        dtype = self.input(position).dtype
        if dtype not in allowed:
            raise self.error(
                f"{self.node.op} does not take element type {dtype} for input {position} ('{self.inputs[position]}')",
                expected=" or ".join(map(str, allowed)),
                got=str(dtype),
            )

    def expect_shape(self, position: int, shape: tuple[int, ...], what: str) -> None:
        """`what` says what the input is for: "bias", "gradient of Y", …"""
        got = self.input(position).shape
        if got != shape:
            raise self.error(
                f"{self.node.op}: the {what} ('{self.inputs[position]}') has a wrong shape",
                expected=str(list(shape)),
                got=str(list(got)),
            )


class GradientBuilder(Protocol):
    """What a gradient rule may do: append operators to the backward graph."""

    def type_of(self, value: str) -> TensorType: ...

    def emit(
        self,
        op: str,
        inputs: Sequence[str | None],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        outputs: Sequence[bool] = (True,),
        hint: str | None = None,
    ) -> tuple[str, ...]:
        """Appends one operator; `outputs` says which are wanted. Returns their names ("" for the unwanted)."""
        ...

    def constant(self, array: npt.ArrayLike, dtype: DType = DType.F32) -> str: ...

    def sum_to(self, value: str, shape: tuple[int, ...]) -> str:
        """Undoes broadcasting: sums `value` down to `shape` (a no-op when it has that shape already)."""
        ...


class Operator(ABC):
    """Stateless. `name` is the ONNX (or ONNX Runtime) operator name."""

    name: ClassVar[str]
    # Inputs that must be known at compile time, moved into attributes at import: {input position: attribute name}.
    static_inputs: ClassVar[Mapping[int, str]] = {}
    # The output is the input's bytes under another shape: no nest, no copy.
    is_view: ClassVar[bool] = False
    # Operand positions that are trainable parameters when an initializer feeds them (PRODUCT.md's written rule).
    parameter_inputs: ClassVar[tuple[int, ...]] = ()
    # Input positions that carry no gradient by definition (indices, conditions, the running statistics that a training
    # BatchNorm only updates). A float operand on which the output depends is never among them.
    nondifferentiable_inputs: ClassVar[tuple[int, ...]] = ()
    # The output is piecewise constant: its derivative is 0 wherever there is one, as in PyTorch.
    has_zero_gradient: ClassVar[bool] = False
    # Outputs of which each tile may go on through the kernel of an element-wise reader, before it leaves L1.
    goes_on_with: ClassVar[tuple[int, ...]] = ()
    # What to tell a user who meets a limit of this operator; shown by `tilegrad ops`.
    summary: ClassVar[str] = ""

    @abstractmethod
    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        """Checks every input and attribute; returns one type per output position the operator has.

        This is the one verification path: whatever it does not refuse must run correctly.
        """

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        """The loop nests that compute the outputs, in order, with a barrier between them."""
        raise TypeError(f"{self.name} has no nests")

    def typed_nests(self, node: NodeView) -> tuple[Nest, ...]:
        """The same with the element types of their operands; none for a view."""
        if self.is_view:
            return ()
        own = {node.temporary(i): scratch for i, scratch in enumerate(self.temporaries(node))}
        types: Mapping[str, TensorType] = ChainMap(own, cast(dict[str, TensorType], node.types)) if own else node.types
        return tuple(nest.typed(types) for nest in self.nests(node))

    def temporaries(self, node: NodeView) -> tuple[TensorType, ...]:
        """Scratch tensors that live from the operator's first nest to its last (`node.temporary(i)` names them)."""
        return ()

    def unread_inputs(self, node: NodeView) -> tuple[int, ...]:
        """Inputs of which only the type matters, since no nest reads them: their bytes may go.

        Gradients have such inputs, and what was not asked for all that it makes; others are not looked into."""
        if self.is_view or (all(node.outputs) and not self.name.endswith("Grad")):
            return ()
        read = {operand.value for nest in self.nests(node) for operand in nest.operands}
        return tuple(k for k, name in enumerate(node.inputs) if name and name not in read)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        """(output, input) pairs where writing the output over the input is correct for any tiling and core count."""
        return ()

    def goes_on_from(self, node: NodeView) -> tuple[int, ...]:
        """Inputs that may be tiles which another operator has just made (its `goes_on_with`): element by element, in
        their order, of floats."""
        return ()

    def gradient(
        self,
        node: NodeView,
        upstream: Sequence[str | None],
        wanted: Sequence[bool],
        build: GradientBuilder,
    ) -> Sequence[str | None]:
        """Gradients of the inputs, given those of the outputs (None: that output has no influence on the loss).

        Only positions in `wanted` are asked for; any other entry of the result may be None. One that is asked for and
        is None is refused, unless the operator says `has_zero_gradient`: no gradient is lost in silence.
        """
        raise UserError(
            f"{self.name} has no gradient",
            stage="autodiff",
            node=node.node.name,
            hint="freeze the parameters before this node (--train last:K or names:GLOB)",
        )

    def example(self, draw: Draw) -> Example | None:
        """A random node, to count kernels on and to test with; one that `infer` refuses is drawn again.

        None is for operators that accept inputs of a usual kind without attributes (calibration/examples.py). An
        example without inputs gets usual ones.
        """
        return None

    def training_form(self, node: NodeView, seed: int) -> Node | None:
        """The node that stands for this one in the `step` entry, or None where it is the same (see Dropout).

        It may read the state tensor `MINIBATCH_COUNTER` (an i64 scalar: the mini-batches run so far).
        """
        return None


def static_attribute(value: npt.NDArray[np.generic]) -> Attribute:
    """A constant operand as an attribute: a scalar stays a scalar, anything else becomes a flat tuple."""
    if value.ndim == 0:
        item = value.item()
        return int(item) if isinstance(item, bool) else cast(Attribute, item)
    return cast(Attribute, tuple(value.reshape(-1).tolist()))
