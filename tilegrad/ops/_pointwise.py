"""Bases for operators that work element by element: a subclass names its kernel and says what it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import ClassVar

from tilegrad.ir.nest import Nest, map_nest
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops._elementwise import broadcast_nest, broadcast_shapes, type_code
from tilegrad.ops.base import GradientBuilder, NodeView, Operator

INTEGERS = tuple(dtype for dtype in DType if dtype.is_integer)


def float_attribute(node: NodeView, name: str, default: float | None = None) -> float:
    """A finite number; without a default it must be given."""
    value = node.required(name) if default is None else node.node.attributes.get(name, default)
    if not isinstance(value, (int, float)) or not isfinite(value):
        raise node.error(f"{node.node.op}: bad attribute '{name}'", expected="a finite number", got=str(value))
    return float(value)


def one_element(node: NodeView, name: str) -> int | float | None:
    """A former input of one element, moved to an attribute; None where it was absent."""
    value = node.node.attributes.get(name)
    if isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    if value is not None and not isinstance(value, (int, float)):
        raise node.error(f"{node.node.op}: '{name}' is not one number", expected="a scalar", got=str(value))
    return value


def flag_attribute(node: NodeView, name: str, default: int) -> bool:
    value = node.node.attributes.get(name, default)
    if value not in (0, 1):
        raise node.error(f"{node.node.op}: bad attribute '{name}'", expected="0 or 1", got=str(value))
    return bool(value)


def expect_one_element(node: NodeView, position: int, dtype: DType, what: str) -> None:
    """Refuses anything but a scalar (or one dimension of one element) of this type."""
    node.expect_dtype(position, dtype)
    got = node.input(position)
    if got.rank > 1 or got.size != 1:
        raise node.error(
            f"{node.node.op}: the {what} ('{node.inputs[position]}') is not one element",
            expected="shape [] or [1]",
            got=str(list(got.shape)),
        )


class MapOperator(Operator):
    """Float operands of one shape. The kernel's pointers are `operands`, then `result`."""

    kernel: ClassVar[str] = ""
    operands: ClassVar[tuple[str, ...]] = ("x",)
    result: ClassVar[str] = "y"
    # Attributes that are the kernel's constants of the same name, with their defaults: alpha, beta.
    float_attributes: ClassVar[tuple[tuple[str, float], ...]] = ()

    def kernel_name(self, node: NodeView) -> str:
        """The kernel for these attributes; raises on a bad one."""
        return self.kernel

    def constants(self, node: NodeView) -> Mapping[str, float]:
        """The kernel's constants; raises on a bad attribute."""
        return {name: float_attribute(node, name, default) for name, default in self.float_attributes}

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(len(self.operands))
        for position, pointer in enumerate(self.operands):
            node.expect_dtype(position, DType.F32)
            node.expect_shape(position, node.input(0).shape, f"operand {pointer}")
        self.kernel_name(node)
        self.constants(node)
        return (node.input(0),)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        reads = list(zip(self.operands, node.inputs, strict=True))
        writes = [(self.result, node.outputs[0])]
        return (map_nest(self.kernel_name(node), node.output().size, reads, writes, self.constants(node)),)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return tuple((0, position) for position in range(len(self.operands)))

    def goes_on_from(self, node: NodeView) -> tuple[int, ...]:
        return tuple(range(len(self.operands)))


class Activation(MapOperator):
    """y = f(x). Its gradient is the operator NAMEGrad of (dY, Y), or of (dY, X) where `saves_output` is false.

    Saving the output lets the forward operator run in place.
    """

    saves_output: ClassVar[bool] = True

    def saved(self, node: NodeView) -> str:
        """The value the gradient reads."""
        return node.outputs[0] if self.saves_output else node.inputs[0]

    def gradient(
        self, node: NodeView, upstream: Sequence[str | None], wanted: Sequence[bool], build: GradientBuilder
    ) -> Sequence[str | None]:
        return build.emit(f"{self.name}Grad", [upstream[0], self.saved(node)], node.node.attributes)


class ActivationGradient(MapOperator):
    """(dY, Y) -> dX."""

    operands = ("dy", "y")
    result = "dx"


class InputActivationGradient(MapOperator):
    """(dY, X) -> dX."""

    operands = ("dy", "x")
    result = "dx"


def broadcast_in_place(node: NodeView) -> tuple[tuple[int, int], ...]:
    """Output 0 over any input that is not broadcast and has its type."""
    out = node.output()
    return tuple(
        (0, position)
        for position in range(len(node.inputs))
        if node.input(position).dtype is out.dtype and node.input(position).size == out.size
    )


class BroadcastOperator(Operator):
    """Operands of one element type, broadcast together.

    Float kernels are KERNEL and KERNEL_broadcast; KERNEL_integer serves all other types, broadcast or not. Where
    `has_map_kernel` is false, floats have only KERNEL, in broadcast form.
    """

    kernel: ClassVar[str]
    arity: ClassVar[int] = 2
    dtypes: ClassVar[tuple[DType, ...]] = (DType.F32,)
    result_dtype: ClassVar[DType | None] = None
    has_map_kernel: ClassVar[bool] = True

    def constants(self, node: NodeView) -> Mapping[str, float]:
        return {}

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        node.expect_inputs(self.arity)
        return (self._broadcast_type(node),)

    def _broadcast_type(self, node: NodeView) -> TensorType:
        node.expect_dtype(0, *self.dtypes)
        dtype = node.input(0).dtype
        for position in range(1, len(node.inputs)):
            node.expect_dtype(position, dtype)
        shape = broadcast_shapes(node, *(node.input(position).shape for position in range(len(node.inputs))))
        return TensorType(self.result_dtype or dtype, shape)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        inputs = [(name, node.input(position).shape) for position, name in enumerate(node.inputs)]
        return (self.broadcast(node, inputs, (node.outputs[0], node.output().shape)),)

    def broadcast(
        self, node: NodeView, inputs: list[tuple[str, tuple[int, ...]]], output: tuple[str, tuple[int, ...]]
    ) -> Nest:
        dtype = node.input(0).dtype
        kernel = self.kernel if dtype is DType.F32 else f"{self.kernel}_integer"
        constants = {"type": type_code(dtype), **self.constants(node)}
        only_broadcast = dtype is not DType.F32 or not self.has_map_kernel
        return broadcast_nest(node, kernel, inputs, output, constants, always_broadcast=only_broadcast)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return broadcast_in_place(node)

    def goes_on_from(self, node: NodeView) -> tuple[int, ...]:
        return tuple(position for _, position in broadcast_in_place(node)) if node.output().dtype is DType.F32 else ()


class VariadicOperator(BroadcastOperator):
    """One or more operands, folded from the left; partial results go through temporaries."""

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        if not node.inputs:
            raise node.error(f"{node.node.op} has no inputs")
        return (self._broadcast_type(node),)

    def temporaries(self, node: NodeView) -> tuple[TensorType, ...]:
        return (node.output(),) * min(2, max(0, len(node.inputs) - 2))

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        shape = node.output().shape
        if len(node.inputs) == 1:
            return (self.single(node),)
        folded = (node.inputs[0], node.input(0).shape)
        result = []
        for position, name in enumerate(node.inputs[1:], start=1):
            is_last = position == len(node.inputs) - 1
            target = (node.outputs[0] if is_last else node.temporary((position - 1) % 2), shape)
            result.append(self.broadcast(node, [folded, (name, node.input(position).shape)], target))
            folded = target
        return tuple(result)

    def single(self, node: NodeView) -> Nest:
        """One operand is its own fold: combined with itself, which must give it back."""
        operand = (node.inputs[0], node.input(0).shape)
        return self.broadcast(node, [operand, operand], (node.outputs[0], node.output().shape))

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        # With several nests a later one would read what an earlier one overwrote.
        return broadcast_in_place(node) if len(node.inputs) <= 2 else ()
