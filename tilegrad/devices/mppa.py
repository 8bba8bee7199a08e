"""Kalray's MPPA: a program for the host and one for clusters of the accelerator, which talk through shared memory.

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
from tilegrad.devices.mppa_configuration import FAMILY, PLATFORMS, MppaConfiguration, parse
from tilegrad.devices.process import HarnessDevice
from tilegrad.devices.registry import register
from tilegrad.devices.transport import ProcessTransport, Transport
from tilegrad.errors import DeviceError
from tilegrad.targets import base as targets
from tilegrad.targets.base import Target

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
    """The vendor's tool that runs a program, and its arguments: `{program}`, `{arch}`, and its `{version}`, 1 or 2."""

    tool: str
    arguments: tuple[str, ...]
    what: str


# As the vendor's own script for its compiler's tests has them.
_QEMU = "-display none -nographic -semihosting -m 2G -M mppa-coolidge-v{version} -kernel {program}"
RUNNERS: Mapping[str, Runner] = {
    "iss": Runner("kvx-cluster", ("--march={arch}", "--", "{program}"), "the instruction-set simulator"),
    "qemu": Runner("qemu-system-kvx", tuple(_QEMU.split()), "the vendor's QEMU"),
    "hw": Runner("kvx-jtag-runner", ("--exec-file=Cluster0:{program}",), "the card's runner"),
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
    kind = FAMILY
    capabilities = Capabilities(is_exclusive=True, is_single=True)

    def __init__(self, name: str, *, use_cache: bool = True) -> None:
        self.configuration = parse(name)
        super().__init__(name, use_cache=use_cache)
        self._running: ProcessTransport | None = None

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f"{FAMILY}:{platform}" for platform in PLATFORMS)

    @classmethod
    def takes(cls, name: str) -> bool:
        """With what may stand behind a platform, which is refused field by field."""
        is_configured = ":" in name and any(sign in name.partition(":")[2] for sign in ":=")
        return parse(name).platform in PLATFORMS if is_configured else name in cls.names()

    @classmethod
    def target_of(cls, name: str) -> str:
        del name
        return FAMILY

    @classmethod
    def chip_of(cls, name: str) -> Target:
        return targets.get(FAMILY).with_clusters(parse(name).clusters)

    @classmethod
    def claim_of(cls, name: str) -> str:
        """There is one card, however it is configured."""
        return f"{FAMILY}:{parse(name).platform}"

    @classmethod
    def missing(cls, name: str) -> str | None:
        runner = RUNNERS[parse(name).platform]
        tools = {COMPILER: "the vendor's C compiler for a cluster", runner.tool: runner.what}
        lacking = [f"no {tool} ({what})" for tool, what in tools.items() if shutil.which(tool) is None]
        if window() is None:
            lacking.append(f"no {VARIABLE}=FILE:OFFSET (a file that maps the card's DDR)")
        if not lacking:
            return None
        where = "the tools come with Kalray's AccessCore SDK (docs/mppa.md)"
        return f"{', '.join(lacking)}; {where}, and sim:mppa needs none of them"

    @classmethod
    def files_for(cls, name: str, compiled: Compiled) -> Mapping[str, bytes]:
        """The host's and the accelerator's programs take the place of the harness on the simulated cluster."""
        own = {f"mppa/{path.name}": path.read_bytes() for path in sorted(CHIP_FOLDER.iterdir()) if path.is_file()}
        files = {path: data for path, data in compiled.project.files.items() if path != "tg_sim.c"}
        files |= {**own, "Makefile": _makefile(files, parse(name)).encode()}
        return dict(sorted(files.items()))

    def _start(self, compiled: Compiled, folder: Path) -> Transport:
        place, runner, chosen = window(), RUNNERS[self.configuration.platform], self.configuration
        if place is None:
            raise DeviceError(f"device '{self.name}' cannot be used here: {self.missing(self.name)}", stage="device")
        if self._running is not None and self._running.wait(0) is None:
            raise DeviceError(f"device '{self.name}' runs a program already", stage="load", hint="close its session")
        path, offset = place
        if chosen.workdir is not None:
            folder = chosen.workdir.absolute() / f"tilegrad-{chosen.platform}"  # beside what is the user's there
            folder.mkdir(parents=True, exist_ok=True)
        files = self.files_for(self.name, compiled)
        write_files(folder, files)
        host = {name: data for name, data in files.items() if name.removeprefix("mppa/") in _HOST_FILES}
        accelerator = {name: data for name, data in files.items() if name != "mppa/host.c"}
        build(host_toolchain(), folder, host, HOST, use_cache=self.use_cache)
        flags = (*chosen.compile_flags, *accelerator_flags(offset))
        vendors = Toolchain(COMPILER, flags, (*chosen.link_flags, "-lpthread"))
        build(vendors, folder, accelerator, ACCELERATOR, use_cache=self.use_cache)
        told = {"program": str(folder / ACCELERATOR), "arch": chosen.arch, "version": chosen.arch[-1]}
        arguments = [argument.format(**told) for argument in runner.arguments]
        command = [str(folder / HOST), path, str(offset), "weights.bin", runner.tool, *arguments]
        self._running = ProcessTransport(command, folder, environment={"TG_WINDOW": path, **chosen.environment})
        return self._running


def accelerator_flags(window_offset: int = 0) -> tuple[str, ...]:
    return (*_ACCELERATOR_FLAGS, f"-DTG_WINDOW_ADDRESS={DDR_ADDRESS + window_offset:#x}")


def _makefile(files: Mapping[str, bytes], chosen: MppaConfiguration) -> str:
    sources = [name for name in sorted(files) if name.endswith(".c") and name != "weights.c"]
    objects = " ".join(f"{name[:-2]}.o" for name in (*sources, "mppa/tg_mppa.c"))
    return (
        "# Builds the host's program with this machine's compiler, and the accelerator's with the vendor's.\n"
        "# -ffp-contract=off is part of the result: without it, bits differ between compilers.\n"
        f"KVXCC = {COMPILER}\n"
        f"KVXARCH = {' '.join(chosen.compile_flags)}\n"
        f"KVXLINK = {' '.join(chosen.link_flags)}\n"
        f"CFLAGS = {' '.join(PORTABLE_FLAGS)}\n"
        f"ACCELERATOR_FLAGS = $(KVXARCH) {' '.join(accelerator_flags())}\n"
        f"OBJECTS = {objects}\n\n"
        f"all: {HOST} {ACCELERATOR}\n\n"
        f"{HOST}: mppa/host.c mppa/tg_window.h\n\t$(CC) $(CFLAGS) -o $@ mppa/host.c\n\n"
        f"{ACCELERATOR}: $(OBJECTS)\n\t$(KVXCC) $(OBJECTS) -o $@ $(KVXLINK) -lpthread\n\n"
        "$(OBJECTS): %.o: %.c\n\t$(KVXCC) $(ACCELERATOR_FLAGS) -c $< -o $@\n\n"
        f"clean:\n\trm -f {HOST} {ACCELERATOR} $(OBJECTS)\n\n.PHONY: all clean\n"
    )
