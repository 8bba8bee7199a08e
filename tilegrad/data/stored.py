"""Samples that a user has stored: an `.npz` file or a folder of `.npy` files, checked against what the model takes."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tilegrad.data.batches import Array, Batches, Drawn, PortSpec, SampleSpec, StoredSamples
from tilegrad.errors import UserError
from tilegrad.files.npz import NoArchiveError, ObjectsError, SingleArrayError, read_npz
from tilegrad.ir.types import DType

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


def _check_range(
    path: str | Path, name: str, array: Array, bound: int, noun: str, ignored: int | None = None
) -> None:
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
