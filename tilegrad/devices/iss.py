"""Siracusa, instruction by instruction: a cycle model of our own that runs the very image, compiled on first use.

docs/iss.md says what it models, where its figures come from, and how near it is to the chip's own cycle model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tilegrad.build.folder import write_files
from tilegrad.build.toolchain import Toolchain, build, host_toolchain
from tilegrad.compiled import Compiled
from tilegrad.devices.base import Capabilities, FloatArrays
from tilegrad.devices.embedded import Image
from tilegrad.devices.iss_profile import Profile, parse_profile
from tilegrad.devices.native import NativeDevice
from tilegrad.devices.registry import register
from tilegrad.devices.siracusa_build import missing_compiler
from tilegrad.devices.siracusa_image import SiracusaDevice
from tilegrad.devices.transport import ProcessTransport, Transport
from tilegrad.errors import DeviceError

SOURCES = Path(__file__).parents[1] / "targets" / "siracusa" / "iss"
PROGRAM = "siracusa-iss"
PROFILE = "profile.json"
FAULT_STATUS = 99

# No program of ours comes near these: what takes longer is an endless loop.
CYCLES_OF_A_CALL = 100_000_000
CYCLES_OF_A_MAC = 100
CYCLES_OF_A_WORD = 2000


def simulator_files() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(SOURCES.iterdir()) if path.suffix in (".c", ".h")}


def simulator_toolchain() -> Toolchain:
    """The host's. Contraction stays off: a multiply-add of the chip is one that it asks for."""
    return replace(host_toolchain(), assembles=False)


def build_simulator(folder: Path, *, use_cache: bool = True) -> Path:
    """The model as a program of this machine, in an existing folder."""
    files = simulator_files()
    write_files(folder, files)
    return build(simulator_toolchain(), folder, files, PROGRAM, use_cache=use_cache)


def most_cycles(compiled: Compiled, steps: int) -> int:
    """A budget for the whole run: mini-batches, updates, an inference, and making or storing each word of the state."""
    calls = 2 + steps * (compiled.program.recipe.accumulate + 1)
    macs = max(compiled.plan.schedule.macs("step"), 1)
    words = sum(tensor.type.size_bytes for tensor in compiled.program.state) // 4
    return calls * (CYCLES_OF_A_CALL + CYCLES_OF_A_MAC * macs + CYCLES_OF_A_WORD * words)


@register
class IssDevice(SiracusaDevice):
    """`limit_cycles` ends a run that does not end: None leaves it to the time."""

    kind = "iss"
    capabilities = Capabilities(is_interactive=False, counters=(), profiles=True)

    def __init__(self, name: str = "iss:siracusa", *, use_cache: bool = True) -> None:
        super().__init__(name, use_cache=use_cache)
        self.limit_cycles: int | None = None

    @property
    def cycles_are(self) -> str:
        return f"measured on {self.name}"

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return ("iss:siracusa",)

    @classmethod
    def missing(cls, name: str) -> str | None:
        return NativeDevice.missing(name) or missing_compiler()

    def start(self, image: Image) -> Transport:
        path = image.path.resolve()
        work = path.parent / "iss"
        work.mkdir(exist_ok=True)
        command = [str(build_simulator(work, use_cache=self.use_cache)), str(path)]
        if self.limit_cycles is not None:
            command += ["--limit", str(self.limit_cycles)]
        if self.wants_profile:
            command += ["--profile", str(work / PROFILE)]
        return ProcessTransport(command, path.parent, channel=os.pipe())

    def _failure(self, ended: str, said: str, transport: Transport) -> DeviceError:
        """A fault names the core, the program counter and its symbol, and what happened before it."""
        lines = said.splitlines()
        faults = [line.removeprefix("fault: ") for line in lines if line.startswith("fault: ")]
        around = [line for line in lines if line.startswith(("waiting: ", "event: "))]
        return DeviceError(
            f"the image failed: {faults[-1]}" if faults else f"the simulator {ended}",
            stage="run",
            got="".join(f"\n    {line}" for line in around or lines[-12:]) or "no word of it",
            hint=f"the folder is '{transport.folder}'",
        )

    def train(self, compiled: Compiled, losses: tuple[float, ...], weights: FloatArrays) -> Mapping[str, int]:
        self.limit_cycles = most_cycles(compiled, self.steps)
        return super().train(compiled, losses, weights)

    def read_profile(self, image: Image) -> Profile:
        """Of the latest run of an image, with `wants_profile`."""
        return parse_profile((image.path.parent / "iss" / PROFILE).read_text(encoding="utf-8"))

    def _after(self, image: Image) -> None:
        if self.wants_profile:
            self.profile = self.read_profile(image)
