"""Several devices as one: opened together, loaded with the same program each, closed together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from tilegrad.compiled import Compiled
from tilegrad.devices.base import Capabilities, Device, Session
from tilegrad.devices.registry import device_kind, open_device
from tilegrad.devices.residency import Residency
from tilegrad.errors import UserError
from tilegrad.parallel.form import fingerprint, form_of
from tilegrad.parallel.pool import LocalPool, Worker
from tilegrad.parallel.session import ParallelSession, expect_here, loaded_transfer
from tilegrad.parallel.shares import Engine, Moved
from tilegrad.parallel.specification import Specification, parse_devices
from tilegrad.pipeline import compile_model, unfused
from tilegrad.targets import base as targets


class DeviceGroup(Device):
    """`devices[0]` makes the updates, and what is compiled for its target stands for the whole. `programs` are for
    other targets, by name; what is not among them is compiled when it is loaded."""

    kind = "several"
    capabilities = Capabilities()

    def __init__(
        self,
        specification: Specification,
        devices: Sequence[Device],
        *,
        use_cache: bool = True,
        programs: Mapping[str, Compiled] | None = None,
    ) -> None:
        self.capabilities = Capabilities(estimates_cycles=devices[0].capabilities.estimates_cycles)
        super().__init__(specification.text, use_cache=use_cache)
        self.specification = specification
        self.devices = tuple(devices)
        self.programs = dict(programs or {})
        self._pools: list[LocalPool] = []

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return ()

    @classmethod
    def target_of(cls, name: str) -> str:
        first = parse_devices(name).first
        return device_kind(first).target_of(first)

    @classmethod
    def missing(cls, name: str) -> str | None:
        found = (device_kind(each).missing(each) for each in parse_devices(name).kinds)
        return next((reason for reason in found if reason is not None), None)

    def load(self, compiled: Compiled, residency: Residency | None = None) -> Session:
        compiled = unfused(compiled)
        device_kind(self.specification.first).check_target(self.specification.first, compiled.target)
        session = self._load(compiled, expect_here(compiled, residency or compiled.residency))
        self._sessions.append(session)
        return session

    def program_for(self, device: Device, compiled: Compiled) -> Compiled:
        """The same program for another target; one that is not the same is refused."""
        name = device.target_name
        if name == compiled.target.name:
            return compiled
        if name not in self.programs:
            options = replace(type(compiled.options)(), fuses_update=False)
            recipe = compiled.program.recipe
            self.programs[name] = compile_model(compiled.model, recipe, targets.get(name), options=options)
        expect_same(compiled, self.programs[name], device.name)
        return self.programs[name]

    def _load(self, compiled: Compiled, residency: Residency) -> Session:
        form = form_of(compiled.program)
        programs = [self.program_for(device, compiled) for device in self.devices]
        sessions: list[Session] = []
        with ExitStack() as undo:
            for device, program in zip(self.devices, programs, strict=True):
                sessions.append(undo.enter_context(device.load(program)))
            workers = [
                Worker(self._engine(i, session), Moved(device.name, device.target_name, loaded_transfer(session)))
                for i, (device, session) in enumerate(zip(self.devices, sessions, strict=True))
            ]
            pool = LocalPool(form, workers)
            made = ParallelSession(compiled, residency, form, sessions[0], workers[0].moved, pool)
            undo.pop_all()
        self._pools.append(pool)
        return made

    def _engine(self, number: int, session: Session) -> Engine:
        """What a device's thread computes shares on: its session, whose inputs were checked when they came."""
        del number
        return session

    def close(self) -> None:
        try:
            super().close()
        finally:
            for device in self.devices:
                device.close()
            for pool in self._pools:
                pool.join()


def expect_same(ours: Compiled, theirs: Compiled, device: str) -> None:
    if fingerprint(ours.program) != fingerprint(theirs.program):
        raise UserError(
            f"the program for device '{device}' is another one than for the first device",
            stage="load",
            expected=f"'{ours.name}' under one recipe, with the same initial weights on every device",
            got=f"'{theirs.name}', which computes or begins with something else",
        )


def open_devices(
    text: str, *, use_cache: bool = True, programs: Mapping[str, Compiled] | None = None
) -> Device:
    """What a text names: one device, or several as one. Use it as a context manager."""
    found = parse_devices(text)
    if not found.is_several:
        return open_device(found.first, use_cache=use_cache)
    with ExitStack() as undo:
        devices = [undo.enter_context(open_device(name, use_cache=use_cache)) for name in found.names]
        group = DeviceGroup(found, devices, use_cache=use_cache, programs=programs)
        undo.pop_all()
    return group
