"""Element types, tensor types and constant data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import TypeVar

import ml_dtypes
import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.int64]
Number = TypeVar("Number", int, Column)
"""A whole number of one way to do something, or those of many ways at once."""


class DType(Enum):
    """An element type: its short name, its C type and its NumPy type."""

    F32 = ("f32", "float", "float32")
    I8 = ("i8", "int8_t", "int8")
    I16 = ("i16", "int16_t", "int16")
    I32 = ("i32", "int32_t", "int32")
    I64 = ("i64", "int64_t", "int64")
    U8 = ("u8", "uint8_t", "uint8")
    U16 = ("u16", "uint16_t", "uint16")
    U32 = ("u32", "uint32_t", "uint32")
    U64 = ("u64", "uint64_t", "uint64")
    # A byte that is 0 or 1. Not C99 `bool`: its size and its OpenCL meaning are not fixed.
    BOOL = ("bool", "uint8_t", "bool")
    # Floats that are only kept, never computed with: Store16 and Load16 convert them, and optimizers' kernels.
    BF16 = ("bf16", "uint16_t", ml_dtypes.bfloat16)
    FP16 = ("fp16", "uint16_t", "float16")

    def __init__(self, short: str, c_name: str, numpy_type: npt.DTypeLike) -> None:
        self.short = short
        self.c_name = c_name
        self.numpy = np.dtype(numpy_type)

    @property
    def size_bytes(self) -> int:
        return int(self.numpy.itemsize)

    @property
    def is_float(self) -> bool:
        return self is DType.F32

    @property
    def is_half(self) -> bool:
        """Kept in two bytes, computed with in four."""
        return self in (DType.BF16, DType.FP16)

    @property
    def is_integer(self) -> bool:
        return self not in (DType.F32, DType.BOOL, DType.BF16, DType.FP16)

    def __str__(self) -> str:
        return self.short

    @staticmethod
    def from_numpy(dtype: npt.DTypeLike) -> DType | None:
        """The element type NumPy calls `dtype`, or None where tilegrad does not compute with such a type."""
        wanted = np.dtype(dtype)
        return next((candidate for candidate in COMPUTED if candidate.numpy == wanted), None)


COMPUTED = tuple(dtype for dtype in DType if not dtype.is_half)
"""What a model's tensors may be."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and static shape. A scalar has shape `()`; a zero-sized dimension is legal."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.size * self.dtype.size_bytes

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Constant:
    """Immutable tensor data with structural equality (bit patterns, so NaN equals itself)."""

    __slots__ = ("_array",)

    def __init__(self, array: npt.ArrayLike) -> None:
        # ascontiguousarray would turn a scalar into one dimension; copy(order="C") keeps the shape.
        data = np.array(array, order="C", copy=True)
        data.setflags(write=False)
        self._array = data

    @property
    def array(self) -> npt.NDArray[np.generic]:
        return self._array

    @property
    def type(self) -> TensorType:
        dtype = DType.from_numpy(self._array.dtype)
        if dtype is None:
            raise TypeError(f"no tilegrad element type for {self._array.dtype}")
        return TensorType(dtype, self._array.shape)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Constant)
            and self._array.dtype == other._array.dtype
            and self._array.shape == other._array.shape
            and self._array.tobytes() == other._array.tobytes()
        )

    def __hash__(self) -> int:
        return hash((self._array.dtype.str, self._array.shape, self._array.tobytes()))

    def __repr__(self) -> str:
        if self._array.size <= 8:
            return f"Constant({self._array.tolist()})"
        return f"Constant({self._array.dtype}{list(self._array.shape)})"
