"""The contract of every device: what it must say of itself, and what it loads.

A device is one module of this package, with one class that `registry.register` takes. It is opened as a context manager
and loads compiled programs into sessions (`session.py`); closing it closes what it loaded.

`accelerator.AcceleratorDevice` adds memory, `embedded.EmbeddedDevice` an image.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import TracebackType
from typing import ClassVar

from tilegrad.build.lock import Claim
from tilegrad.compiled import Compiled
from tilegrad.devices.capabilities import Capabilities
from tilegrad.devices.companion import Companion
from tilegrad.devices.peak import Peak, described_peak
from tilegrad.devices.residency import Residency
from tilegrad.devices.session import Session, one_at_a_time
from tilegrad.devices.values import Array, FloatArrays, as_declared, bad_label
from tilegrad.errors import UserError
from tilegrad.targets import base as targets
from tilegrad.targets.base import Target

__all__ = [
    "Array",
    "Capabilities",
    "Device",
    "FloatArrays",
    "Session",
    "as_declared",
    "bad_label",
    "one_at_a_time",
    "unknown_device",
]


class Device(ABC):
    """`name` is the full device name; `kind` its family (host, sim, qemu, opencl, …)."""

    kind: ClassVar[str]
    capabilities: Capabilities

    def __init__(self, name: str, *, use_cache: bool = True) -> None:
        self.name = name
        self.use_cache = use_cache
        self._sessions: list[Session] = []
        self._claim = Claim(self.claim_of(name)) if self.capabilities.is_exclusive else None

    @classmethod
    @abstractmethod
    def names(cls) -> tuple[str, ...]:
        """The device names of this kind; where they cannot be found out, those that would be looked for.

        Asked only when they matter: it may look for hardware.
        """

    @classmethod
    @abstractmethod
    def target_of(cls, name: str) -> str:
        """The target that programs for this device are compiled for."""

    @classmethod
    @abstractmethod
    def missing(cls, name: str) -> str | None:
        """Why this device cannot be used here, with the package that brings what is missing; None if it can."""

    @classmethod
    def takes(cls, name: str) -> bool:
        """Whether this is the name of a device of this kind. One that can be configured takes more than `names` lists,
        and refuses what it cannot be."""
        return name in cls.names()

    @classmethod
    def chip_of(cls, name: str) -> Target:
        """The target, with as much of it as the device has."""
        return targets.get(cls.target_of(name))

    @classmethod
    def claim_of(cls, name: str) -> str:
        """What an exclusive device holds while it is open."""
        return name

    @classmethod
    def files_for(cls, name: str, compiled: Compiled) -> Mapping[str, bytes]:
        """The C project as this device builds it, by path."""
        del name
        return compiled.project.files

    @abstractmethod
    def _load(self, compiled: Compiled, residency: Residency) -> Session: ...

    @property
    def target_name(self) -> str:
        return self.target_of(self.name)

    @property
    def identity(self) -> str:
        """What tells this device from every other on this machine: `opencl:0` is not `opencl:1`."""
        return self.name

    @property
    def counters(self) -> tuple[str, ...]:
        return self.capabilities.counters

    def peak(self) -> Peak:
        """The most that the device can do: multiply-adds and bytes. One that does not know is refused, not guessed."""
        target = self.chip_of(self.name)
        if target.is_flat:
            raise UserError(
                f"device '{self.name}' does not know its peak",
                stage="measure",
                expected="a device that is described by cycles, or that is this machine",
                got=self.name,
                hint="such as sim:siracusa or host",
            )
        return described_peak(target)

    @classmethod
    def check_target(cls, name: str, target: Target) -> None:
        """Refuses another chip, and more memory than the chip has: only a simulator can have that."""
        own = cls.chip_of(name)
        if target.name != own.name:
            raise UserError(
                f"the program is compiled for target '{target.name}', not for device '{name}'",
                stage="load",
                expected=f"target '{own.name}'",
                got=f"target '{target.name}'",
                hint=f"compile with --device {name}",
            )
        if cls.capabilities.estimates_cycles:
            return
        if target.clusters > own.clusters:
            raise UserError(
                f"device '{name}' has fewer clusters than the program is for",
                stage="load",
                expected=f"at most {own.clusters}",
                got=str(target.clusters),
                hint=f"compile with --device {name}, or for target.with_clusters({own.clusters})",
            )
        for memory in target.larger_than(own):
            raise UserError(
                f"device '{name}' has less {memory.name} than the program may use",
                stage="target",
                expected=f"at most {own.memory(memory.name).capacity_bytes} bytes",
                got=f"{memory.capacity_bytes} bytes",
                hint=f"a smaller --{memory.name.lower()}; only a simulated chip (sim:{own.name}) can have more",
            )

    def load(self, compiled: Compiled, residency: Residency | None = None) -> Session:
        self.check_target(self.name, compiled.target)
        residency = residency or compiled.residency
        residency.checked(compiled.program)
        session = self._load(compiled, residency)
        session.counters = self.counters
        session.takes_ahead = self.capabilities.takes_ahead
        if compiled.program.is_fused:
            session._companion = Companion(compiled, self.load)
        self._sessions.append(session)
        return session

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        try:
            while self._sessions:
                self._sessions.pop().close()
        finally:
            if self._claim is not None:
                self._claim.release()


def unknown_device(name: str, known: Sequence[str]) -> UserError:
    near = get_close_matches(name, known, n=1, cutoff=0.4)
    return UserError(
        f"there is no device '{name}'",
        stage="device",
        expected=" or ".join(known),
        got=name,
        hint=f"did you mean '{near[0]}'?" if near else "`tilegrad devices` lists them",
    )
