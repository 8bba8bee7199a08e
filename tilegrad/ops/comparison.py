"""Equal, Less, LessOrEqual, Greater, GreaterOrEqual: the last two are the former with their operands exchanged."""

from __future__ import annotations

from typing import ClassVar

from tilegrad.ir.nest import Nest
from tilegrad.ir.types import DType
from tilegrad.ops._pointwise import INTEGERS, BroadcastOperator
from tilegrad.ops.base import NodeView


class _Comparison(BroadcastOperator):
    dtypes = (DType.F32, *INTEGERS)
    result_dtype = DType.BOOL
    has_map_kernel = False
    is_exchanged: ClassVar[bool] = False

    def broadcast(
        self, node: NodeView, inputs: list[tuple[str, tuple[int, ...]]], output: tuple[str, tuple[int, ...]]
    ) -> Nest:
        return super().broadcast(node, inputs[::-1] if self.is_exchanged else inputs, output)

    def in_place(self, node: NodeView) -> tuple[tuple[int, int], ...]:
        return ()


class Equal(_Comparison):
    name = "Equal"
    kernel = "equal"
    dtypes = (DType.F32, *INTEGERS, DType.BOOL)


class Less(_Comparison):
    name = "Less"
    kernel = "less"


class LessOrEqual(_Comparison):
    name = "LessOrEqual"
    kernel = "less_or_equal"


class Greater(Less):
    name = "Greater"
    is_exchanged = True


class GreaterOrEqual(LessOrEqual):
    name = "GreaterOrEqual"
    is_exchanged = True
