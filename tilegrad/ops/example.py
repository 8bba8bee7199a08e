"""Random nodes of an operator, for counting its kernels and for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from tilegrad.ir.graph import Attribute
from tilegrad.ir.types import DType, TensorType

T = TypeVar("T")
Shape = tuple[int, ...]


class Draw:
    """A source of random choices. With `largest`, no size is larger: small nodes, for tests."""

    def __init__(self, *seed: int, largest: int | None = None) -> None:
        self.generator = np.random.default_rng(seed)
        self.largest = largest

    def between(self, low: int, high: int) -> int:
        """Log-uniform: small and large sizes alike."""
        high = high if self.largest is None else max(low, min(high, self.largest))
        return int(np.exp(self.generator.uniform(np.log(low), np.log(high + 0.999))))

    def one_of(self, *values: T) -> T:
        return values[int(self.generator.integers(len(values)))]

    def is_so(self, probability: float = 0.5) -> bool:
        return bool(self.generator.random() < probability)

    def order(self, count: int) -> tuple[int, ...]:
        return tuple(int(i) for i in self.generator.permutation(count))

    def dtype(self) -> DType:
        """One of each element size, floats most often."""
        return self.one_of(DType.F32, DType.F32, DType.BOOL, DType.I16, DType.I64)

    def image(self) -> Shape:
        """Batch, channels, height, width."""
        batch = self.one_of(1, 1, 2, 4)
        return batch, self.between(1, 64), self.between(1, 24), self.between(1, 24)


@dataclass(frozen=True)
class Example:
    """Inputs (None: absent), attributes, and which outputs are wanted: None for all that the operator has."""

    inputs: tuple[TensorType | None, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    outputs: tuple[bool, ...] | None = None


def floats(*shapes: Shape) -> tuple[TensorType, ...]:
    return tuple(TensorType(DType.F32, shape) for shape in shapes)
