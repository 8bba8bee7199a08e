"""Devices that take an image: a program linked for a board, started by flashing it or by giving it to an emulator."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilegrad.compiled import Compiled
from tilegrad.devices.base import Device, FloatArrays, Session
from tilegrad.devices.iss_profile import Profile
from tilegrad.devices.process import HarnessDevice
from tilegrad.devices.residency import Residency
from tilegrad.devices.transport import Transport
from tilegrad.errors import UserError


@dataclass(frozen=True)
class Sections:
    """Bytes by where they end up: `text` (code and constants) in flash, the others in RAM."""

    text_bytes: int
    data_bytes: int
    bss_bytes: int
    stack_bytes: int

    @property
    def flash_bytes(self) -> int:
        """Initial values of data lie in flash too."""
        return self.text_bytes + self.data_bytes

    @property
    def ram_bytes(self) -> int:
        return self.data_bytes + self.bss_bytes + self.stack_bytes


FABRIC_CORE = 31  # whoever starts a cluster and reports for it: what `mhartid` says for the number of its cluster


@dataclass(frozen=True)
class CoreStack:
    """What an image found of a core's stack when it was done. The guard zone below it must be as it was."""

    core: int
    used_bytes: int
    capacity_bytes: int
    is_intact: bool

    @property
    def is_of_the_fabric_controller(self) -> bool:
        return self.core == FABRIC_CORE

    @property
    def whose(self) -> str:
        return "the fabric controller" if self.is_of_the_fabric_controller else f"core {self.core}"

    def as_json(self) -> dict[str, Any]:
        return {
            "core": self.core,
            "used": self.used_bytes,
            "capacity": self.capacity_bytes,
            "guard": "intact" if self.is_intact else "overwritten",
        }


@dataclass(frozen=True)
class Image:
    """A linked program, ready for a board. It lies in a folder that outlives its run."""

    path: Path
    sections: Sections

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path.name, **asdict(self.sections)}


class EmbeddedDevice(HarnessDevice):
    """Adds an image to a device. What `start` returns has a console, an exit status, and a way to talk to it."""

    steps = 4
    """Updates that an image makes which runs by itself; others are told what to do while they run."""

    @abstractmethod
    def build(self, compiled: Compiled, folder: Path) -> Image:
        """Writes the project into `folder` and links it there. A toolchain that fails is a DeviceError with its words.

        An image that is too large for the board is DoesNotFit, with the budget.
        """

    @abstractmethod
    def start(self, image: Image) -> Transport:
        """Flashes the board, or starts an emulator on the image."""

    def folder_files(self, compiled: Compiled, image: Image) -> dict[str, bytes]:
        """All that a folder with the image holds, by path."""
        return {**compiled.project.files, image.path.name: image.path.read_bytes()}

    def _start(self, compiled: Compiled, folder: Path) -> Transport:
        return self.start(self.build(compiled, folder))


class AutonomousDevice(EmbeddedDevice):
    """A device whose image runs a whole training by itself, with data from the seed: it is not interactive.

    The training is rehearsed on a simulator first, and the image compares its bits with those of the rehearsal.
    """

    wants_profile = False
    """Whether `train` leaves a `profile`; only where `capabilities.profiles`."""
    profile: Profile | None = None
    stacks: tuple[CoreStack, ...] = ()
    """Of the latest `train`, where the image measures them."""
    notes: tuple[str, ...] = ()
    """What is to be said of the program that the latest `train` ran."""

    @property
    def cycles_are(self) -> str:
        """What is said of the cycles that `train` returns."""
        return "counted by the chip"

    @abstractmethod
    def rehearsal(self) -> Device:
        """The device to rehearse on, opened."""

    @abstractmethod
    def train(self, compiled: Compiled, losses: tuple[float, ...], weights: FloatArrays) -> Mapping[str, int]:
        """Runs `steps` updates and returns the cycles of one call of each entry.

        Other losses or weights than these, by a single bit, are a VerificationError.
        """

    def _load(self, compiled: Compiled, residency: Residency) -> Session:
        raise UserError(
            f"device '{self.name}' runs whole trainings: nothing can be sent to it or read from it meanwhile",
            stage="load",
            hint=f"tilegrad train {compiled.program.name} --device {self.name}",
        )
