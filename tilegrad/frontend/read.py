"""Reads an `.onnx` file and the data files beside it. Whatever is wrong with them is the user's error."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from tilegrad.bounds import MAX_MODEL_BYTES
from tilegrad.errors import UserError
from tilegrad.files.regular import open_regular
from tilegrad.frontend.onnx_values import graph_tensors, node_tensors


def read_model(path: Path) -> onnx.ModelProto:
    """The model in `path`, its external data loaded."""
    data = _read_bytes(path)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise _not_a_model(path, "it is truncated or damaged") from error
    if not model.ir_version or not model.HasField("graph"):
        raise _not_a_model(path, "it holds no graph")
    load_external_data(model, path.parent, len(data))
    return model


def _read_bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise UserError(f"'{path}' is a folder, not an ONNX file", stage="import")
        with open_regular(path, stage="import") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes > MAX_MODEL_BYTES:
                raise _too_large(f"'{path}'", size_bytes)
            if size_bytes == 0:
                raise _not_a_model(path, "it is empty")
            return file.read(MAX_MODEL_BYTES)
    except FileNotFoundError as error:
        raise UserError(f"no file '{path}'", stage="import") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(f"cannot read '{path}'", stage="import", got=reason) from error


def load_external_data(model: onnx.ModelProto, folder: Path | None, used_bytes: int = 0) -> None:
    """Reads tensors stored in files beside the model; without a folder there must be none."""
    functions = (node_tensors(iter(function.node)) for function in model.functions)
    for tensor in chain(graph_tensors(model.graph), *functions):
        if not uses_external_data(tensor):
            continue
        if folder is None:
            raise UserError(
                f"the data of '{tensor.name}' is in another file, and a model in memory has no folder",
                stage="import",
                hint="load the model from its path, or load its data with onnx.load_external_data_for_model first",
            )
        used_bytes += _load_tensor(tensor, folder, used_bytes)


def _load_tensor(tensor: onnx.TensorProto, folder: Path, used_bytes: int) -> int:
    try:
        info = ExternalDataInfo(tensor)
        offset, length = int(info.offset or 0), int(info.length or 0)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"the external data of '{tensor.name}' has a bad offset or length", stage="import", got=str(error)
        ) from error
    path = _inside(folder, str(info.location), tensor.name)
    try:
        with open_regular(path, stage="import") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            length = length or size_bytes - offset
            if offset < 0 or length < 0 or offset + length > size_bytes:
                raise UserError(
                    f"the data file '{info.location}' is too short for '{tensor.name}'",
                    stage="import",
                    expected=f"{offset + length} bytes",
                    got=f"{size_bytes} bytes",
                )
            if used_bytes + length > MAX_MODEL_BYTES:
                raise _too_large("the model with its external data", used_bytes + length)
            file.seek(offset)
            tensor.raw_data = file.read(length)
    except FileNotFoundError as error:
        raise UserError(
            f"the data file '{info.location}' of '{tensor.name}' is missing", stage="import", expected=f"'{path}'"
        ) from error
    except OSError as error:
        raise UserError(f"cannot read '{path}'", stage="import", got=error.strerror or str(error)) from error
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]
    return length


def _inside(folder: Path, location: str, name: str) -> Path:
    """The data file, which must lie in the model's folder: a model must not make us read anything else."""
    outside = UserError(
        f"the data of '{name}' is outside the model's folder",
        stage="import",
        expected="a file beside the model",
        got=f"'{location}'",
    )
    parts = PurePosixPath(location).parts
    if not parts or PurePosixPath(location).is_absolute() or PureWindowsPath(location).is_absolute():
        raise outside
    if ".." in parts or "\\" in location or "\0" in location:
        raise outside
    path = folder / location
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError) as error:
        raise outside from error
    if not inside:
        raise outside
    return path


def _not_a_model(path: Path, reason: str) -> UserError:
    return UserError(f"'{path}' is not an ONNX model: {reason}", stage="import")


def _too_large(what: str, size_bytes: int) -> UserError:
    return UserError(
        f"{what} is too large", stage="import", expected=f"at most {MAX_MODEL_BYTES} bytes", got=f"{size_bytes} bytes"
    )
