"""Devices for tests: one whose memory is a bytearray, so that the contract's own checks can be tested alone."""

from __future__ import annotations

from typing import Any

from tilegrad.compiled import Compiled
from tilegrad.devices.accelerator import AcceleratorDevice
from tilegrad.devices.base import Capabilities, Session
from tilegrad.devices.null import NullSession
from tilegrad.devices.residency import Residency


class MemoryDevice(AcceleratorDevice):
    """Runs nothing; `raw_bytes` is what the raw operations hold, counted apart from the contract's own figure."""

    kind = "memory"
    capabilities = Capabilities(runs=False, counters=(), has_process=False, is_exclusive=True)

    def __init__(self, name: str = "memory:0", *, use_cache: bool = True) -> None:
        super().__init__(name, use_cache=use_cache)
        self.raw_bytes = 0

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return ("memory:0", "memory:1")

    @classmethod
    def target_of(cls, name: str) -> str:
        return "host"

    @classmethod
    def missing(cls, name: str) -> str | None:
        return "it is switched off" if name == "memory:1" else None

    def _load(self, compiled: Compiled, residency: Residency) -> Session:
        return NullSession(compiled, residency)

    def _allocate(self, size_bytes: int) -> Any:
        self.raw_bytes += size_bytes
        return bytearray(b"\xa5" * size_bytes)

    def _free(self, buffer: Any) -> None:
        self.raw_bytes -= len(buffer)

    def _copy_to(self, buffer: Any, offset: int, data: memoryview) -> None:
        buffer[offset : offset + data.nbytes] = data

    def _copy_from(self, buffer: Any, offset: int, size_bytes: int) -> bytes:
        return bytes(buffer[offset : offset + size_bytes])

    def _fill_zero(self, buffer: Any, offset: int, size_bytes: int) -> None:
        buffer[offset : offset + size_bytes] = bytes(size_bytes)
