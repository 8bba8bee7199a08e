"""What operands hold while kernels are counted.

Branches depend on data, so content is random but even: a low-discrepancy sequence, whose every stretch has close to the
same share of values on either side of any threshold. What the kernels expect of each other holds: indices are in
range, and a pooled maximum is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from tilegrad.ir.nest import Nest, Operand, Tile, operand_box

Array = npt.NDArray[np.generic]
# Multiples of these fill the unit interval evenly, and independently of each other.
_STEPS = tuple(float(np.sqrt(prime)) % 1.0 for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37))
_QUANTILES = np.array([NormalDist().inv_cdf((i + 0.5) / 4096) for i in range(4096)], dtype=np.float32)
# By the codes of runtime/tg_element.h.
_TYPE_BYTES = (4, 1, 2, 4, 8, 1, 2, 4, 8, 1)
_BOOL_CODE = 9
_POSITIVE_INPUTS = ("log_map", "sqrt", "sqrt_grad", "pow_broadcast", "pow_grad", "pow_exponent_grad", "pow_scalar")
_POSITIVE_OPERANDS = ("spread",)  # a variance, or an inverse deviation
_NUMPY_TYPES: Mapping[str, npt.DTypeLike] = {
    "float": np.float32, "int32_t": np.int32, "uint32_t": np.uint32, "int64_t": np.int64, "int8_t": np.int8,
    "tg_b1": np.uint8, "tg_b2": np.uint16, "tg_b4": np.uint32, "tg_b8": np.uint64,
}  # fmt: skip


def _even(count: int, position: int, offset: float) -> npt.NDArray[np.float64]:
    """In [0, 1)."""
    steps = np.arange(1, count + 1, dtype=np.float64) * _STEPS[position % len(_STEPS)]
    return np.mod(offset + steps, 1.0, dtype=np.float64)


def _index_limit(nest: Nest) -> int:
    """What indices and labels of a nest must stay below."""
    if "classes" in nest.constants:
        return int(nest.constants["classes"])
    return next((axis.extent for axis in nest.axes if axis.name in ("r", "c")), 2)


def _bytes_type(nest: Nest, operand: Operand) -> int:
    """The code of the element type behind a pointer to bytes."""
    key = {"cast": {"x": "from_type", "y": "to_type"}, "pow_mixed": {"b": "exponent_type"}}.get(nest.kernel, {})
    return int(nest.constants.get(key.get(operand.name, "type"), _BOOL_CODE))


def _byte_elements(nest: Nest, operand: Operand, values: npt.NDArray[np.float64]) -> Array:
    code = _bytes_type(nest, operand)
    if operand.name == "overwrite":
        return np.zeros(len(values), np.uint8)
    if code == 0:
        return np.asarray(_QUANTILES[(values * 4096).astype(np.int64)])
    if code == _BOOL_CODE:
        return (values * 2).astype(np.uint8)
    return (values * 7 + 1).astype(f"<i{_TYPE_BYTES[code]}")


def _pooled(nest: Nest, x_values: npt.NDArray[np.float32], tile: Tile) -> Array:
    """The windows' maxima, for the gradient of MaxPool: y as it must be for x."""
    by_name = {operand.name: operand for operand in nest.operands}
    x_box, y_box = (operand_box(by_name[name], tile) for name in ("x", "y"))
    x = x_values.reshape([r.size for r in x_box])
    result = np.full([r.size for r in y_box], -np.inf, dtype=np.float32)
    dy_index = by_name["dy"].index
    assert dy_index is not None
    axes = []
    for d, suffix in enumerate("hw", start=1):
        stride, dilation = int(nest.constants[f"stride_{suffix}"]), int(nest.constants[f"dilation_{suffix}"])
        axes.append((nest.axis(f"k{suffix}").extent, stride, dilation, dy_index[d].offset))
    for kh in range(axes[0][0]):
        for kw in range(axes[1][0]):
            places = []
            for d, k in enumerate((kh, kw)):
                _, stride, dilation, pad = axes[d]
                windows = np.arange(y_box[d + 1].start, y_box[d + 1].stop)
                places.append(windows * stride - pad + k * dilation - x_box[d + 1].start)
            rows, columns = places
            inside_h = (rows >= 0) & (rows < x.shape[1])
            inside_w = (columns >= 0) & (columns < x.shape[2])
            taken = x[:, np.clip(rows, 0, x.shape[1] - 1)][:, :, np.clip(columns, 0, x.shape[2] - 1)]
            mask = inside_h[None, :, None] & inside_w[None, None, :]
            result = np.where(mask, np.maximum(result, taken), result).astype(np.float32)
    return result


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
            floats = _QUANTILES[(values * 4096).astype(np.int64)]
            is_positive = nest.kernel in _POSITIVE_INPUTS or operand.name in _POSITIVE_OPERANDS
            found: Array = np.abs(floats) if is_positive else floats
        elif plain in ("int64_t", "int32_t"):
            found = (values * _index_limit(nest)).astype(_NUMPY_TYPES[plain])
        elif plain == "uint8_t":
            found = _byte_elements(nest, operand, values)
        else:
            found = (values * 2).astype(_NUMPY_TYPES[plain])
        result[operand.name] = found
    if nest.kernel == "max_pool_grad":
        # An even sequence is a lattice in two dimensions, whose maxima lie in rows.
        x = np.random.default_rng(seed).standard_normal(len(result["x"])).astype(np.float32)
        result |= {"x": x, "y": _pooled(nest, x, tile)}
    return result
