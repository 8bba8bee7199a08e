"""Workers of a Dask cluster as one device: shares are computed there, updates are made here."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tilegrad.compiled import Compiled
from tilegrad.devices.base import Capabilities, Device, Session
from tilegrad.devices.registry import device_kind, open_device
from tilegrad.devices.residency import Residency
from tilegrad.errors import UserError
from tilegrad.parallel.dask_cluster import check_scheduler, open_cluster
from tilegrad.parallel.dask_pool import DaskPool
from tilegrad.parallel.folder import device_files
from tilegrad.parallel.form import form_of
from tilegrad.parallel.session import ParallelSession, expect_here, loaded_transfer
from tilegrad.parallel.shares import Moved
from tilegrad.parallel.specification import check_takes_part, parse_devices
from tilegrad.pipeline import unfused


class DaskGroup(Device):
    """`device` is what every worker starts, and what makes the updates here."""

    kind = "dask"
    capabilities = Capabilities()

    def __init__(self, device: str, scheduler: str, *, use_cache: bool = True) -> None:
        check_scheduler(scheduler)
        found = parse_devices(device)
        if found.is_several:
            raise UserError(
                "a scheduler has the workers that it has: each runs one device",
                stage="device",
                expected="one --device, such as host",
                got=device,
            )
        check_takes_part(found.first)
        self._device_name = device
        super().__init__(f"{device} on {scheduler}", use_cache=use_cache)
        with ExitStack() as undo:
            self._lead = undo.enter_context(open_device(device, use_cache=use_cache))
            self._client: Any = undo.enter_context(open_cluster(scheduler))
            self._undo = undo.pop_all()

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return ()

    @classmethod
    def target_of(cls, name: str) -> str:
        device = name.partition(" on ")[0]
        return device_kind(device).target_of(device)

    @classmethod
    def missing(cls, name: str) -> str | None:
        device = name.partition(" on ")[0]
        return device_kind(device).missing(device)

    def load(self, compiled: Compiled, residency: Residency | None = None) -> Session:
        compiled = unfused(compiled)
        device_kind(self._device_name).check_target(self._device_name, compiled.target)
        session = self._load(compiled, expect_here(compiled, residency or compiled.residency))
        self._sessions.append(session)
        return session

    def _load(self, compiled: Compiled, residency: Residency) -> Session:
        form = form_of(compiled.program)
        files = device_files(self._device_name, compiled, use_cache=self.use_cache)
        lead = self._lead.load(compiled)
        moved = Moved(self._device_name, compiled.target.name, loaded_transfer(lead))
        _, initial = lead.exchange(None, None, {}, form.resident)
        pool = DaskPool(self._client, self._device_name, files, form, initial, moved)
        return ParallelSession(compiled, residency, form, lead, moved, pool)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._undo.close()
