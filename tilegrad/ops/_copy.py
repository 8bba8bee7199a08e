"""Nests of operators that only move elements: an affine copy, described by its loops and by a view of each side."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tilegrad.ir.nest import Access, Axis, Index, Nest, Operand
from tilegrad.ir.types import DType, TensorType
from tilegrad.ops.base import NodeView, Operator

MAX_COPY_LOOPS = 8


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension of a row-major view: its extent, and the loop that walks it (None: it stays at `offset`)."""

    extent: int
    loop: int | None
    step: int = 1
    offset: int = 0

    def index(self) -> Index:
        terms = () if self.loop is None else ((f"d{self.loop}", self.step),)
        return Index(terms, self.offset)


View = tuple[Dim, ...]


def sized(kernel: str, dtype: DType) -> str:
    """The kernel's version for elements of this size."""
    return f"{kernel}_b{dtype.size_bytes}"


def _drop_unit_loops(extents: list[int], views: list[View]) -> tuple[list[int], list[View]]:
    kept = [loop for loop, extent in enumerate(extents) if extent != 1]
    number = {loop: i for i, loop in enumerate(kept)}
    renamed = []
    for view in views:
        dims = (replace(dim, loop=None if dim.loop is None else number.get(dim.loop)) for dim in view)
        renamed.append(tuple(dim for dim in dims if dim.extent != 1))
    return [extents[loop] for loop in kept], renamed


def _position(view: View, loop: int) -> int | None:
    return next((i for i, dim in enumerate(view) if dim.loop == loop), None)


def _merge_next(extents: list[int], views: list[View], loop: int) -> tuple[list[int], list[View]] | None:
    """Loops `loop` and `loop + 1` as one, or None where some side does not walk them as one."""
    merged = []
    for view in views:
        outer, inner = _position(view, loop), _position(view, loop + 1)
        dims = list(view)
        if outer is not None and inner is not None:
            first, second = view[outer], view[inner]
            whole = (second.step, second.offset, second.extent) == (1, 0, extents[loop + 1])
            if inner != outer + 1 or first.step != 1 or not whole:
                return None
            dims[outer : inner + 1] = [Dim(first.extent * second.extent, loop, 1, first.offset * second.extent)]
        elif outer is not None or inner is not None:
            return None
        merged.append(
            tuple(replace(dim, loop=dim.loop - 1) if dim.loop is not None and dim.loop > loop else dim for dim in dims)
        )
    return [*extents[:loop], extents[loop] * extents[loop + 1], *extents[loop + 2 :]], merged


@dataclass(frozen=True, slots=True)
class Copy:
    """Input `source` to output `target`, both seen through views walked by loops of these extents."""

    extents: tuple[int, ...]
    x: View
    y: View
    source: int = 0
    target: int = 0

    def merged(self) -> Copy:
        """Unit loops dropped, neighbouring loops that both sides walk as one joined."""
        loops, views = _drop_unit_loops(list(self.extents), [self.x, self.y])
        loop = 0
        while loop + 1 < len(loops):
            merged = _merge_next(loops, views, loop)
            if merged is None:
                loop += 1
            else:
                loops, views = merged
        return replace(self, extents=tuple(loops), x=views[0], y=views[1])


def plain_view(shape: Sequence[int]) -> View:
    """Dimension d walked by loop d."""
    return tuple(Dim(extent, loop) for loop, extent in enumerate(shape))


class Mover(Operator):
    """An operator made of copies. `kernel` is the stem of its four kernels, one per element size."""

    kernel: ClassVar[str]

    @abstractmethod
    def output_types(self, node: NodeView) -> tuple[TensorType, ...]:
        """Checks the node, like `Operator.infer`."""

    @abstractmethod
    def copies(self, node: NodeView, outputs: Sequence[TensorType]) -> Sequence[Copy]:
        """Together they write every output element once."""

    def infer(self, node: NodeView) -> tuple[TensorType, ...]:
        outputs = self.output_types(node)
        for copy in self.copies(node, outputs):
            loops = copy.merged().extents
            if len(loops) > MAX_COPY_LOOPS:
                raise node.error(
                    f"{self.name}: too many dimensions move apart",
                    expected=f"at most {MAX_COPY_LOOPS} runs of dimensions",
                    got=str(len(loops)),
                )
        return outputs

    def nests(self, node: NodeView) -> tuple[Nest, ...]:
        outputs = tuple(
            node.output(i) if node.has_output(i) else TensorType(DType.BOOL, ()) for i in range(len(node.outputs))
        )
        return tuple(
            self._nest(node, copy.merged())
            for copy in self.copies(node, outputs)
            if node.has_output(copy.target) and 0 not in copy.extents
        )

    def _nest(self, node: NodeView, copy: Copy) -> Nest:
        missing = MAX_COPY_LOOPS - len(copy.extents)

        def operand(name: str, value: str, view: View, access: Access) -> Operand:
            dims = view or (Dim(1, None),)
            moved = [replace(dim, loop=None if dim.loop is None else dim.loop + missing) for dim in dims]
            return Operand(name, value, access, tuple(d.extent for d in moved), tuple(d.index() for d in moved))

        return Nest(
            sized(self.kernel, node.output(copy.target).dtype),
            tuple(Axis(f"d{i}", extent) for i, extent in enumerate((1,) * missing + copy.extents)),
            (
                operand("x", node.inputs[copy.source], copy.x, Access.READ),
                operand("y", node.outputs[copy.target], copy.y, Access.WRITE),
            ),
        )
