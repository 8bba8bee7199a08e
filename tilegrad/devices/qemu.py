"""Boards that QEMU emulates: images of our own, started on bare metal, driven over semihosting.

The emulator's standard streams are the harness's: the image opens them as files of the machine that serves its
semihosting requests, so a request or a reply is one transfer, and the program ends when we go.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tilegrad.build.folder import write_files
from tilegrad.build.toolchain import Toolchain, build, find_compiler, host_toolchain
from tilegrad.build.tools import Tools, temporary_folder
from tilegrad.build.workspace import Workspace
from tilegrad.codegen.board import IMAGE, compile_flags, link_flags
from tilegrad.compiled import Compiled
from tilegrad.devices.base import Array, Capabilities, one_at_a_time
from tilegrad.devices.elf import ElfFile
from tilegrad.devices.embedded import EmbeddedDevice, Image, Sections
from tilegrad.devices.measure import COMPUTE_SECONDS, INSTRUCTIONS, TRANSFER_SECONDS, WALL_SECONDS
from tilegrad.devices.process import HarnessSession
from tilegrad.devices.qemu_counts import Counter, Counts
from tilegrad.devices.registry import register
from tilegrad.devices.session import Exchanged
from tilegrad.devices.transport import ProcessTransport
from tilegrad.errors import DeviceError, DoesNotFit, InternalError
from tilegrad.targets import base as targets
from tilegrad.targets.board import Board
from tilegrad.targets.riscv32v.target import VECTOR_BITS

_COMMON = tuple(
    "-display none -serial none -monitor none -icount shift=0 -semihosting-config enable=on,target=native".split()
)
PROBE_TIMEOUT_SECONDS = 30
CORES = "cores.txt"
"""Beside an image that was built: how many cores the emulator is to have."""


@dataclass(frozen=True)
class Machine:
    """How QEMU is asked for a board. `package` is Debian's."""

    target: str
    emulator: str
    package: str
    options: tuple[str, ...]


def _machine(target: str, emulator: str, package: str, options: str) -> Machine:
    return Machine(target, emulator, package, tuple(options.split()))


MACHINES: Mapping[str, Machine] = {
    "qemu:riscv32": _machine(
        "riscv32", "qemu-system-riscv32", "qemu-system-misc", "-machine virt -bios none -m 64M -cpu rv32"
    ),
    "qemu:riscv32v": _machine(
        "riscv32v",
        "qemu-system-riscv32",
        "qemu-system-misc",
        f"-machine virt -bios none -m 64M -cpu rv32,v=true,vlen={VECTOR_BITS},vext_spec=v1.0",
    ),
    "qemu:mps2-an500": _machine("cortex_m7", "qemu-system-arm", "qemu-system-arm", "-machine mps2-an500"),
    "qemu:mps3-an547": _machine("cortex_m55", "qemu-system-arm", "qemu-system-arm", "-machine mps3-an547"),
}


@dataclass(frozen=True)
class QemuImage(Image):
    """Knows the kernels whose instructions can be told apart, and how many cores it is for."""

    kernels: tuple[str, ...]
    cores: int


class QemuTransport(ProcessTransport):
    """A running emulator, and what it counts."""

    def __init__(self, command: tuple[str, ...], folder: Path, counter: Counter) -> None:
        super().__init__(command, folder)
        self.counter = counter


class QemuSession(HarnessSession):
    """`counts` are exact and the same on every run: the emulator counts every instruction of every core."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._first_counts: dict[str, Counts] = {}

    def _call(self, entry: str, inputs: Sequence[Array | None], wanted: Sequence[int]) -> list[Array]:
        results = super()._call(entry, inputs, wanted)
        if entry not in self._first_counts:
            self._first_counts[entry] = self.counts()
        return results

    def _begin(
        self, entry: str | None, inputs: Sequence[Array], writes: Mapping[str, Array], reads: Sequence[str]
    ) -> Callable[[], Exchanged]:
        """Counts are those of the call that ended last, so that none is begun before they are known."""
        finish = super()._begin(entry, inputs, writes, reads)
        if entry is None or entry in self._first_counts:
            return finish
        results = finish()
        self._first_counts[entry] = self.counts()
        return lambda: results

    def instructions(self) -> dict[str, tuple[int, ...]]:
        return {entry: counts.cores for entry, counts in self._first_counts.items()}

    def counts(self) -> Counts:
        """Of the call that ended last, by core and by kernel."""
        if not isinstance(self.transport, QemuTransport):
            raise InternalError("a session of an emulator without one")
        return self.transport.counter.last()

    def _count(self, entry: str) -> Mapping[str, float]:
        """Instructions are those of the busiest core. Seconds are the emulator's own, and say nothing of a board."""
        start = time.perf_counter()
        self._measure(entry, 1)
        return {COMPUTE_SECONDS: time.perf_counter() - start, INSTRUCTIONS: float(self.counts().busiest)}

    @one_at_a_time
    def seconds_per_call(self, entry: str, calls: int) -> float:
        """Of one call, however many were asked for: the emulator's time is not worth waiting for."""
        self._check_placed(entry)
        return self._count(entry)[COMPUTE_SECONDS]


@register
class QemuDevice(EmbeddedDevice):
    kind = "qemu"
    capabilities = Capabilities(counters=(WALL_SECONDS, COMPUTE_SECONDS, TRANSFER_SECONDS, INSTRUCTIONS))
    session_type = QemuSession

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(MACHINES)

    @classmethod
    def target_of(cls, name: str) -> str:
        return MACHINES[name].target

    @classmethod
    def missing(cls, name: str) -> str | None:
        machine = MACHINES[name]
        board = _board(machine)
        reason = _lacking(*board.tools, (machine.emulator, machine.package))
        if reason is not None:
            return reason
        try:
            host_toolchain()
        except DeviceError:
            return "no C compiler for the plugin that counts instructions (Debian: apt-get install gcc)"
        words = _refusal(board)
        return None if words is None else f"{board.compiler} cannot compile for {machine.target}: {words}"

    def build(self, compiled: Compiled, folder: Path) -> Image:
        board = _board(MACHINES[self.name])
        reason = _lacking(*board.tools)
        if reason is not None:
            raise DeviceError(f"an image for '{self.name}' cannot be made here: {reason}", stage="build")
        files = compiled.project.files
        write_files(folder, files)
        toolchain = Toolchain(find_compiler(board.compiler), compile_flags(board), link_flags(board), board.linker)
        try:
            path = build(toolchain, folder, files, IMAGE, use_cache=self.use_cache)
        except DeviceError as error:
            over = re.search(r"region `(\w+)' overflowed by (\d+) bytes", str(error))
            if over is None:
                raise
            raise _too_large(board, over[1], int(over[2])) from error
        launches = (launch for entry in compiled.plan.schedule.entries.values() for launch in entry.launches)
        kernels = {nest.kernel for launch in launches for nest in launch.nests}
        return QemuImage(path, sections(ElfFile(path)), tuple(sorted(kernels)), compiled.target.cores)

    def start(self, image: Image) -> QemuTransport:
        if not isinstance(image, QemuImage):
            raise InternalError("an image that this device did not build")
        folder = image.path.parent
        counter = Counter(folder, ElfFile(image.path).symbols(), image.kernels, image.cores)
        plugin = counter.options(self.use_cache)
        return QemuTransport(self._command(image.path.name, image.cores, plugin), folder, counter)

    def _command(self, image: str, cores: int, plugin: Sequence[str] = ()) -> tuple[str, ...]:
        machine = MACHINES[self.name]
        emulator = shutil.which(machine.emulator)
        if emulator is None:
            raise DeviceError(f"'{machine.emulator}' is gone", stage="run", hint=f"Debian: {machine.package}")
        several = ("-smp", str(cores)) if cores > 1 else ()
        return (emulator, *machine.options, *several, *_COMMON, *plugin, "-kernel", image)

    def built_files(self, compiled: Compiled) -> dict[str, bytes]:
        workspace = Workspace()
        with workspace.kept_on_failure() as folder:
            files = self.folder_files(compiled, self.build(compiled, folder))
        workspace.close()
        return {**files, CORES: f"{compiled.target.cores}\n".encode()}

    def serve(self, folder: Path) -> ProcessTransport:
        """Without the plugin that counts instructions, which would have to be compiled."""
        cores = int((folder / CORES).read_text(encoding="utf-8"))
        return ProcessTransport(self._command(IMAGE, cores), folder)

    @classmethod
    def missing_to_serve(cls, name: str) -> str | None:
        machine = MACHINES[name]
        return _lacking((machine.emulator, machine.package))


def _board(machine: Machine) -> Board:
    board = targets.get(machine.target).board
    if board is None:
        raise InternalError(f"target '{machine.target}' is no board")
    return board


def _lacking(*wanted: tuple[str, str]) -> str | None:
    """Which of these tools are not here, with Debian's packages."""
    lacking = [(tool, package) for tool, package in wanted if shutil.which(tool) is None]
    if not lacking:
        return None
    tools = " and no ".join(tool for tool, _ in lacking)
    return f"no {tools} (Debian: apt-get install {' '.join(package for _, package in lacking)})"


def _too_large(board: Board, bank_name: str, over_bytes: int) -> DoesNotFit:
    bank = next(bank for bank in (board.code, *board.banks) if bank.name == bank_name)
    return DoesNotFit(
        f"the image does not fit into {bank.name}",
        stage="build",
        expected=f"at most {bank.size_bytes} bytes",
        got=f"{bank.size_bytes + over_bytes} bytes",
        hint="code and constants, weights apart" if bank == board.code else None,
    )


@cache
def _refusal(board: Board) -> str | None:
    """What a compiler says that does not know the chip; an old clang has no vectors, say."""
    command = [board.compiler, *board.flags, "-E", "-x", "c", os.devnull]
    done = Tools(PROBE_TIMEOUT_SECONDS).run(command, temporary_folder())
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason given"])[0]


def sections(elf: ElfFile) -> Sections:
    sizes = {name: section.size_bytes for name, section in elf.sections.items()}
    return Sections(
        text_bytes=sizes[".text"],
        data_bytes=sizes.get(".data", 0),
        bss_bytes=sum(sizes.get(name, 0) for name in (".bss", ".state", ".arena")),
        stack_bytes=sizes[".stacks"],
    )
