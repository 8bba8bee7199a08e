"""Loads search.c as a shared library; its object is cached like any other."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tilegrad.build.folder import write_files
from tilegrad.build.toolchain import Toolchain, build, host_toolchain
from tilegrad.build.workspace import Workspace
from tilegrad.errors import DeviceError

SOURCE = Path(__file__).with_name("search.c")
_FLAGS = tuple("-std=c99 -O2 -fPIC -Wall -Wextra -Werror".split())
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


@cache
def library() -> ctypes.CDLL | None:
    """The compiled search, or None on a machine without a C compiler."""
    files = {SOURCE.name: SOURCE.read_bytes()}
    try:
        toolchain = Toolchain(host_toolchain().compiler, _FLAGS, ("-shared",))
        with closing(Workspace()) as workspace:
            write_files(workspace.path, files)
            return ctypes.CDLL(str(build(toolchain, workspace.path, files, "search.so")))
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
