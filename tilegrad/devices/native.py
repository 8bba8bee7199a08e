"""Devices that are a process of this machine: the project compiled with the system's compiler."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from tilegrad.build.folder import write_files
from tilegrad.build.toolchain import Toolchain, build, host_toolchain
from tilegrad.devices.base import Device, Session
from tilegrad.devices.process import ProcessSession
from tilegrad.errors import DeviceError
from tilegrad.pipeline import Compiled


class NativeSession(ProcessSession):
    """Also owns the temporary folder it was built in."""

    def __init__(
        self,
        compiled: Compiled,
        folder: tempfile.TemporaryDirectory[str],
        use_cache: bool,
        toolchain: Toolchain,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._temporary = folder
        root = Path(folder.name)
        write_files(root, compiled.project.files)
        program = build(toolchain, root, compiled.project.files, "harness", use_cache=use_cache)
        super().__init__(compiled, [str(program), "weights.bin"], root, environment=environment)

    def close(self) -> None:
        super().close()
        self._temporary.cleanup()


class NativeDevice(Device):
    """What the host and the simulated clusters have in common."""

    def __init__(
        self,
        name: str,
        *,
        use_cache: bool = True,
        toolchain: Toolchain | None = None,
    ) -> None:
        super().__init__(name, use_cache=use_cache)
        self.toolchain = toolchain

    @classmethod
    def missing(cls, name: str) -> str | None:
        try:
            host_toolchain()
        except DeviceError:
            return "no C compiler (Debian: apt-get install gcc)"
        return None

    def _load(self, compiled: Compiled) -> Session:
        folder = tempfile.TemporaryDirectory(prefix="tilegrad-")
        try:
            return self._session(compiled, folder, self.toolchain or host_toolchain())
        except BaseException:
            folder.cleanup()
            raise

    def _session(
        self, compiled: Compiled, folder: tempfile.TemporaryDirectory[str], toolchain: Toolchain
    ) -> NativeSession:
        return NativeSession(compiled, folder, self.use_cache, toolchain)
