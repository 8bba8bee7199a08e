"""Result files: each appears complete or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tilegrad.errors import UserError


def write_file(path: Path, content: bytes) -> None:
    """Replaces `path` by one rename. A device, pipe or link target such as /dev/stderr is written to, not replaced."""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.resolve().parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(partial).chmod(0o666 & ~_umask())
            os.replace(partial, path.resolve())
        finally:
            Path(partial).unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write '{path}': {error.strerror or error}", stage="write")


def check_writable(path: Path) -> None:
    """Refuses early what `write_file` would refuse after minutes of work. Touches nothing."""
    if path.is_dir():
        raise UserError(f"cannot write '{path}': Is a directory", stage="write")
    parent = path.resolve().parent
    if not parent.is_dir():
        reason = "Not a directory" if parent.exists() else "No such file or directory"
        raise UserError(f"cannot write '{path}': {reason}", stage="write")
    if not os.access(parent, os.W_OK | os.X_OK) and not os.access(path, os.W_OK):
        raise UserError(f"cannot write '{path}': Permission denied", stage="write")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
