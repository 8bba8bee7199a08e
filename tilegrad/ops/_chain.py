"""An operator and the element-wise one behind it as one: each tile of the first goes on through the second's kernel.

Such an operator is called after both, `Conv+Relu` or, where one more follows, `MatMul+Add+Gelu`. Its node has what both
nodes had. No C belongs to it, and its bits are those of the two: the kernels are the same, on the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tilegrad.errors import InternalError
from tilegrad.ir.graph import Attribute, Node
from tilegrad.ir.nest import FIXED, Access, AxisKind, Epilogue, Nest, Operand, along
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops.base import NodeView, Operator

CHAINED = "+"
MOST_EPILOGUES = 2
"""A bias and an activation."""
KERNEL_POINTERS = 14
"""Of a nest, as the tile runtime has them (TG_MAX_OPERANDS)."""


@dataclass(frozen=True)
class Chain(Operator):
    """Made by `schedule/epilogues.py`, never imported.

    Its node's attributes are those of `first`, and with a prefix those of `then` (`own.`), which output of `first`
    (`of`) is which input of `then` (`at`), how many inputs are those of `first` (`count`), and whether what lies
    between is the last output (`keeps`)."""

    first: Operator
    then: Operator

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.first.name}{CHAINED}{self.then.name}"

    @property
    def goes_on_with(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.first.goes_on_with

    @property
    def _prefix(self) -> str:
        return f"then{self.first.name.count(CHAINED)}."

    def _number(self, node: NodeView, key: str) -> int:
        return node.attribute(self._prefix + key, 0)

    def parts(self, node: NodeView) -> tuple[NodeView, NodeView]:
        """The two nodes that this one is."""
        of, at, count, keeps = (self._number(node, key) for key in ("of", "at", "count", "keeps"))
        outputs = list(node.outputs[:-1] if keeps else node.outputs)
        between = node.outputs[-1] if keeps else f"{outputs[of]}.between"
        own = {k: v for k, v in node.node.attributes.items() if not k.startswith(self._prefix)}
        prefix = f"{self._prefix}own."
        theirs = {k.removeprefix(prefix): v for k, v in node.node.attributes.items() if k.startswith(prefix)}
        result, outputs[of] = outputs[of], between
        first = Node(node.node.name, self.first.name, node.inputs[:count], tuple(outputs), own)
        inputs = list(node.inputs[count:])
        inputs.insert(at, between)
        then = Node(node.node.name, self.then.name, tuple(inputs), (result,), theirs)
        made = self.first.infer(NodeView(first, node.types, node.constants))[of]
        touched = {name: node.types[name] for name in (*node.inputs, *node.outputs) if name in node.types}
        types = {**touched, between: made}
        return NodeView(first, types, node.constants), NodeView(then, types, node.constants)

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        first, then = self.parts(node)
        of = self._number(node, "of")
        found = list(self.first.infer(first))
        made, found[of] = found[of], self.then.infer(then)[0]
        return (*found, made) if self._number(node, "keeps") else tuple(found)

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        first, then = self.parts(node)
        between, keeps = first.outputs[self._number(node, "of")], bool(self._number(node, "keeps"))
        (epilogue,) = self.then.nests(then)
        nests = self.first.nests(first)
        joined = [_joined(nest, epilogue, between, then.outputs[0], keeps) for nest in nests]
        found = [one for one in joined if one is not None]
        if len(found) != 1:
            raise InternalError(f"{self.name} is no chain")
        return tuple(one or nest for one, nest in zip(joined, nests, strict=True))

    def unread_inputs(self, node: NodeView) -> tuple[int, ...]:
        first, then = self.parts(node)
        unread = ((first, self.first.unread_inputs(first)), (then, self.then.unread_inputs(then)))
        read = {name for part, own in unread for k, name in enumerate(part.inputs) if k not in own}
        return tuple(k for k, name in enumerate(node.inputs) if name and name not in read)


def chained(first: NodeView, then: NodeView, value: str, keeps: bool) -> Node | None:
    """One node of two, the second of which reads `value` of the first; None where they are no chain. `keeps`: others
    read that value, too."""
    one, other = first.node, then.node
    number = one.op.count(CHAINED)
    if number >= MOST_EPILOGUES or CHAINED in other.op or then.inputs.count(value) != 1 or len(then.outputs) != 1:
        return None
    prefix, of, at = f"then{number}.", first.outputs.index(value), then.inputs.index(value)
    others = tuple(name for name in then.inputs if name != value)
    attributes: dict[str, Attribute] = {f"{prefix}own.{key}": v for key, v in other.attributes.items()}
    numbers = {"of": of, "at": at, "count": len(one.inputs), "keeps": int(keeps)}
    attributes |= {prefix + key: number for key, number in numbers.items()}
    outputs = list(one.outputs)
    outputs[of] = then.outputs[0]
    return Node(
        one.name,
        f"{one.op}{CHAINED}{other.op}",
        (*one.inputs, *others),
        (*outputs, value) if keeps else tuple(outputs),
        {**one.attributes, **attributes},
    )


def may_chain(first: Operator, one: NodeView, then: Operator, other: NodeView, value: str) -> bool:
    """Whether both declare it, and their nests are such that a tile of the first is one of the second."""
    if one.outputs.index(value) not in first.goes_on_with or other.inputs.index(value) not in then.goes_on_from(other):
        return False
    if first.temporaries(one) or then.temporaries(other):
        return False
    nests, epilogues = first.nests(one), then.nests(other)
    touching = [nest for nest in nests if any(operand.value == value for operand in nest.operands)]
    if len(touching) != 1 or len(epilogues) != 1:
        return False
    return _joined(touching[0], epilogues[0], value, other.outputs[0], keeps=True) is not None


def _joined(nest: Nest, then: Nest, between: str, result: str, keeps: bool) -> Nest | None:
    """The nest with the other as its epilogue; None where it does not make `between`, or not so that it could go on."""
    made = next((one for one in nest.results if one.value == between), None)
    if made is None or made.index is None or any(one.dtype is not DType.F32 for one in (*nest.results, *then.operands)):
        return None
    is_plain = all(
        index == along(index.terms[0][0]) if index.terms else extent == 1
        for index, extent in zip(made.index, made.shape, strict=True)
    )
    groups = _groups([axis.extent for axis in then.axes], made.shape)
    if not is_plain or groups is None or len(nest.operands) + len(then.operands) - 1 > KERNEL_POINTERS:
        return None
    # What goes on with a sum needs all of it.
    axes = tuple(replace(a, kind=AxisKind.INNER) if a.kind is AxisKind.REDUCTION else a for a in nest.axes)
    prefix = f"then{len(nest.epilogues)}_"
    names, more = [], []
    for operand in then.operands:
        if operand.value == between or (operand.access is Access.WRITE and not keeps):
            names.append(made.name)
            continue
        names.append(prefix + operand.name)
        more.append(_spread(operand, made, [a.name for a in then.axes], groups, prefix))
    own = (replace(o, value=result) if o is made and not keeps else o for o in nest.operands)
    epilogue = Epilogue(then, groups, made.name, tuple(names))
    return replace(nest, axes=axes, operands=(*own, *more), epilogues=(*nest.epilogues, epilogue))


def _groups(extents: Sequence[int], shape: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
    """The dimensions that each axis is made of, one behind the other; None where it is not made of any."""
    found: list[tuple[int, ...]] = []
    left = [d for d in range(len(shape)) if shape[d] != 1]
    for extent in extents:
        own: list[int] = []
        while left and prod(shape[d] for d in own) < extent:
            own.append(left.pop(0))
        if prod(shape[d] for d in own) != extent:
            return None
        found.append(tuple(own))
    return None if left else tuple(found)


def _spread(
    operand: Operand, made: Operand, axes: Sequence[str], groups: Sequence[tuple[int, ...]], prefix: str
) -> Operand:
    """Another operand of the epilogue, by the dimensions of the result that it goes on with."""
    assert made.index is not None
    present = {d for axis, group in zip(axes, groups, strict=True) if axis in operand.axes for d in group}
    shape = tuple(extent if d in present else 1 for d, extent in enumerate(made.shape))
    index = tuple(one if d in present else FIXED for d, one in enumerate(made.index))
    return Operand(prefix + operand.name, operand.value, operand.access, shape, index, operand.dtype)
