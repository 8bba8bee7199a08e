"""Training data: samples of an `.npz` file, or an endless synthetic stream that a board can make itself.

Synthetic samples are half noise and half a pattern fixed by the label, so that samples never seen before are learnable
and a falling loss means something. `runtime/tg_random.h` makes the same bits.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, overload

import numpy as np
import numpy.typing as npt

from tilegrad import random
from tilegrad.errors import UserError
from tilegrad.ir.types import DType
from tilegrad.losses import Targets, Term, parse
from tilegrad.npz import NoArchiveError, ObjectsError, SingleArrayError, read_npz
from tilegrad.random import Purpose

Array = npt.NDArray[Any]
Batch = tuple[Array, ...]
"""The arrays of a mini-batch, in the order of the step's inputs."""

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
MADE_AT_A_TIME = 8
"""Mini-batches, where several are asked for."""


class Drawn(Enum):
    """What a synthetic tensor is made of."""

    NOISE = "noise"  # and a pattern of the label; integers below a bound where the tensor holds them
    LABELS = "labels"
    SIGNED = "signed"
    BINARY = "binary"
    INPUT = "input"  # the first input again


@dataclass(frozen=True)
class PortSpec:
    """One tensor of a mini-batch. `shape` is one sample's, or all of it where there is no batch dimension.

    `bound` is above all integers in it, where the model tells; `ignored` is allowed nevertheless. `names` are those of
    its array in a file, the first that is there. `ordinal` tells streams of one purpose apart.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: DType = DType.F32
    drawn: Drawn = Drawn.NOISE
    bound: int | None = None
    ignored: int | None = None
    is_batched: bool = True
    ordinal: int = 0

    @property
    def is_target(self) -> bool:
        return self.drawn is not Drawn.NOISE


@dataclass(frozen=True)
class SampleSpec:
    """What one sample of a model and its loss looks like; shapes are without the batch dimension.

    `target_shape` is the shape of one sample's labels where the loss takes classes (`()` for plain classification),
    and of its targets elsewhere. `vocabulary` bounds integer inputs, where the model tells. `given` are the tensors of
    a mini-batch in order where they are not one input and one target; `named` are these two by more names.
    """

    input_shape: tuple[int, ...]
    loss: str
    target_shape: tuple[int, ...] = ()
    classes: int | None = None
    input_dtype: DType = DType.F32
    vocabulary: int | None = None
    given: tuple[PortSpec, ...] = ()
    named: tuple[PortSpec, ...] = ()

    @property
    def has_labels(self) -> bool:
        return parse(self.loss).has_classes

    @property
    def is_reconstruction(self) -> bool:
        """Whether the input itself serves as the target."""
        targets = parse(self.loss).targets
        reconstructs = all(term.kind is not None and term.kind.reconstructs for term in targets)
        return reconstructs and self.input_dtype.is_float and self.target_shape == self.input_shape

    @property
    def ports(self) -> tuple[PortSpec, ...]:
        """Every tensor of a mini-batch, in order."""
        if self.given or self.named:
            return self.given or self.named
        x = PortSpec(("x",), self.input_shape, self.input_dtype, bound=self.vocabulary)
        return x, PortSpec(("y",), self.target_shape, *target_kind(parse(self.loss).targets[0], self))

    @property
    def label_count(self) -> int:
        """How many patterns there are."""
        if not self.given:
            return self.classes or PATTERNS_WITHOUT_CLASSES
        labels = (port for port in self.given if port.drawn is Drawn.LABELS and not port.ordinal)
        return next((port.bound for port in labels if port.bound), PATTERNS_WITHOUT_CLASSES)


def target_kind(term: Term, spec: SampleSpec) -> tuple[DType, Drawn, int | None, int | None]:
    """Of a target: element type, how it is drawn, bound, what is ignored."""
    if term.has_classes:
        return DType.I64, Drawn.LABELS, spec.classes, term.options.get("ignore")
    if spec.is_reconstruction:
        return DType.F32, Drawn.INPUT, None, None
    return DType.F32, Drawn.BINARY if term.kind and term.kind.targets is Targets.BINARY else Drawn.SIGNED, None, None


class Samples(Protocol):
    """Numbered samples, without end."""

    def take(self, numbers: npt.NDArray[np.int64]) -> Batch:
        """Inputs and targets of the samples with these numbers, along a new first axis where they have a batch."""

    @property
    def batched(self) -> tuple[bool, ...]:
        """Of each array that `take` gives, whether it has that axis."""


@dataclass(frozen=True)
class Batches:
    """Samples in order, cut into mini-batches."""

    samples: Samples
    batch_size: int

    def batch(self, index: int) -> Batch:
        """Mini-batch `index`: samples `index * batch_size` and following."""
        return self.samples.take(np.arange(index * self.batch_size, (index + 1) * self.batch_size, dtype=np.int64))

    def run(self, numbers: range) -> Iterator[Batch]:
        """Mini-batches that follow each other. Several are made at a time, which takes less than one after another."""
        size = self.batch_size
        for start in range(0, len(numbers), MADE_AT_A_TIME):
            some = numbers[start : start + MADE_AT_A_TIME]
            made = self.samples.take(np.arange(some.start * size, some.stop * size, dtype=np.int64))
            for i in range(len(some)):
                yield tuple(
                    array[i * size : (i + 1) * size] if along else array
                    for array, along in zip(made, self.samples.batched, strict=True)
                )

    def first(self, count: int) -> MiniBatches:
        return MiniBatches(self, range(count))


@dataclass(frozen=True)
class MiniBatches(Sequence[Batch]):
    """Some mini-batches in order, each made when it is asked for: any number of them takes the memory of a few."""

    batches: Batches | GivenBatches
    numbers: range

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Batch]:
        if isinstance(self.batches, Batches) and self.numbers.step == 1:
            return self.batches.run(self.numbers)
        return map(self.batches.batch, self.numbers)

    @overload
    def __getitem__(self, index: int) -> Batch: ...

    @overload
    def __getitem__(self, index: slice) -> MiniBatches: ...

    def __getitem__(self, index: int | slice) -> Batch | MiniBatches:
        if isinstance(index, slice):
            return MiniBatches(self.batches, self.numbers[index])
        return self.batches.batch(self.numbers[index])


@dataclass(frozen=True, eq=False)
class ToldBatches(Sequence[Batch]):
    """Mini-batches that tell `taking` of each that is asked for, by its place and their number: how far somebody is who
    goes through them and knows nothing of progress."""

    batches: Sequence[Batch]
    taking: Callable[[int, int], None]

    def __len__(self) -> int:
        return len(self.batches)

    @overload
    def __getitem__(self, index: int) -> Batch: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Batch]: ...

    def __getitem__(self, index: int | slice) -> Batch | Sequence[Batch]:
        if isinstance(index, int) and 0 <= index < len(self.batches):
            self.taking(index + 1, len(self.batches))
        return self.batches[index]


@dataclass(frozen=True, eq=False)
class StoredSamples:
    """Samples of a file; numbers past the end wrap round. An array without a batch dimension is the same for all."""

    arrays: Batch
    is_batched: tuple[bool, ...] = ()

    @property
    def count(self) -> int:
        return next((len(array) for array, along in zip(self.arrays, self.batched, strict=True) if along), 1)

    @property
    def batched(self) -> tuple[bool, ...]:
        return self.is_batched or (True,) * len(self.arrays)

    def chosen(self, numbers: npt.NDArray[np.int64]) -> StoredSamples:
        """Only these samples."""
        return StoredSamples(self.take(numbers), self.is_batched)

    def take(self, numbers: npt.NDArray[np.int64]) -> Batch:
        batched = self.batched
        wrapped = numbers % self.count
        return tuple(array[wrapped] if along else array for array, along in zip(self.arrays, batched, strict=True))


@dataclass(frozen=True, eq=False)
class GivenBatches:
    """Mini-batches as they came, in order, again and again."""

    made: tuple[Batch, ...]

    def batch(self, index: int) -> Batch:
        return self.made[index % len(self.made)]

    def first(self, count: int) -> MiniBatches:
        return MiniBatches(self, range(count))


@dataclass(frozen=True)
class SyntheticSamples:
    """Samples from the counter-based generator, a function of the seed and the sample's number alone."""

    seed: int
    spec: SampleSpec

    @property
    def batched(self) -> tuple[bool, ...]:
        return tuple(port.is_batched for port in self.spec.ports)

    def take(self, numbers: npt.NDArray[np.int64]) -> Batch:
        made: list[Array] = []
        for port in self.spec.ports:
            drawn = numbers if port.is_batched else np.zeros(1, np.int64)
            array = made[0] if port.drawn is Drawn.INPUT else self._make(port, drawn)
            made.append(array if port.is_batched else array[0])
        return tuple(made)

    def _draw(
        self, port: PortSpec, purpose: Purpose, streams: npt.NDArray[np.int64], shape: tuple[int, ...]
    ) -> random.U32Array:
        size = int(np.prod(shape, dtype=np.int64))
        drawn = random.words(self.seed, random.family(purpose, port.ordinal), streams, size)
        return drawn.reshape(len(streams), *shape)

    def _make(self, port: PortSpec, numbers: npt.NDArray[np.int64]) -> Array:
        if port.drawn is Drawn.LABELS:
            return self._labels(port, numbers, port.shape, port.bound).astype(port.dtype.numpy)
        if port.drawn is Drawn.NOISE:
            return self._input(port, numbers)
        drawn = self._draw(port, Purpose.TARGETS, numbers, port.shape)
        if port.drawn is Drawn.BINARY:
            return random.to_bounded(drawn, 2).astype(np.float32)
        return random.to_signed(drawn)

    def _input(self, port: PortSpec, numbers: npt.NDArray[np.int64]) -> Array:
        noise = self._draw(port, Purpose.DATA, numbers, port.shape)
        if not port.dtype.is_float:
            return random.to_bounded(noise, port.bound or 2).astype(port.dtype.numpy)
        labels = self._labels(replace(port, ordinal=0), numbers, (), self.spec.label_count)
        pattern = self._draw(port, Purpose.PATTERN, labels, port.shape)
        half = np.float32(0.5)
        return half * random.to_signed(noise) + half * random.to_signed(pattern)

    def _labels(
        self, port: PortSpec, numbers: npt.NDArray[np.int64], shape: tuple[int, ...], bound: int | None
    ) -> npt.NDArray[np.int64]:
        drawn = self._draw(port, Purpose.LABELS, numbers, shape)
        return random.to_bounded(drawn, bound or PATTERNS_WITHOUT_CLASSES)


def synthetic(seed: int, spec: SampleSpec, batch_size: int = 1) -> Batches:
    """An endless stream of samples from the seed."""
    return Batches(SyntheticSamples(random.check_seed(seed), spec), batch_size)


def load_npz(path: str | Path, spec: SampleSpec, batch_size: int = 1) -> Batches:
    """The samples of `--data F.npz`: an array for each input and target, checked against what the model takes."""
    return _stored(path, spec, spec.ports, batch_size)


def load_inputs(path: str | Path, spec: SampleSpec, batch_size: int = 1) -> Batches:
    """The samples of `--data F.npz` for inference: the inputs' arrays alone, whatever else the file holds."""
    inputs = spec.ports[:1] if not spec.given else spec.ports
    return _stored(path, spec, inputs, batch_size)


def _stored(path: str | Path, spec: SampleSpec, ports: Sequence[PortSpec], batch_size: int) -> Batches:
    arrays = _read_arrays(Path(path), tuple(name for port in ports for name in port.names))
    found: list[Array] = []
    for port in ports:
        name = next((name for name in port.names if name in arrays), None)
        if name is None and port.drawn is Drawn.INPUT:
            found.append(found[0])
            continue
        if name is None:
            raise _missing(path, arrays, spec, port, ports, found)
        found.append(_checked(path, name, arrays[name], port))
        _check_count(path, ports, found, name)
    return Batches(StoredSamples(tuple(found), tuple(port.is_batched for port in ports)), batch_size)


def _missing(
    path: str | Path,
    arrays: Mapping[str, Array],
    spec: SampleSpec,
    port: PortSpec,
    ports: Sequence[PortSpec],
    found: Sequence[Array],
) -> UserError:
    if spec.given:
        wanted = ", ".join(f"'{each.names[0]}' {_port_shape(each)}" for each in ports)
        return UserError(
            f"'{path}' has no array for the input '{port.names[0]}'",
            stage=_STAGE,
            expected=f"{wanted}",
            got=_arrays_there(arrays),
            hint="arrays are matched with inputs by name; samples lie along the first axis",
        )
    if not found:
        return UserError(
            f"'{path}' has no array 'x'",
            stage=_STAGE,
            expected=" and ".join(f"{each.names[0]} {_port_shape(each)}" for each in ports),
            got=_arrays_there(arrays),
            hint="x holds the samples along its first axis",
        )
    return UserError(
        f"'{path}' has no array 'y'",
        stage=_STAGE,
        expected=f"targets for the loss {spec.loss}, {_shape((len(found[0]), *port.shape))}",
        hint="y may be left out only where the target is the input itself",
    )


def _port_shape(port: PortSpec) -> str:
    return _wanted_shape(port.shape) if port.is_batched else _shape(port.shape)


def _check_count(path: str | Path, ports: Sequence[PortSpec], found: Sequence[Array], name: str) -> None:
    """Batch dimensions are bound together: every array has the samples of the first."""
    batched = [array for array, port in zip(found, ports, strict=False) if port.is_batched]
    if not ports[len(found) - 1].is_batched:
        return
    if len(found[-1]) == 0:
        raise UserError(
            f"'{path}' holds no samples", stage=_STAGE, expected="at least one", got=f"{name} {_shape(found[-1].shape)}"
        )
    if len(found[-1]) != len(batched[0]):
        first = next(port for port in ports if port.is_batched).names[0]
        raise UserError(
            f"'{path}' has a different number of samples in {first} and {name}",
            stage=_STAGE,
            expected=f"{len(batched[0])} in {name}, as in {first}",
            got=str(len(found[-1])),
        )


def _checked(path: str | Path, name: str, array: Array, port: PortSpec) -> Array:
    _check_shape(path, name, array, port)
    if port.dtype.is_float:
        return _as_finite_float(path, name, array)
    if port.dtype is DType.BOOL and array.dtype.kind == "b":
        return array
    what = "integers, the class of each sample" if port.drawn is Drawn.LABELS else "integers, as the model's input is"
    _check_integer(path, name, array, what)
    if port.bound is not None:
        _check_range(path, name, array, port.bound, "label" if port.drawn is Drawn.LABELS else "token", port.ignored)
    return array.astype(port.dtype.numpy)


def count_samples(path: str | Path) -> int:
    """How many samples a file seems to hold; what is wrong with it is said when it is loaded."""
    try:
        names = tuple(_read_arrays(Path(path), ()))
        arrays = _read_arrays(Path(path), names)
    except UserError:
        return 1
    return max((len(array) for array in arrays.values() if array.ndim), default=1)


def _read_arrays(path: Path, names: tuple[str, ...]) -> dict[str, Array]:
    if path.is_dir():
        return _read_folder(path, names)
    try:
        return read_npz(path, names, stage=_STAGE)
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


def _read_folder(folder: Path, names: tuple[str, ...]) -> dict[str, Array]:
    """One array a file, NAME.npy; or several .npz files in the order of their names, joined along the samples."""
    single = {path.stem: path for path in sorted(folder.glob("*.npy"))}
    parts = sorted(folder.glob("*.npz"))
    if bool(single) == bool(parts):
        raise UserError(
            f"the folder '{folder}' cannot be used as data",
            stage=_STAGE,
            expected="arrays as NAME.npy, or .npz files that are joined in the order of their names",
            got="both" if single else "neither",
        )
    if single:
        wanted = {name: path for name, path in single.items() if name in names} or single
        return {name: _read_single(path) for name, path in wanted.items()}
    read = [_read_arrays(path, names) for path in parts]
    for path, arrays in zip(parts, read, strict=True):
        if set(arrays) != set(read[0]):
            raise UserError(
                f"'{path}' has other arrays than '{parts[0]}'",
                stage=_STAGE,
                expected=_arrays_there(read[0]),
                got=_arrays_there(arrays),
            )
        for name, array in arrays.items():
            if array.ndim == 0 or array.shape[1:] != read[0][name].shape[1:]:
                raise UserError(
                    f"array '{name}' of '{path}' has another shape than in '{parts[0]}'",
                    stage=_STAGE,
                    expected=_wanted_shape(read[0][name].shape[1:]),
                    got=_shape(array.shape),
                )
    return {name: np.concatenate([arrays[name] for arrays in read]) for name in read[0]}


def _read_single(path: Path) -> Array:
    try:
        found: Array = np.load(path, allow_pickle=False)
    except _UNREADABLE as error:
        raise UserError(
            f"cannot read '{path}' as an array",
            stage=_STAGE,
            got=str(error).splitlines()[0] if str(error) else type(error).__name__,
            hint="write it with numpy.save(file, array)",
        ) from error
    return found


def _arrays_there(arrays: Mapping[str, Array]) -> str:
    """Some of the names: there may be thousands."""
    names = [f"'{name}'" for name in arrays]
    more = f" and {len(names) - _NAMES_TOLD} more" if len(names) > _NAMES_TOLD else ""
    return ", ".join(names[:_NAMES_TOLD]) + more if names else "no arrays at all"


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _wanted_shape(sample_shape: tuple[int, ...]) -> str:
    return "[" + ",".join(["samples", *map(str, sample_shape)]) + "]"


def _check_shape(path: str | Path, name: str, array: Array, port: PortSpec) -> None:
    fits = array.ndim > 0 and array.shape[1:] == port.shape if port.is_batched else array.shape == port.shape
    if not fits:
        raise UserError(
            f"array '{name}' of '{path}' has the wrong shape",
            stage=_STAGE,
            expected=_port_shape(port),
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


def _check_range(path: str | Path, name: str, array: Array, bound: int, noun: str, ignored: int | None = None) -> None:
    outside = (array < 0) | (array >= bound)
    wrong = np.argwhere(outside if ignored is None else outside & (array != ignored))
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
