"""One holder at a time of something on this machine, across processes."""

from __future__ import annotations

import fcntl
import os
import re

from tilegrad.build.tools import temporary_folder
from tilegrad.errors import DeviceError


class Claim:
    """Holds a device until `release`, or until the process ends: the lock is the kernel's, so none is left behind."""

    def __init__(self, what: str) -> None:
        path = temporary_folder() / f"tilegrad-{re.sub(r'[^0-9a-zA-Z]+', '-', what)}.lock"
        busy = DeviceError(
            f"device '{what}' is busy",
            stage="device",
            got="another process has opened it",
            hint="wait for it to end, or end it",
        )
        try:
            # Read-only, so that a lock another user made can be asked for too.
            self._file = os.open(path, os.O_RDONLY | (0 if path.exists() else os.O_CREAT), 0o644)
        except OSError as error:
            raise DeviceError(f"cannot lock '{path}': {error.strerror}", stage="device") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise busy from error

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
