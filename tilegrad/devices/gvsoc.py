"""Siracusa's cycle model, GVSoC: the image of a whole training, run by a simulator that is built from its sources."""

from __future__ import annotations

import os
import shutil

from tilegrad.devices.base import Capabilities
from tilegrad.devices.embedded import Image
from tilegrad.devices.registry import register
from tilegrad.devices.siracusa_build import missing_compiler
from tilegrad.devices.siracusa_image import SiracusaDevice
from tilegrad.devices.transport import ProcessTransport, Transport
from tilegrad.errors import DeviceError

VARIABLE = "TILEGRAD_GVSOC"
LAST_LINES = 12


def find_gvsoc() -> str | None:
    """The simulator's command: what the variable names, else what is on PATH."""
    return shutil.which(os.environ.get(VARIABLE) or "gvsoc")


@register
class GvsocDevice(SiracusaDevice):
    kind = "gvsoc"
    capabilities = Capabilities(is_interactive=False, counters=())

    def __init__(self, name: str = "gvsoc:siracusa", *, use_cache: bool = True) -> None:
        super().__init__(name, use_cache=use_cache)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return ("gvsoc:siracusa",)

    @classmethod
    def missing(cls, name: str) -> str | None:
        del name
        if find_gvsoc() is None:
            named = os.environ.get(VARIABLE)
            return (
                f"{VARIABLE} names '{named}', which is no program"
                if named
                else f"no gvsoc on PATH, nor {VARIABLE} (the chip's cycle model, built from its sources); "
                "images can be compiled without it"
            )
        return missing_compiler()

    def start(self, image: Image) -> Transport:
        gvsoc = find_gvsoc()
        if gvsoc is None:
            raise DeviceError(f"device '{self.name}' cannot be used here: {self.missing(self.name)}", stage="device")
        path = image.path.resolve()
        work = path.parent / "work"
        work.mkdir(exist_ok=True)
        command = [gvsoc, "--target=siracusa", "--work", str(work), "--binary", str(path), "run"]
        reader, writer = os.pipe()
        return ProcessTransport(command, path.parent, channel=(reader, writer))

    def _failure(self, ended: str, said: str, transport: Transport) -> DeviceError:
        return DeviceError(
            f"the simulator {ended}",
            stage="run",
            got=" ".join(transport.command) + "".join(f"\n    {line}" for line in said.splitlines()[-LAST_LINES:]),
            hint=f"the folder is '{transport.folder}'",
        )
