"""Opens what a user names, if it is a regular file: a FIFO or a device would be waited for, or read without end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from tilegrad.errors import UserError

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: Path, *, stage: str) -> BinaryIO:
    """For reading. Links are followed. Anything but a regular file is a UserError, or the OSError that `open` raises.

    A device is not even opened, since that alone may do something. What was opened is looked at again: it may have
    been exchanged meanwhile.
    """
    real = os.path.realpath(path)
    _check(os.lstat(real).st_mode, path, stage)
    descriptor = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check(os.fstat(descriptor).st_mode, path, stage)
    except BaseException:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def _check(mode: int, path: Path, stage: str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise UserError(
            f"'{path}' is not a regular file",
            stage=stage,
            expected="a regular file",
            got=_KINDS.get(stat.S_IFMT(mode), "something else"),
        )
