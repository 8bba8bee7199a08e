"""Devices that are a process of this machine: the project compiled with the system's compiler."""

from __future__ import annotations

import os
from pathlib import Path

from tilegrad.build.folder import write_files
from tilegrad.build.toolchain import NO_COMPILER, Toolchain, build, host_toolchain
from tilegrad.compiled import Compiled
from tilegrad.devices.process import HarnessDevice
from tilegrad.devices.transport import ProcessTransport
from tilegrad.errors import DeviceError


class NativeDevice(HarnessDevice):
    """What the host and the simulated clusters have in common. `environment` is added to the program's own."""

    def __init__(self, name: str, *, use_cache: bool = True, toolchain: Toolchain | None = None) -> None:
        super().__init__(name, use_cache=use_cache)
        self.toolchain = toolchain
        self.environment: dict[str, str] = {}

    @classmethod
    def missing(cls, name: str) -> str | None:
        try:
            host_toolchain()
        except DeviceError as error:
            if error.message != NO_COMPILER:
                return error.message
            named = os.environ.get("CC")
            if named:
                return f"CC is '{named}', which is no program on PATH"
            return "no C compiler (Debian: apt-get install gcc)"
        return None

    def _start(self, compiled: Compiled, folder: Path) -> ProcessTransport:
        write_files(folder, compiled.project.files)
        toolchain = self.toolchain or host_toolchain()
        program = build(toolchain, folder, compiled.project.files, "harness", use_cache=self.use_cache)
        return ProcessTransport([str(program), "weights.bin"], folder, environment=self.environment)
