"""What operands hold while kernels are counted.

Branches depend on data, so content is even (calibration/sequence.py): every stretch has close to the same share of
values on either side of any threshold. Where a count depends on it, content is fixed, and the loops' descriptions know
it: so what is predicted is the count for this content, and another one may differ.

- Elementwise kernels that branch begin at the start of their operands' sequences, whatever the tile.
- Every output of a reduction that compares meets the same values in the same order.
- Of two operands that are compared, one that is repeated along the last axis lies in the middle.
- Indices depend on their place along j alone, and go evenly over the rows.
- A pooled image is the sum of a row and a column, and its maxima are its own.
- Integer powers are fifth ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tilegrad.calibration.sequence import COLUMNS, ROWS, even, indices, normal_of
from tilegrad.costs.loops import branching
from tilegrad.ir.nest import Nest, Operand, Tile, operand_box

Array = npt.NDArray[np.generic]
# By the codes of runtime/tg_element.h.
_TYPE_BYTES = (4, 1, 2, 4, 8, 1, 2, 4, 8, 1)
_BOOL_CODE = 9
# Kernels that keep one of two values, step by step.
_ALIKE = tuple(f"reduce_{name}" for name in "l1 max min max_i32 min_i32 max_bool min_bool".split())
_MOST = 1 << 20  # of integers that are no indices
_EXPONENT = 5
_POSITIVE_INPUTS = ("log_map", "sqrt", "sqrt_grad", "pow_broadcast", "pow_grad", "pow_exponent_grad", "pow_scalar")
_POSITIVE_OPERANDS = ("spread",)  # a variance, or an inverse deviation
_NUMPY_TYPES: Mapping[str, npt.DTypeLike] = {
    "float": np.float32, "int32_t": np.int32, "uint32_t": np.uint32, "int64_t": np.int64, "int8_t": np.int8,
    "tg_b1": np.uint8, "tg_b2": np.uint16, "tg_b4": np.uint32, "tg_b8": np.uint64,
}  # fmt: skip


def _index_limit(nest: Nest) -> int:
    """What indices and labels of a nest must stay below."""
    if "classes" in nest.constants:
        return int(nest.constants["classes"])
    return next((axis.extent for axis in nest.axes if axis.name in ("r", "c")), 2)


def _bytes_type(nest: Nest, operand: Operand) -> int:
    """The code of the element type behind a pointer to bytes."""
    key = {"cast": {"x": "from_type", "y": "to_type"}, "pow_mixed": {"b": "alpha"}}.get(nest.kernel, {})
    return int(nest.constants.get(key.get(operand.name, "type"), _BOOL_CODE))


def _byte_elements(nest: Nest, operand: Operand, values: npt.NDArray[np.float64]) -> Array:
    code = _bytes_type(nest, operand)
    if operand.name == "overwrite":
        return np.zeros(len(values), np.uint8)
    if code == 0:
        return normal_of(values)
    if code == _BOOL_CODE:
        return (values * 2).astype(np.uint8)
    if nest.kernel == "pow_mixed":  # of bases that are not one; how often a power multiplies depends on its exponent
        return (values * 6 + 2 if operand.name == "a" else 0 * values + _EXPONENT).astype(f"<i{_TYPE_BYTES[code]}")
    return (values * 7 + 1).astype(f"<i{_TYPE_BYTES[code]}")


def _pooled(nest: Nest, tile: Tile) -> dict[str, Array]:
    """For the gradient of MaxPool: an image whose every plane is the sum of a row and a column, and its maxima. These
    lie where the row's and the column's maxima cross."""
    by_name = {operand.name: operand for operand in nest.operands}
    dy_index = by_name["dy"].index
    assert dy_index is not None
    parts: dict[str, list[npt.NDArray[np.float32]]] = {"x": [], "y": []}
    boxes = {name: operand_box(by_name[name], tile) for name in parts}
    for d, (suffix, position) in enumerate(zip("hw", (ROWS, COLUMNS), strict=True), start=1):
        values = even(by_name["x"].shape[d], position).astype(np.float32)
        stride, dilation = int(nest.constants[f"stride_{suffix}"]), int(nest.constants[f"dilation_{suffix}"])
        parts["x"].append(values[boxes["x"][d].start : boxes["x"][d].stop])
        maxima = []
        for window in range(boxes["y"][d].start, boxes["y"][d].stop):
            begin = window * stride - dy_index[d].offset
            places = [begin + k * dilation for k in range(nest.axis(f"k{suffix}").extent)]
            maxima.append(max(values[place] for place in places if 0 <= place < len(values)))
        parts["y"].append(np.array(maxima, np.float32))
    return {
        name: np.broadcast_to(down[:, None] + across[None, :], [r.size for r in boxes[name]]).ravel()
        for name, (down, across) in parts.items()
    }


def _taken(nest: Nest, tile: Tile) -> npt.NDArray[np.int64]:
    """Indices that depend on their place along j alone."""
    idx = next(operand for operand in nest.operands if operand.name == "idx")
    sizes = [r.size for r in operand_box(idx, tile)]
    along_j = indices(tile["j"].size, nest.axis("r").extent)
    return np.broadcast_to(along_j if len(sizes) == 1 else along_j[:, None, None], sizes).ravel()


def _alike(operand: Operand, tile: Tile, position: int) -> npt.NDArray[np.float64]:
    """Every output of a reduction meets the same values in the same order."""
    sizes = [r.size for r in operand_box(operand, tile)]
    return np.broadcast_to(even(sizes[1], position)[:, None], sizes).ravel()


def _values(
    nest: Nest, operand: Operand, position: int, tile: Tile, count: int, offset: float
) -> npt.NDArray[np.float64]:
    """In [0, 1)."""
    if nest.kernel in branching.KERNELS:
        return even(count, position)
    if nest.kernel in _ALIKE and operand.name == "x":
        return _alike(operand, tile, position)
    is_repeated = not any(index.coefficient("d5") for index in operand.index or ())
    if nest.kernel.startswith(("maximum_", "minimum_")) and is_repeated:
        return np.full(count, 0.5)
    return even(count, position, offset)


def contents(nest: Nest, c_types: list[str], tile: Tile, seed: int) -> dict[str, Array]:
    """The elements of every operand's box."""
    result: dict[str, Array] = {}
    for position, (operand, c_type) in enumerate(zip(nest.operands, c_types, strict=True)):
        if operand.value is None:
            continue
        count = int(np.prod([r.size for r in operand_box(operand, tile)], dtype=np.int64))
        values = _values(nest, operand, position, tile, count, (seed * 0.618034) % 1.0)
        plain = c_type.replace("const", "").replace("*", "").strip()
        if plain == "float":
            floats = normal_of(values)
            is_positive = nest.kernel in _POSITIVE_INPUTS or operand.name in _POSITIVE_OPERANDS
            found: Array = np.abs(floats) if is_positive else floats
        elif plain in ("int64_t", "int32_t"):
            limit = _MOST if nest.kernel in _ALIKE else _index_limit(nest)
            found = (values * limit).astype(_NUMPY_TYPES[plain])
        elif plain == "uint8_t":
            found = _byte_elements(nest, operand, values)
        else:
            found = (values * 2).astype(_NUMPY_TYPES[plain])
        result[operand.name] = found
    if nest.kernel.startswith(("gather_grad", "gather_elements_grad")):
        result["idx"] = _taken(nest, tile).astype(result["idx"].dtype)
    if nest.kernel == "max_pool_grad":
        result |= _pooled(nest, tile)
    return result
