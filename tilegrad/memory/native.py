"""Loads search.c, compiled once per machine and kept beside the cached objects."""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tilegrad.build.toolchain import Toolchain, build, cache_folder, compiler_identity, host_toolchain
from tilegrad.errors import DeviceError

SOURCE = Path(__file__).with_name("search.c")
_FLAGS = tuple("-std=c99 -O2 -fPIC -Wall -Wextra -Werror".split())
_LIBRARY = "search.so"
_FOUND, _IMPOSSIBLE, _OUT_OF_WORK = 1, 0, -1


@dataclass(frozen=True)
class Attempt:
    """`offsets` is None where nothing was found; `is_proof` says that then there is nothing to find.

    `failures` counts, for each section, how often it was the one that could not hold what remained.
    """

    offsets: list[int] | None
    is_proof: bool
    nodes: int
    failures: list[int]


def _compile(toolchain: Toolchain, folder: Path) -> Path:
    files = {SOURCE.name: SOURCE.read_bytes()}
    (folder / SOURCE.name).write_bytes(files[SOURCE.name])
    return build(toolchain, folder, files, _LIBRARY, use_cache=False)


@cache
def library() -> ctypes.CDLL | None:
    """The compiled search, or None on a machine without a C compiler."""
    try:
        toolchain = Toolchain(host_toolchain().compiler, _FLAGS, ("-shared",))
        kept = cache_folder()
        with tempfile.TemporaryDirectory(prefix="tilegrad-") as temporary:
            if kept is None:
                return ctypes.CDLL(str(_compile(toolchain, Path(temporary))))
            key = hashlib.sha256(SOURCE.read_bytes() + repr((compiler_identity(toolchain.compiler), _FLAGS)).encode())
            path = kept / f"{key.hexdigest()}.so"
            if not path.exists():
                with tempfile.TemporaryDirectory(dir=kept, prefix="building-") as beside:
                    os.replace(_compile(toolchain, Path(beside)), path)
            return ctypes.CDLL(str(path))
    except (DeviceError, OSError):
        return None


def search(
    ranges: Sequence[tuple[int, int]], sizes: Sequence[int], section_count: int, capacity: int, budget: int
) -> Attempt:
    """One run over buffers in order of rank; `ranges` are the sections that each covers (stop excluded).

    Only where `library()` is not None.
    """
    loaded = library()
    assert loaded is not None
    count = len(sizes)
    low = (ctypes.c_int32 * count)(*(start for start, _ in ranges))
    high = (ctypes.c_int32 * count)(*(stop for _, stop in ranges))
    offsets = (ctypes.c_int64 * count)()
    failures = (ctypes.c_int64 * section_count)()
    nodes = ctypes.c_int64(0)
    result = loaded.tg_search(
        ctypes.c_int32(count),
        ctypes.c_int32(section_count),
        low,
        high,
        (ctypes.c_int64 * count)(*sizes),
        ctypes.c_int64(capacity),
        ctypes.c_int64(budget),
        offsets,
        ctypes.byref(nodes),
        failures,
    )
    if result not in (_FOUND, _IMPOSSIBLE, _OUT_OF_WORK):
        raise MemoryError("the allocation search")
    return Attempt(list(offsets) if result == _FOUND else None, result == _IMPOSSIBLE, nodes.value, list(failures))
