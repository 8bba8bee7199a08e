"""Tensors one after another in one block of bytes: as they come from a device, and as shares are added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Field:
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Layout:
    """Which tensor lies where in a block."""

    fields: tuple[Field, ...]

    @cached_property
    def places(self) -> dict[str, tuple[int, int, Field]]:
        """Beginning and end of each tensor, by name."""
        found: dict[str, tuple[int, int, Field]] = {}
        at = 0
        for field in self.fields:
            found[field.name] = (at, at + field.size_bytes, field)
            at += field.size_bytes
        return found

    @cached_property
    def _beginnings(self) -> dict[int, Layout]:
        return {}

    def first(self, count: int) -> Layout:
        """Of so many tensors; the same object for the same number."""
        if count == len(self.fields):
            return self
        return self._beginnings.setdefault(count, Layout(self.fields[:count]))

    def leading_bytes(self, names: Sequence[str], dtype: npt.DTypeLike) -> int | None:
        """Where the first tensors end, if these are they, in this order and all of this type."""
        key = (tuple(names), np.dtype(dtype))
        if key not in self._leading:
            self._leading[key] = self._leading_bytes(*key)
        return self._leading[key]

    @cached_property
    def _leading(self) -> dict[tuple[tuple[str, ...], np.dtype[Any]], int | None]:
        return {}

    def _leading_bytes(self, names: tuple[str, ...], dtype: np.dtype[Any]) -> int | None:
        first = self.fields[: len(names)]
        is_so = tuple(field.name for field in first) == names and all(field.dtype == dtype for field in first)
        return sum(field.size_bytes for field in first) if is_so else None


class Packed(Mapping[str, Array]):
    """The tensors of a block by name; an array is made of one when it is looked at."""

    def __init__(self, layout: Layout, whole: Bytes) -> None:
        self.layout = layout
        self.whole = whole

    def __getitem__(self, name: str) -> Array:
        start, end, field = self.layout.places[name]
        return self.whole[start:end].view(field.dtype).reshape(field.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.places)

    def __len__(self) -> int:
        return len(self.layout.places)


def total_bytes(arrays: Mapping[str, Array]) -> int:
    return arrays.whole.nbytes if isinstance(arrays, Packed) else sum(array.nbytes for array in arrays.values())
