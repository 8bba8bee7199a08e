"""Accelerators reached through OpenCL: `opencl:N` is the N-th device of all the drivers on this machine.

A program is its folder: run.py there places the state on the device, sets the arguments of every kernel, and runs an
entry by enqueueing its kernels. It is a process of its own and speaks the harness protocol, so that a kernel that
crashes or hangs takes nothing along: OpenCL cannot stop a kernel, and some drivers run them inside the process. Memory
that is allocated through the device is this process's.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import shutil
import struct
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tilegrad.build.folder import write_files
from tilegrad.codegen.opencl import program_buffers
from tilegrad.compiled import Compiled
from tilegrad.devices.accelerator import AcceleratorDevice
from tilegrad.devices.base import Capabilities, Session
from tilegrad.devices.conversation import MEASURE, REPLY_TIMEOUT_SECONDS, UPDATE
from tilegrad.devices.process import HarnessDevice, HarnessSession
from tilegrad.devices.registry import register
from tilegrad.devices.residency import Residency
from tilegrad.devices.transport import ProcessTransport, TransportError
from tilegrad.errors import DeviceError, DoesNotFit

_PACKAGES = "PyPI: pip install 'tilegrad[opencl]', which is pyopencl and pocl-binary-distribution"


@cache
def _drivers() -> tuple[tuple[Any, ...], str | None]:
    """Every OpenCL device of this machine, and why there is none where there is none."""
    if importlib.util.find_spec("pyopencl") is None:
        return (), f"the Python package pyopencl is not installed ({_PACKAGES})"
    try:
        cl = importlib.import_module("pyopencl")
    except ImportError as error:
        return (), f"pyopencl cannot be imported: {error} ({_PACKAGES})"
    found: list[Any] = []
    words = ""
    try:
        for platform in cl.get_platforms():
            with contextlib.suppress(cl.Error):  # a driver without a device; run.py counts the same way
                found += platform.get_devices()
    except cl.Error as error:
        words = f": {error}"
    return tuple(found), None if found else f"no OpenCL driver has a device{words} ({_PACKAGES})"


def _unfit(device: Any) -> str | None:
    """Why a driver's device cannot keep the bit contract (docs/numerics.md), or cannot build at all."""
    cl = importlib.import_module("pyopencl")
    wanted = {
        "DENORM": "keeps no subnormals",
        "INF_NAN": "has no infinities and NaNs",
        "ROUND_TO_NEAREST": "does not round to nearest",
        "CORRECTLY_ROUNDED_DIVIDE_SQRT": "does not round divisions and square roots correctly",
    }
    for flag, lacks in wanted.items():
        if not device.single_fp_config & getattr(cl.device_fp_config, flag):
            return f"{device.name.strip()} {lacks}, so results would not be those of other devices"
    if not device.endian_little:
        return f"{device.name.strip()} is big endian"
    if not (device.available and device.compiler_available):
        return f"the driver of {device.name.strip()} says that it is not available, or has no compiler"
    if "pocl" in device.platform.version.lower() and shutil.which("ld") is None:
        return "PoCL needs the linker `ld` (Debian: apt-get install binutils)"
    return None


class OpenclSession(HarnessSession):
    """The folder's own host program, run.py, as a process."""

    @property
    def resident_bytes(self) -> int:
        return 0 if self.conversation.is_closed else sum(program_buffers(self.compiled.plan).values())


@register
class OpenclDevice(HarnessDevice, AcceleratorDevice):
    kind = "opencl"
    capabilities = Capabilities(takes_ahead=True)
    session_type = OpenclSession

    def __init__(self, name: str = "opencl:0", *, use_cache: bool = True) -> None:
        super().__init__(name, use_cache=use_cache)
        self.driver = _drivers()[0][self._number(name)]
        self.memory_bytes = int(self.driver.global_mem_size)
        self.largest_buffer_bytes = int(self.driver.max_mem_alloc_size)
        self._cl: Any = importlib.import_module("pyopencl")
        self._context = self._cl.Context([self.driver])
        self._queue = self._cl.CommandQueue(self._context)

    @staticmethod
    def _number(name: str) -> int:
        return int(name.partition(":")[2])

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f"{cls.kind}:{i}" for i in range(max(len(_drivers()[0]), 1)))

    @classmethod
    def target_of(cls, name: str) -> str:
        return "opencl"

    @classmethod
    def missing(cls, name: str) -> str | None:
        drivers, reason = _drivers()
        return reason or _unfit(drivers[cls._number(name)])

    # ---- memory

    @property
    def live_bytes(self) -> int:
        """Programs count, too: their buffers are on the device while their sessions are open."""
        programs = sum(session.resident_bytes for session in self._sessions if isinstance(session, OpenclSession))
        return super().live_bytes + programs

    def _allocate(self, size_bytes: int) -> Any:
        sizes = {"this buffer": size_bytes}
        self._expect_room(sizes)
        try:
            return self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, size_bytes)
        except self._cl.Error as error:
            raise self._no_room(sizes) from error

    def _free(self, buffer: Any) -> None:
        buffer.release()

    def _copy_to(self, buffer: Any, offset: int, data: memoryview) -> None:
        self._command(self._cl.enqueue_copy, buffer, data, dst_offset=offset)

    def _copy_from(self, buffer: Any, offset: int, size_bytes: int) -> bytes:
        data = np.empty(size_bytes, np.uint8)
        self._command(self._cl.enqueue_copy, data, buffer, src_offset=offset)
        return data.tobytes()

    def _fill_zero(self, buffer: Any, offset: int, size_bytes: int) -> None:
        self._command(self._cl.enqueue_fill_buffer, buffer, np.uint8(0), offset, size_bytes)

    def _command(self, enqueue: Any, *arguments: Any, **named: Any) -> None:
        """Done when it returns."""
        try:
            enqueue(self._queue, *arguments, **named)
            self._queue.finish()
        except self._cl.Error as error:
            raise DeviceError(f"device '{self.identity}' refused a command: {error}", stage="run") from error

    def _expect_room(self, sizes: Mapping[str, int]) -> None:
        """Refuses, with the budget, what the device cannot hold beside what is on it."""
        if self.live_bytes + sum(sizes.values()) > self.memory_bytes or max(sizes.values()) > self.largest_buffer_bytes:
            raise self._no_room(sizes)

    def _no_room(self, sizes: Mapping[str, int]) -> DoesNotFit:
        parts = ", ".join(f"{size} for {what}" for what, size in sizes.items())
        taken = f", beside {self.live_bytes} in use" if self.live_bytes else ""
        return DoesNotFit(
            f"the memory of '{self.identity}' is too small",
            stage="memory",
            expected=f"at most {self.memory_bytes} bytes, and {self.largest_buffer_bytes} in one buffer",
            got=f"{sum(sizes.values())} bytes: {parts}{taken}",
            hint="train fewer parameters (--train last:K), a smaller batch, or a stateless optimizer (sgd)",
        )

    # ---- programs

    def _load(self, compiled: Compiled, residency: Residency) -> Session:
        self._expect_room(program_buffers(compiled.plan))
        return super()._load(compiled, residency)

    def _start(self, compiled: Compiled, folder: Path) -> ProcessTransport:
        write_files(folder, compiled.project.files)
        return self.serve(folder)

    def built_files(self, compiled: Compiled) -> dict[str, bytes]:
        """The driver compiles kernels when they are loaded."""
        return dict(compiled.project.files)

    def serve(self, folder: Path) -> ProcessTransport:
        command = [sys.executable, "run.py", "--serve", str(self._number(self.name))]
        environment = {} if self.use_cache else {"POCL_KERNEL_CACHE": "0"}
        transport = ProcessTransport(command, folder, environment=environment)
        try:
            self._expect_answer(transport)
        except BaseException:
            transport.close()
            raise
        return transport

    def _expect_answer(self, transport: ProcessTransport) -> None:
        """The program answers once its kernels are built; what the driver's compiler has against them is the error."""
        deadline = time.monotonic() + REPLY_TIMEOUT_SECONDS
        try:
            transport.send(struct.pack("<IIII", MEASURE, 8, UPDATE, 0), deadline)
            transport.receive(8 + 24, deadline)
        except TransportError as error:
            status = transport.kill()
            words = "".join(f"\n    {line}" for line in transport.last_words().splitlines())
            raise DeviceError(
                f"the program cannot be built for '{self.identity}': it {error} (status {status})",
                stage="build",
                got=" ".join(transport.command) + words,
            ) from error
