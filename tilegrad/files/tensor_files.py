"""Files of named arrays: .npz, .safetensors, and the initializers of an .onnx file. Read whole, written as bytes."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from tilegrad.errors import UserError
from tilegrad.files.arrays import npz_bytes, tensor_name
from tilegrad.files.npz import read_npz
from tilegrad.files.regular import open_regular

Arrays = dict[str, npt.NDArray[Any]]
SUFFIXES = (".safetensors", ".npz", ".onnx")
_UNREADABLE = (
    OSError, ValueError, EOFError, RuntimeError, MemoryError, OverflowError, SyntaxError, TypeError, KeyError,
    IndexError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def check_suffix(path: Path, option: str) -> None:
    """What a file is follows from its name."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"{option} does not know the format of '{path}'",
            stage="options",
            expected=" or ".join(f"F{suffix}" for suffix in SUFFIXES),
            got=path.suffix or "a name without an ending",
        )


def read_tensors(path: Path) -> Arrays:
    """All arrays of a file, by name."""
    check_suffix(path, "--weights")
    try:
        return _READERS[path.suffix.lower()](path)
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"no file '{path}'", stage="weights", hint="--save F writes one") from error
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("safetensors", "safetensors_rust", "google", "builtins"):
            raise
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: BaseException) -> UserError:
    what = str(error).strip().split("\n")[0] or type(error).__name__
    return UserError(f"cannot read '{path}' as {path.suffix.lower()[1:]}", stage="weights", got=what)


def _read_npz(path: Path) -> Arrays:
    names = tuple(read_npz(path, (), stage="weights"))
    return {tensor_name(name): array for name, array in read_npz(path, names, stage="weights").items()}


def _read_safetensors(path: Path) -> Arrays:
    from safetensors.numpy import load

    with open_regular(path, stage="weights") as file:
        return dict(load(file.read()))


def _read_onnx(path: Path) -> Arrays:
    with open_regular(path, stage="weights") as file:
        model = onnx.ModelProto.FromString(file.read())
    onnx.load_external_data_for_model(model, str(path.parent))
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


_READERS = {".npz": _read_npz, ".safetensors": _read_safetensors, ".onnx": _read_onnx}


def tensor_bytes(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """The content of an .npz or .safetensors file; the same arrays make the same bytes."""
    if path.suffix.lower() == ".npz":
        return npz_bytes(arrays)
    from safetensors.numpy import save

    return bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))
