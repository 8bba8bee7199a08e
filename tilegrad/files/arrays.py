"""Result files with arrays."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegrad.errors import UserError
from tilegrad.visible import visible_line

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest a zip file can say: the same arrays make the same bytes
_MAX_NAME_BYTES = 0xFFFF
_SUFFIX = ".npy"
_ESCAPES = {"\0": "%00", "%": "%25", ".": "%2E"}
_ESCAPED = re.compile("%(00|25|2E)")
_UNSAFE = re.compile(r"\0|%(?=00|25|2E)|\.(?=npy\Z)")


def array_name(tensor: str) -> str:
    """What a tensor is called in a file: its name, wherever a file can hold that.

    A zip file's names end at a NUL, and NumPy takes `.npy` off their end. These are escaped, as %00 and %2Enpy, and so
    is a % that would look like an escape, as %25. So different tensors have different names.
    """
    return _UNSAFE.sub(lambda match: _ESCAPES[match[0]], tensor)


def tensor_name(array: str) -> str:
    """The tensor that `array_name` gave this name."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), array)


def npz_bytes(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """An .npz file. `numpy.savez` takes names as keyword arguments, so it cannot hold a tensor called "file"."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            member = array_name(name) + _SUFFIX
            if len(member.encode()) > _MAX_NAME_BYTES:
                raise UserError(
                    "a tensor's name is too long for an .npz file",
                    stage="write",
                    expected=f"at most {_MAX_NAME_BYTES - len(_SUFFIX)} bytes",
                    got=f"{len(name.encode())} bytes: '{visible_line(name[:40])}…'",
                )
            content = io.BytesIO()
            np.lib.format.write_array(content, np.asanyarray(array), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(member, _EPOCH), content.getvalue())
    return buffer.getvalue()
