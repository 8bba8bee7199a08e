"""Result files with arrays."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest a zip file can say: the same arrays make the same bytes


def npz_bytes(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """An .npz file. `numpy.savez` takes names as keyword arguments, so it cannot hold a tensor called "file"."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, np.asanyarray(array), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _EPOCH), content.getvalue())
    return buffer.getvalue()
