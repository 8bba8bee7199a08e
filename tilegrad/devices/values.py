"""Values from outside, as arrays of the types that a program declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegrad.compiled import Compiled
from tilegrad.errors import UserError
from tilegrad.ir.types import TensorType

FloatArrays = dict[str, npt.NDArray[Any]]
Array = npt.NDArray[Any]
Inputs = Sequence[npt.ArrayLike | None] | Mapping[str, npt.ArrayLike]
"""Of an entry, in the order of its graph, or by name."""


def bad_label(compiled: Compiled) -> UserError:
    classes = compiled.program.label_classes
    return UserError("a label is outside the classes", stage="run", expected=f"0 to {(classes or 1) - 1}")


def as_declared(value: npt.ArrayLike, wanted: TensorType, what: str) -> Array:
    """A value as an array of the declared type; a wrong shape, or numbers that the type cannot hold, are refused."""
    array = np.asarray(value)
    if array.shape != wanted.shape:
        raise UserError(
            f"{what} has a wrong shape", stage="run", expected=str(list(wanted.shape)), got=str(list(array.shape))
        )
    is_float = wanted.dtype.is_float or wanted.dtype.is_half
    if array.dtype != wanted.dtype.numpy and array.dtype.kind not in ("biuf" if is_float else "biu"):
        raise UserError(
            f"{what} has a wrong element type",
            stage="run",
            expected=str(wanted.dtype),
            got=str(array.dtype),
            hint="whole numbers are given as integers: value.astype('int64')" if array.dtype.kind == "f" else None,
        )
    if array.dtype == wanted.dtype.numpy:
        return array.copy()
    with np.errstate(invalid="ignore", over="ignore"):
        converted = array.astype(wanted.dtype.numpy)
    if not is_float and not np.array_equal(converted, array):
        raise UserError(
            f"{what} has numbers that its type cannot hold", stage="run", expected=str(wanted.dtype), got=_range(array)
        )
    return converted


def _range(array: Array) -> str:
    return f"{array.min()} to {array.max()}, {array.dtype}"
