"""Kalray's MPPA: a program for the host and one for a cluster of the accelerator, which talk through shared memory.

The vendor's tools are not public, so nothing here has run on them. What they are asked to do is written down below and
tested with stand-ins; everything else of the target runs on `sim:mppa`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tilegrad.build.folder import write_files
from tilegrad.build.toolchain import PORTABLE_FLAGS, Toolchain, build, host_toolchain
from tilegrad.compiled import Compiled
from tilegrad.devices.base import Capabilities
from tilegrad.devices.measure import TRANSFER_SECONDS, WALL_SECONDS
from tilegrad.devices.process import HarnessDevice
from tilegrad.devices.registry import register
from tilegrad.devices.transport import ProcessTransport, Transport
from tilegrad.errors import DeviceError

COMPILER = "kvx-cos-gcc"
VARIABLE = "TILEGRAD_MPPA_WINDOW"
CHIP_FOLDER = Path(__file__).parents[1] / "targets" / "mppa" / "chip"
ACCELERATOR, HOST = "accelerator", "host"
# Where the card's DDR begins for its cores; the window is at the same offset from there as from the file's start.
DDR_ADDRESS = 0x1_0000_0000
_HOST_FILES = ("host.c", "tg_window.h")
_ACCELERATOR_FLAGS = (*PORTABLE_FLAGS, "-DTG_STATIC_INSTANCE", "-DTG_BARE", "-I.", "-Imppa")


@dataclass(frozen=True)
class Runner:
    """The vendor's tool that runs a program on a cluster, and its arguments; `{}` stands for the program."""

    tool: str
    arguments: tuple[str, ...]
    what: str


RUNNERS: Mapping[str, Runner] = {
    "mppa:iss": Runner("kvx-cluster", ("--", "{}"), "the instruction-set simulator"),
    "mppa:qemu": Runner("kvx-qemu", ("-nographic", "-kernel", "{}"), "the vendor's QEMU"),
    "mppa:hw": Runner("kvx-jtag-runner", ("--exec-file=Cluster0:{}",), "the card's runner"),
}


def window() -> tuple[str, int] | None:
    """The file that maps the card's DDR, and where in it the window begins: `FILE` or `FILE:OFFSET`."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    path, _, offset = text.rpartition(":")
    return (path, int(offset, 0)) if path and offset.isalnum() else (text, 0)


@register
class MppaDevice(HarnessDevice):
    kind = "mppa"
    capabilities = Capabilities(counters=(WALL_SECONDS, TRANSFER_SECONDS), is_exclusive=True)

    def __init__(self, name: str, *, use_cache: bool = True) -> None:
        super().__init__(name, use_cache=use_cache)
        self._running: ProcessTransport | None = None

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(RUNNERS)

    @classmethod
    def target_of(cls, name: str) -> str:
        del name
        return "mppa"

    @classmethod
    def missing(cls, name: str) -> str | None:
        runner = RUNNERS[name]
        tools = {COMPILER: "the vendor's C compiler for a cluster", runner.tool: runner.what}
        lacking = [f"no {tool} ({what})" for tool, what in tools.items() if shutil.which(tool) is None]
        if window() is None:
            lacking.append(f"no {VARIABLE}=FILE:OFFSET (a file that maps the card's DDR)")
        if not lacking:
            return None
        return f"{', '.join(lacking)}; the tools come with Kalray's AccessCore SDK, and sim:mppa needs none of them"

    @classmethod
    def project_files(cls, compiled: Compiled) -> Mapping[str, bytes]:
        """The host's and the accelerator's programs take the place of the harness on the simulated cluster."""
        own = {f"mppa/{path.name}": path.read_bytes() for path in sorted(CHIP_FOLDER.iterdir()) if path.is_file()}
        files = {name: data for name, data in compiled.project.files.items() if name != "tg_sim.c"}
        files |= {**own, "Makefile": _makefile(files).encode()}
        return dict(sorted(files.items()))

    def _start(self, compiled: Compiled, folder: Path) -> Transport:
        place, runner = window(), RUNNERS[self.name]
        if place is None:
            raise DeviceError(f"device '{self.name}' cannot be used here: {self.missing(self.name)}", stage="device")
        if self._running is not None and self._running.wait(0) is None:
            raise DeviceError(f"device '{self.name}' runs a program already", stage="load", hint="close its session")
        path, offset = place
        files = self.project_files(compiled)
        write_files(folder, files)
        host = {name: data for name, data in files.items() if name.removeprefix("mppa/") in _HOST_FILES}
        accelerator = {name: data for name, data in files.items() if name != "mppa/host.c"}
        build(host_toolchain(), folder, host, HOST, use_cache=self.use_cache)
        vendors = Toolchain(COMPILER, accelerator_flags(offset), ("-lpthread",))
        build(vendors, folder, accelerator, ACCELERATOR, use_cache=self.use_cache)
        arguments = [argument.format(str(folder / ACCELERATOR)) for argument in runner.arguments]
        command = [str(folder / HOST), path, str(offset), "weights.bin", runner.tool, *arguments]
        self._running = ProcessTransport(command, folder, environment={"TG_WINDOW": path})
        return self._running


def accelerator_flags(window_offset: int = 0) -> tuple[str, ...]:
    return (*_ACCELERATOR_FLAGS, f"-DTG_WINDOW_ADDRESS={DDR_ADDRESS + window_offset:#x}")


def _makefile(files: Mapping[str, bytes]) -> str:
    sources = [name for name in sorted(files) if name.endswith(".c") and name != "weights.c"]
    objects = " ".join(f"{name[:-2]}.o" for name in (*sources, "mppa/tg_mppa.c"))
    return (
        "# Builds the host's program with this machine's compiler, and the accelerator's with the vendor's.\n"
        "# -ffp-contract=off is part of the result: without it, bits differ between compilers.\n"
        f"KVXCC = {COMPILER}\n"
        f"CFLAGS = {' '.join(PORTABLE_FLAGS)}\n"
        f"ACCELERATOR_FLAGS = {' '.join(accelerator_flags())}\n"
        f"OBJECTS = {objects}\n\n"
        f"all: {HOST} {ACCELERATOR}\n\n"
        f"{HOST}: mppa/host.c mppa/tg_window.h\n\t$(CC) $(CFLAGS) -o $@ mppa/host.c\n\n"
        f"{ACCELERATOR}: $(OBJECTS)\n\t$(KVXCC) $(ACCELERATOR_FLAGS) $(OBJECTS) -o $@ -lpthread\n\n"
        "$(OBJECTS): %.o: %.c\n\t$(KVXCC) $(ACCELERATOR_FLAGS) -c $< -o $@\n\n"
        f"clean:\n\trm -f {HOST} {ACCELERATOR} $(OBJECTS)\n\n.PHONY: all clean\n"
    )
