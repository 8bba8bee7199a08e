"""Nests of operators that only move elements: an affine copy, described by its loops and by a view of each side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilegrad.ir.nest import Access, Axis, Index, Nest, Operand
from tilegrad.ir.types import DType
from tilegrad.ops.base import NodeView

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
            tuple(
                replace(dim, loop=dim.loop - 1) if dim.loop is not None and dim.loop > loop else dim for dim in dims
            )
        )
    return [*extents[:loop], extents[loop] * extents[loop + 1], *extents[loop + 2 :]], merged


def copy_nest(
    node: NodeView,
    kernel: str,
    dtype: DType,
    extents: Sequence[int],
    x: tuple[str, View],
    y: tuple[str, View],
) -> Nest:
    """Copies (value, view) `x` to `y`. Neighbouring loops that both sides walk as one become one."""
    loops, views = _drop_unit_loops(list(extents), [x[1], y[1]])
    loop = 0
    while loop + 1 < len(loops):
        merged = _merge_next(loops, views, loop)
        if merged is None:
            loop += 1
        else:
            loops, views = merged
    missing = MAX_COPY_LOOPS - len(loops)
    if missing < 0:
        raise node.error(
            f"{node.node.op}: too many dimensions move apart",
            expected=f"at most {MAX_COPY_LOOPS} runs of dimensions",
            got=str(len(loops)),
        )
    axes = tuple(Axis(f"d{i}", extent) for i, extent in enumerate([1] * missing + loops))

    def operand(name: str, value: str, view: View, access: Access) -> Operand:
        moved = [replace(dim, loop=None if dim.loop is None else dim.loop + missing) for dim in view]
        return Operand(name, value, access, tuple(d.extent for d in moved), tuple(d.index() for d in moved))

    return Nest(
        sized(kernel, dtype),
        axes,
        (operand("x", x[0], views[0], Access.READ), operand("y", y[0], views[1], Access.WRITE)),
    )


def check_loops(node: NodeView, nest: Nest) -> None:
    """`infer` builds the nest once, so that a copy of too many loops is refused there."""
