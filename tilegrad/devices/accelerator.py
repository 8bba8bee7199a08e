"""Devices with a memory of their own. Handles, ownership and live bytes are checked here, once.

A concrete device supplies five raw operations on whatever it calls a buffer.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegrad.devices.base import Device
from tilegrad.errors import UserError

Bytes = bytes | bytearray | memoryview | npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class DeviceTensor:
    """Bytes in a device's memory. Two handles are the same only if they are one object.

    `buffer` is the device's own handle: for its kernels, while the tensor is alive.
    """

    device: AcceleratorDevice
    size_bytes: int
    buffer: Any

    def __repr__(self) -> str:
        return f"<{self.size_bytes} bytes on {self.device.identity}>"


class AcceleratorDevice(Device):
    """Adds memory to a device. Every operation is byte exact; a handle that cannot be used raises UserError."""

    def __init__(self, name: str, *, use_cache: bool = True) -> None:
        super().__init__(name, use_cache=use_cache)
        self._live: dict[int, DeviceTensor] = {}
        self._is_closed = False

    # ---- what a device supplies; ranges are checked already, and sizes are never 0

    @abstractmethod
    def _allocate(self, size_bytes: int) -> Any:
        """A buffer; DoesNotFit, with the budget, where there is no room."""

    @abstractmethod
    def _free(self, buffer: Any) -> None: ...

    @abstractmethod
    def _copy_to(self, buffer: Any, offset: int, data: memoryview) -> None:
        """Done when it returns."""

    @abstractmethod
    def _copy_from(self, buffer: Any, offset: int, size_bytes: int) -> bytes: ...

    @abstractmethod
    def _fill_zero(self, buffer: Any, offset: int, size_bytes: int) -> None: ...

    # ---- memory

    @property
    def live_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self._live.values())

    def allocate(self, size_bytes: int) -> DeviceTensor:
        """Uninitialised memory."""
        if self._is_closed:
            raise _misuse(f"device '{self.identity}' is closed", "an open device")
        if size_bytes < 0:
            raise _misuse("memory cannot have that size", "0 bytes or more", f"{size_bytes} bytes")
        tensor = DeviceTensor(self, size_bytes, self._allocate(size_bytes) if size_bytes else None)
        self._live[id(tensor)] = tensor
        return tensor

    def free(self, tensor: DeviceTensor) -> None:
        self._check(tensor)
        del self._live[id(tensor)]
        if tensor.size_bytes:
            self._free(tensor.buffer)

    def copy_to(self, tensor: DeviceTensor, data: Bytes, offset: int = 0) -> None:
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data if isinstance(data, np.ndarray) else data
        content = memoryview(flat)
        if self._check_range(tensor, offset, content.nbytes):
            self._copy_to(tensor.buffer, offset, content)

    def copy_from(self, tensor: DeviceTensor, size_bytes: int | None = None, offset: int = 0) -> bytes:
        """`size_bytes` from `offset` on; by default, all that follows."""
        size = tensor.size_bytes - offset if size_bytes is None else size_bytes
        return self._copy_from(tensor.buffer, offset, size) if self._check_range(tensor, offset, size) else b""

    def fill_zero(self, tensor: DeviceTensor, size_bytes: int | None = None, offset: int = 0) -> None:
        size = tensor.size_bytes - offset if size_bytes is None else size_bytes
        if self._check_range(tensor, offset, size):
            self._fill_zero(tensor.buffer, offset, size)

    def check_owned(self, tensor: DeviceTensor) -> None:
        """For kernels: raises unless the tensor is alive and of this device."""
        self._check(tensor)

    def close(self) -> None:
        """Frees what its sessions and its users left."""
        try:
            super().close()
        finally:
            for tensor in list(self._live.values()):
                self.free(tensor)
            self._is_closed = True

    def _check(self, tensor: DeviceTensor) -> None:
        if tensor.device is not self:
            raise _misuse(
                f"a tensor of '{tensor.device.identity}' cannot be used here",
                f"one that '{self.identity}' allocated since it was opened",
            )
        if self._live.get(id(tensor)) is not tensor:
            raise _misuse(f"{tensor!r} is freed already", "memory that is alive")

    def _check_range(self, tensor: DeviceTensor, offset: int, size_bytes: int) -> bool:
        """Whether there is anything to do."""
        self._check(tensor)
        if offset < 0 or size_bytes < 0 or offset + size_bytes > tensor.size_bytes:
            raise _misuse(
                "a copy leaves its memory",
                f"a range within 0 to {tensor.size_bytes}",
                f"{size_bytes} bytes from {offset} on",
            )
        return size_bytes > 0


def _misuse(message: str, expected: str, got: str | None = None) -> UserError:
    return UserError(message, stage="memory", expected=expected, got=got)
