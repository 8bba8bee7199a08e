"""Exact counts of instructions under QEMU, by core and by kernel, from a plugin that is built when it is needed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tilegrad.build.folder import write_files
from tilegrad.build.toolchain import Toolchain, build, host_toolchain
from tilegrad.build.workspace import Workspace
from tilegrad.devices.elf import Symbol
from tilegrad.errors import DeviceError
from tilegrad.ops.kernels import RUNTIME_FOLDER

PLUGIN_FOLDER = RUNTIME_FOLDER / "qemu"
PLUGIN_FILES = ("count_entries.c", "qemu_plugin.h")
MAP, COUNTS, PLUGIN = "counts.map", "counts.txt", "counts.so"
_LONGEST_NUMBER = 21
_FLAGS = tuple("-std=c99 -O2 -fPIC -Wall -Wextra -Werror".split())


@dataclass(frozen=True)
class Counts:
    """Of one call: instructions of each core, and of each kernel by core."""

    cores: tuple[int, ...]
    kernels: Mapping[str, tuple[int, ...]]

    @property
    def busiest(self) -> int:
        return max(self.cores)

    @property
    def total(self) -> int:
        return sum(self.cores)


class Counter:
    """Counts the calls of one running image. Lies in the image's folder."""

    def __init__(self, folder: Path, symbols: Mapping[str, Symbol], kernels: Sequence[str], cores: int) -> None:
        self.folder = folder
        self.kernels = tuple(name for name in kernels if f"tg_{name}" in symbols)
        self.cores = cores
        lines = [f"{word} {symbols[f'tg_count_{word}'].address:x}" for word in ("begin", "end")]
        for name in self.kernels:
            symbol = symbols[f"tg_{name}"]
            lines.append(f"kernel {symbol.address:x} {symbol.address + symbol.size_bytes:x}")
        lines.append(f"glue {symbols['tg_callers_start'].address:x} {symbols['tg_callers_stop'].address:x}")
        (folder / MAP).write_text("\n".join(lines) + "\n", encoding="ascii")

    def options(self, use_cache: bool) -> tuple[str, ...]:
        """The emulator's, with which it loads the plugin."""
        (self.folder / PLUGIN).write_bytes(_plugin(use_cache))
        return ("-plugin", f"./{PLUGIN},map={MAP},out={COUNTS}")

    def last(self) -> Counts:
        """Of the call that ended last."""
        with (self.folder / COUNTS).open("rb") as file:
            longest = self.cores * _LONGEST_NUMBER * (2 + len(self.kernels))
            file.seek(max(file.seek(0, os.SEEK_END) - longest, 0))
            lines = file.read().decode("ascii").splitlines()[-self.cores :]
        rows = {int(words[0]): [int(word) for word in words[1:]] for words in map(str.split, lines)}
        if sorted(rows) != list(range(self.cores)):
            raise DeviceError(
                "the emulator did not count every core",
                stage="measure",
                expected=f"{self.cores} cores",
                got=f"{len(rows)}",
            )
        ordered = [rows[core] for core in range(self.cores)]
        kernels = {name: tuple(row[1 + i] for row in ordered) for i, name in enumerate(self.kernels)}
        return Counts(tuple(row[0] for row in ordered), kernels)


@lru_cache
def _plugin(use_cache: bool) -> bytes:
    """A shared library for this machine."""
    files = {name: (PLUGIN_FOLDER / name).read_bytes() for name in PLUGIN_FILES}
    with closing(Workspace()) as workspace:
        write_files(workspace.path, files)
        toolchain = Toolchain(host_toolchain().compiler, _FLAGS, ("-shared",))
        return build(toolchain, workspace.path, files, PLUGIN, use_cache=use_cache).read_bytes()
