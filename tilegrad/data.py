"""Training data: samples of an `.npz` file, or an endless synthetic stream that a board can make itself.

Synthetic samples are half noise and half a pattern fixed by the label, so that samples never seen before are learnable
and a falling loss means something. `runtime/tg_random.h` makes the same bits.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np
import numpy.typing as npt

from tilegrad import random
from tilegrad.errors import UserError
from tilegrad.ir.types import DType
from tilegrad.losses import LOSSES, Targets
from tilegrad.npz import NoArchiveError, ObjectsError, SingleArrayError, read_npz
from tilegrad.random import Purpose

Array = npt.NDArray[Any]

_STAGE = "data"
# What NumPy and zipfile raise over a damaged file; a test damages many.
_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    MemoryError,
    OverflowError,
    SyntaxError,
    TypeError,
    KeyError,
    IndexError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
_NAMES_TOLD = 8
_FORMATS = {
    ".csv": "a CSV file",
    ".tsv": "a table of text",
    ".txt": "a text file",
    ".json": "a JSON file",
    ".h5": "an HDF5 file",
    ".hdf5": "an HDF5 file",
    ".parquet": "a Parquet file",
    ".pkl": "a pickle",
    ".pickle": "a pickle",
    ".mat": "a MATLAB file",
}
# How many patterns there are where the model has no classes; part of the bit contract.
PATTERNS_WITHOUT_CLASSES = 10


@dataclass(frozen=True)
class SampleSpec:
    """What one sample of a model and its loss looks like; shapes are without the batch dimension.

    `target_shape` is the shape of one sample's labels where the loss takes classes (`()` for plain classification),
    and of its targets elsewhere. `vocabulary` bounds integer inputs, where the model tells.
    """

    input_shape: tuple[int, ...]
    loss: str
    target_shape: tuple[int, ...] = ()
    classes: int | None = None
    input_dtype: DType = DType.F32
    vocabulary: int | None = None

    @property
    def has_labels(self) -> bool:
        return LOSSES[self.loss].has_classes

    @property
    def is_reconstruction(self) -> bool:
        """Whether the input itself serves as the target."""
        return LOSSES[self.loss].reconstructs and self.input_dtype.is_float and self.target_shape == self.input_shape


class Samples(Protocol):
    """Numbered samples, without end."""

    def take(self, numbers: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        """Inputs and targets of the samples with these numbers, along a new first axis."""


@dataclass(frozen=True)
class Batches:
    """Samples in order, cut into mini-batches."""

    samples: Samples
    batch_size: int

    def batch(self, index: int) -> tuple[Array, Array]:
        """Mini-batch `index`: samples `index * batch_size` and following."""
        return self.samples.take(np.arange(index * self.batch_size, (index + 1) * self.batch_size, dtype=np.int64))

    def first(self, count: int) -> MiniBatches:
        return MiniBatches(self, range(count))


@dataclass(frozen=True)
class MiniBatches(Sequence[tuple[Array, Array]]):
    """Some mini-batches in order, each made when it is asked for: any number of them takes the memory of one."""

    batches: Batches
    numbers: range

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> tuple[Array, Array]: ...

    @overload
    def __getitem__(self, index: slice) -> MiniBatches: ...

    def __getitem__(self, index: int | slice) -> tuple[Array, Array] | MiniBatches:
        if isinstance(index, slice):
            return MiniBatches(self.batches, self.numbers[index])
        return self.batches.batch(self.numbers[index])


@dataclass(frozen=True, eq=False)
class ToldBatches(Sequence[tuple[Array, Array]]):
    """Mini-batches that tell `taking` of each that is asked for, by its place and their number: how far somebody is who
    goes through them and knows nothing of progress."""

    batches: Sequence[tuple[Array, Array]]
    taking: Callable[[int, int], None]

    def __len__(self) -> int:
        return len(self.batches)

    @overload
    def __getitem__(self, index: int) -> tuple[Array, Array]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[Array, Array]]: ...

    def __getitem__(self, index: int | slice) -> tuple[Array, Array] | Sequence[tuple[Array, Array]]:
        if isinstance(index, int) and 0 <= index < len(self.batches):
            self.taking(index + 1, len(self.batches))
        return self.batches[index]


@dataclass(frozen=True, eq=False)
class StoredSamples:
    """Samples of a file; numbers past the end wrap round."""

    x: Array
    y: Array

    def take(self, numbers: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        wrapped = numbers % len(self.x)
        return self.x[wrapped], self.y[wrapped]


@dataclass(frozen=True)
class SyntheticSamples:
    """Samples from the counter-based generator, a function of the seed and the sample's number alone."""

    seed: int
    spec: SampleSpec

    def take(self, numbers: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        x = self._inputs(numbers)
        return x, (x if self.spec.is_reconstruction else self._targets(numbers))

    def _draw(self, purpose: Purpose, streams: npt.NDArray[np.int64], shape: tuple[int, ...]) -> random.U32Array:
        drawn = random.words(self.seed, purpose, streams, int(np.prod(shape, dtype=np.int64)))
        return drawn.reshape(len(streams), *shape)

    def _inputs(self, numbers: npt.NDArray[np.int64]) -> Array:
        shape, dtype = self.spec.input_shape, self.spec.input_dtype
        noise = self._draw(Purpose.DATA, numbers, shape)
        if not dtype.is_float:
            return random.to_bounded(noise, self.spec.vocabulary or 2).astype(dtype.numpy)
        pattern = self._draw(Purpose.PATTERN, self._labels(numbers, ()), shape)
        half = np.float32(0.5)
        return half * random.to_signed(noise) + half * random.to_signed(pattern)

    def _labels(self, numbers: npt.NDArray[np.int64], shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
        drawn = self._draw(Purpose.LABELS, numbers, shape)
        return random.to_bounded(drawn, self.spec.classes or PATTERNS_WITHOUT_CLASSES)

    def _targets(self, numbers: npt.NDArray[np.int64]) -> Array:
        if self.spec.has_labels:
            return self._labels(numbers, self.spec.target_shape)
        drawn = self._draw(Purpose.TARGETS, numbers, self.spec.target_shape)
        if LOSSES[self.spec.loss].targets is Targets.BINARY:
            return random.to_bounded(drawn, 2).astype(np.float32)
        return random.to_signed(drawn)


def synthetic(seed: int, spec: SampleSpec, batch_size: int = 1) -> Batches:
    """An endless stream of samples from the seed."""
    return Batches(SyntheticSamples(random.check_seed(seed), spec), batch_size)


def load_npz(path: str | Path, spec: SampleSpec, batch_size: int = 1) -> Batches:
    """The samples of `--data F.npz`: arrays `x` and `y`, checked against what the model takes."""
    arrays = _read_arrays(Path(path))
    x = _checked_inputs(path, arrays, spec)
    y = _checked_targets(path, arrays, spec, x)
    return Batches(StoredSamples(x, y), batch_size)


def load_inputs(path: str | Path, spec: SampleSpec, batch_size: int = 1) -> Batches:
    """The samples of `--data F.npz` for inference: array `x` alone, whatever else the file holds."""
    x = _checked_inputs(path, _read_arrays(Path(path)), spec)
    return Batches(StoredSamples(x, x), batch_size)


def _read_arrays(path: Path) -> dict[str, Array]:
    try:
        return read_npz(path, ("x", "y"), stage=_STAGE)
    except SingleArrayError as error:
        raise UserError(
            f"'{path}' is a single array, not an .npz file",
            stage=_STAGE,
            hint="write it with numpy.savez(file, x=..., y=...)",
        ) from error
    except NoArchiveError as error:
        raise UserError(
            f"cannot read '{path}' as an .npz file",
            stage=_STAGE,
            expected="NumPy's .npz with arrays x and y: the only format that --data takes",
            got=_FORMATS.get(path.suffix.lower(), "a file of another format"),
            hint="write it with numpy.savez(file, x=..., y=...)",
        ) from error
    except ObjectsError as error:
        raise UserError(
            f"array '{error.name}' of '{path}' has the wrong element type",
            stage=_STAGE,
            expected="numbers",
            got="Python objects",
            hint="rows of different lengths make such an array",
        ) from error
    except FileNotFoundError as error:
        raise UserError(
            f"no data file '{path}'", stage=_STAGE, hint="--data takes an .npz file with arrays x and y"
        ) from error
    except _UNREADABLE as error:
        raise UserError(
            f"cannot read '{path}' as an .npz file",
            stage=_STAGE,
            got=str(error).splitlines()[0] if str(error) else type(error).__name__,
            hint="write it with numpy.savez(file, x=..., y=...)",
        ) from error


def _arrays_there(arrays: Mapping[str, Array]) -> str:
    """Some of the names: there may be thousands."""
    names = [f"'{name}'" for name in arrays]
    more = f" and {len(names) - _NAMES_TOLD} more" if len(names) > _NAMES_TOLD else ""
    return ", ".join(names[:_NAMES_TOLD]) + more if names else "no arrays at all"


def _checked_inputs(path: str | Path, arrays: Mapping[str, Array], spec: SampleSpec) -> Array:
    x = arrays.get("x")
    if x is None:
        raise UserError(
            f"'{path}' has no array 'x'",
            stage=_STAGE,
            expected="arrays x and y",
            got=_arrays_there(arrays),
            hint="x holds the samples along its first axis",
        )
    _check_shape(path, "x", x, spec.input_shape)
    if len(x) == 0:
        raise UserError(f"'{path}' holds no samples", stage=_STAGE, expected="at least one", got=f"x {_shape(x.shape)}")
    if spec.input_dtype.is_float:
        return _as_finite_float(path, "x", x)
    _check_integer(path, "x", x, "integers, as the model's input is")
    if spec.vocabulary is not None:
        _check_range(path, "x", x, spec.vocabulary, "token")
    return x.astype(spec.input_dtype.numpy)


def _checked_targets(path: str | Path, arrays: Mapping[str, Array], spec: SampleSpec, x: Array) -> Array:
    y = arrays.get("y")
    if y is None:
        if spec.is_reconstruction:
            return x
        raise UserError(
            f"'{path}' has no array 'y'",
            stage=_STAGE,
            expected=f"targets for the loss {spec.loss}, {_shape((len(x), *spec.target_shape))}",
            hint="y may be left out only where the target is the input itself",
        )
    _check_shape(path, "y", y, spec.target_shape)
    if len(y) != len(x):
        raise UserError(
            f"'{path}' has a different number of samples in x and y",
            stage=_STAGE,
            expected=f"{len(x)} in y, as in x",
            got=str(len(y)),
        )
    if not spec.has_labels:
        return _as_finite_float(path, "y", y)
    _check_integer(path, "y", y, "integers, the class of each sample")
    if spec.classes is not None:
        _check_range(path, "y", y, spec.classes, "label")
    return y.astype(np.int64)


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _check_shape(path: str | Path, name: str, array: Array, sample_shape: tuple[int, ...]) -> None:
    if array.ndim == 0 or array.shape[1:] != sample_shape:
        raise UserError(
            f"array '{name}' of '{path}' has the wrong shape",
            stage=_STAGE,
            expected="[" + ",".join(["samples", *map(str, sample_shape)]) + "]",
            got=_shape(array.shape),
        )


def _check_integer(path: str | Path, name: str, array: Array, expected: str) -> None:
    if array.dtype.kind not in "iub":
        raise UserError(
            f"array '{name}' of '{path}' has the wrong element type",
            stage=_STAGE,
            expected=expected,
            got=str(array.dtype),
        )


def _check_range(path: str | Path, name: str, array: Array, bound: int, noun: str) -> None:
    wrong = np.argwhere((array < 0) | (array >= bound))
    if len(wrong):
        position = tuple(int(axis) for axis in wrong[0])
        raise UserError(
            f"{noun} out of range in array '{name}' of '{path}'",
            stage=_STAGE,
            expected=f"0 to {bound - 1}",
            got=f"{array[position]} at {name}{_shape(position)}",
        )


def _as_finite_float(path: str | Path, name: str, array: Array) -> Array:
    if array.dtype.kind not in "fiub":
        raise UserError(
            f"array '{name}' of '{path}' has the wrong element type",
            stage=_STAGE,
            expected="real numbers",
            got=str(array.dtype),
        )
    with np.errstate(over="ignore"):
        converted = array.astype(np.float32)
    wrong = np.argwhere(~np.isfinite(converted))
    if len(wrong):
        position = tuple(int(axis) for axis in wrong[0])
        raise UserError(
            f"array '{name}' of '{path}' has a value that is not finite",
            stage=_STAGE,
            expected="finite float32 numbers",
            got=f"{array[position]} at {name}{_shape(position)}",
        )
    return converted
