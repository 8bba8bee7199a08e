"""Which bytes operands share, and whether tiles of a nest may be computed in any order, and by several blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilegrad.ir.nest import Nest, Operand


def home_of(operand: Operand, homes: Mapping[str, str]) -> str:
    """The name of the bytes that an operand has, which values may share."""
    return homes.get(operand.value or "", operand.value or "")


def may_split(nest: Nest, homes: Mapping[str, str]) -> bool:
    """Whether no tile reads what another one writes: a result in the place of an operand is the same elements of it."""
    for result in nest.results:
        for operand in nest.reads:
            is_shared = home_of(result, homes) == home_of(operand, homes)
            if is_shared and _elements(nest, result) != _elements(nest, operand):
                return False
    return True


def _elements(nest: Nest, operand: Operand) -> object:
    """Which elements of an operand a tile has: axes of one step lead nowhere."""
    if operand.index is None:
        return None
    cut = {axis.name for axis in nest.axes if axis.extent > 1}
    return operand.shape, tuple(replace(i, terms=tuple(t for t in i.terms if t[0] in cut)) for i in operand.index)
