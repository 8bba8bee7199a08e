"""The device that runs nothing: programs are compiled and checked, which needs no compiler and no hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilegrad.compiled import Compiled
from tilegrad.devices.base import Array, Capabilities, Device, Session
from tilegrad.devices.registry import register
from tilegrad.devices.residency import Residency
from tilegrad.errors import UserError
from tilegrad.ir.program import StateTensor


def _nothing_runs() -> UserError:
    return UserError(
        "device 'null' runs nothing, so it has no results",
        stage="run",
        hint="choose another device: `tilegrad devices` lists them",
    )


class NullSession(Session):
    """Takes inputs after checking them, and refuses to give numbers."""

    def _place(self, entry: str, inputs: Sequence[Array | None]) -> None:
        pass

    def _call(self, entry: str, inputs: Sequence[Array | None], wanted: Sequence[int]) -> list[Array]:
        raise _nothing_runs()

    def _fetch(self, entry: str, wanted: Sequence[int]) -> list[Array]:
        raise _nothing_runs()

    def _count(self, entry: str) -> Mapping[str, float]:
        raise _nothing_runs()

    def _read(self, tensor: StateTensor) -> Array:
        raise _nothing_runs()

    def _write(self, tensor: StateTensor, value: Array) -> None:
        pass

    def close(self) -> None:
        super().close()


@register
class NullDevice(Device):
    kind = "null"
    capabilities = Capabilities(runs=False, counters=(), has_process=False)

    def __init__(self, name: str = "null", *, use_cache: bool = True) -> None:
        super().__init__(name, use_cache=use_cache)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return ("null",)

    @classmethod
    def target_of(cls, name: str) -> str:
        return "host"

    @classmethod
    def missing(cls, name: str) -> str | None:
        return None

    def _load(self, compiled: Compiled, residency: Residency) -> Session:
        return NullSession(compiled, residency)
