"""Devices that are a process of this machine: the project compiled with the system's compiler."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from tilegrad.build.folder import write_files
from tilegrad.build.toolchain import NO_COMPILER, Toolchain, build, host_toolchain
from tilegrad.build.workspace import Workspace
from tilegrad.compiled import Compiled
from tilegrad.devices.process import HarnessDevice
from tilegrad.devices.transport import ProcessTransport
from tilegrad.errors import DeviceError

PROGRAM = "harness"
MACHINE = "machine.json"
"""Beside a program that was built: what it was built for."""


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
        self._build(compiled.project.files, folder)
        return self._started(folder)

    def _build(self, files: Mapping[str, bytes], folder: Path) -> None:
        write_files(folder, files)
        build(self.toolchain or host_toolchain(), folder, files, PROGRAM, use_cache=self.use_cache)

    def _started(self, folder: Path) -> ProcessTransport:
        tensors = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["tensors"]
        return ProcessTransport(
            [str(folder / PROGRAM), "weights.bin"],
            folder,
            environment=self.environment,
            window_bytes=sum(tensor["bytes"] for tensor in tensors),
        )

    def built_files(self, compiled: Compiled) -> dict[str, bytes]:
        workspace = Workspace()
        with workspace.kept_on_failure() as folder:
            self._build(compiled.project.files, folder)
            program = (folder / PROGRAM).read_bytes()
        workspace.close()
        machine = json.dumps({"machine": platform.machine(), "features": sorted(processor_features())}) + "\n"
        return {**compiled.project.files, PROGRAM: program, MACHINE: machine.encode()}

    def serve(self, folder: Path) -> ProcessTransport:
        built_for = json.loads((folder / MACHINE).read_text(encoding="utf-8"))
        fits = built_for["machine"] == platform.machine() and set(built_for["features"]) <= processor_features()
        if fits:
            (folder / PROGRAM).chmod(0o755)
        else:
            reason = self.missing(self.name)
            if reason is not None:
                raise DeviceError(
                    f"the program for '{self.name}' was built for another processor, and none can be built: {reason}",
                    stage="build",
                    expected=f"{built_for['machine']} with what that one can do",
                    got=platform.machine(),
                )
            paths = (path for path in folder.rglob("*") if path.is_file() and path.name not in (PROGRAM, MACHINE))
            self._build({str(path.relative_to(folder)): path.read_bytes() for path in paths}, folder)
        return self._started(folder)

    @classmethod
    def missing_to_serve(cls, name: str) -> str | None:
        del name
        return None


def processor_features() -> set[str]:
    """What instructions this processor has, in the kernel's words; programs are compiled for what is here."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", told, re.MULTILINE)
    return set(found[1].split()) if found else set()
