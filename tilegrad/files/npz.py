"""Reads arrays of an `.npz` file that nobody vouches for: no memory is taken that the file itself could not fill."""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tilegrad.files.regular import open_regular

Array = npt.NDArray[Any]
NPY_MAGIC = b"\x93NUMPY"
_DEFLATE_RATIO = 1032
"""What deflate can do at best."""
_SPARE_BYTES = 1024


ZIP_MAGIC = b"PK"


class SingleArrayError(ValueError):
    """The file is an .npy file: one array, without a name."""


class NoArchiveError(ValueError):
    """The file does not begin as an .npz file does."""


class ObjectsError(ValueError):
    """An array holds Python objects, not numbers."""

    def __init__(self, name: str) -> None:
        super().__init__(f"'{name}' holds Python objects, not numbers")
        self.name = name


def read_npz(path: Path, names: Collection[str], *, stage: str) -> dict[str, Array]:
    """Those of the named arrays that are there; of the others the names, with nothing in them.

    What is wrong with the file is a ValueError, an OSError or one of zipfile's errors; that it is none, a UserError.
    """
    with open_regular(path, stage=stage) as file:
        start = file.read(len(NPY_MAGIC))
        if start == NPY_MAGIC:
            raise SingleArrayError("it is a single array")
        if start and not start.startswith(ZIP_MAGIC):
            raise NoArchiveError("it is no .npz file")
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(0)
        with zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            found = {name: _read(archive, members[name], size_bytes) for name in names if name in members}
            return {**dict.fromkeys(members, np.zeros(0)), **found}


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file_bytes: int) -> Array:
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"'{info.filename}' is compressed in a way that NumPy does not write")
    ratio = 1 if info.compress_type == zipfile.ZIP_STORED else _DEFLATE_RATIO
    if info.file_size > min(info.compress_size, file_bytes) * ratio + _SPARE_BYTES:
        raise ValueError(f"'{info.filename}' claims {info.file_size} bytes, more than the file can hold")
    with archive.open(info) as member:
        return _array(member, info)  # type: ignore[arg-type]


def _array(member: BinaryIO, info: zipfile.ZipInfo) -> Array:
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(member)
    elif version == (2, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(member)
    else:
        raise ValueError(f"'{info.filename}' has version {version}, which NumPy uses for fields with names")
    if dtype.hasobject:
        raise ObjectsError(info.filename.removesuffix(".npy"))
    if any(extent < 0 for extent in shape):
        raise ValueError(f"'{info.filename}' has a negative extent")
    size_bytes = math.prod(shape) * dtype.itemsize
    if size_bytes > info.file_size:
        raise ValueError(f"'{info.filename}' claims {size_bytes} bytes of data, but has {info.file_size} at most")
    _expect_memory(size_bytes)
    data = member.read(size_bytes)
    if len(data) != size_bytes or dtype.itemsize == 0:
        raise ValueError(f"'{info.filename}' ends after {len(data)} of {size_bytes} bytes")
    flat = np.frombuffer(bytearray(data), dtype=dtype)
    return flat.reshape(shape[::-1]).transpose() if is_fortran else flat.reshape(shape)


def _expect_memory(size_bytes: int) -> None:
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return
    if size_bytes > there // 2:
        raise ValueError(f"it holds {size_bytes} bytes, and this machine has {there} of memory")
