"""What operands hold while kernels are counted.

Branches depend on data, so content is even: every stretch has close to the same share of values on either side of any
threshold, about half of all values are negative, and indices go evenly over the rows. What is predicted is the count
for such content; another one may differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from tilegrad.ir.nest import Nest, Operand, Tile, operand_box
from tilegrad.ir.types import DType

Array = npt.NDArray[np.generic]
_TYPES = tuple(DType)  # by the codes of runtime/tg_element.h
_EXPONENT = 5  # of integer powers: how often one multiplies depends on it
_POSITIVE_INPUTS = ("log_map", "sqrt", "sqrt_grad", "pow_broadcast", "pow_grad", "pow_exponent_grad", "pow_scalar")
_POSITIVE_OPERANDS = ("spread",)  # a variance, or an inverse deviation
_NUMPY_TYPES: Mapping[str, npt.DTypeLike] = {
    "float": np.float32, "int32_t": np.int32, "uint32_t": np.uint32, "int64_t": np.int64, "int8_t": np.int8,
    "tg_b1": np.uint8, "tg_b2": np.uint16, "tg_b4": np.uint32, "tg_b8": np.uint64,
}  # fmt: skip
# Multiples of these fill the unit interval evenly, and independently of each other.
_STEPS = tuple(float(np.sqrt(prime)) % 1.0 for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37))
_QUANTILES = np.array([NormalDist().inv_cdf((i + 0.5) / 4096) for i in range(4096)], dtype=np.float32)


def _even(count: int, position: int, offset: float) -> npt.NDArray[np.float64]:
    """In [0, 1); operands differ by their `position`."""
    steps = np.arange(1, count + 1, dtype=np.float64) * _STEPS[position % len(_STEPS)]
    return np.mod(offset + steps, 1.0, dtype=np.float64)


def _normal_of(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Normally distributed, from numbers in [0, 1)."""
    return np.asarray(_QUANTILES[(values * len(_QUANTILES)).astype(np.int64)])


def _index_limit(nest: Nest) -> int:
    """What indices and labels of a nest must stay below."""
    if "classes" in nest.constants:
        return int(nest.constants["classes"])
    return next((axis.extent for axis in nest.axes if axis.name in ("r", "c")), 2)


def _byte_elements(nest: Nest, operand: Operand, values: npt.NDArray[np.float64]) -> Array:
    """Behind a pointer to bytes: a constant says the element type."""
    if operand.name == "overwrite":
        return np.zeros(len(values), np.uint8)
    key = {"cast": {"x": "from_type", "y": "to_type"}, "pow_mixed": {"b": "alpha"}}.get(nest.kernel, {})
    code = nest.constants.get(key.get(operand.name, "type"))
    dtype = DType.BOOL if code is None else _TYPES[int(code)]
    if dtype is DType.F32:
        return _normal_of(values)
    if dtype is DType.BOOL:
        return (values * 2).astype(np.uint8)
    if nest.kernel == "pow_mixed":
        return (values * 6 + 2 if operand.name == "a" else 0 * values + _EXPONENT).astype(dtype.numpy)
    return (values * 7 + 1).astype(dtype.numpy)


def contents(nest: Nest, c_types: list[str], tile: Tile, seed: int) -> dict[str, Array]:
    """The elements of every operand's box."""
    result: dict[str, Array] = {}
    for position, (operand, c_type) in enumerate(zip(nest.operands, c_types, strict=True)):
        if operand.value is None:
            continue
        count = int(np.prod([r.size for r in operand_box(operand, tile)], dtype=np.int64))
        values = _even(count, position, (seed * 0.618034) % 1.0)
        plain = c_type.replace("const", "").replace("*", "").strip()
        if plain == "float":
            is_positive = nest.kernel in _POSITIVE_INPUTS or operand.name in _POSITIVE_OPERANDS
            result[operand.name] = np.abs(_normal_of(values)) if is_positive else _normal_of(values)
        elif plain in ("int64_t", "int32_t"):
            result[operand.name] = (values * _index_limit(nest)).astype(_NUMPY_TYPES[plain])
        elif plain == "uint8_t":
            result[operand.name] = _byte_elements(nest, operand, values)
        else:
            result[operand.name] = (values * 2).astype(_NUMPY_TYPES[plain])
    return result
