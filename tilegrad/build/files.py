"""Result files: each appears complete or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from tilegrad.build import written
from tilegrad.build.replace import put_back
from tilegrad.build.signals import uninterrupted
from tilegrad.build.staging import Staging, claimed, sweep
from tilegrad.errors import UserError

_CONTENT = "content"


def write_file(path: Path, content: bytes) -> None:
    """Replaces `path` by one rename. A device, pipe or link target such as /dev/stderr is written to, not replaced."""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            _replace(Path(os.path.realpath(path)), content, path)
    except OSError as error:
        raise cannot_write(path, error) from error


def _replace(path: Path, content: bytes, said: Path) -> None:
    with claimed(path.parent) as is_alone:
        if is_alone:
            sweep(path.parent, put_back)
        staging = Staging(path.parent, path.name)
        try:
            made = staging.new / _CONTENT
            made.write_bytes(content)
            with uninterrupted():
                os.replace(made, path)
                written.add(said)
        finally:
            staging.remove()


def cannot_write(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write '{path}': {error.strerror or error}", stage="write")


def check_writable(path: Path) -> None:
    """Refuses early what `write_file` would refuse after minutes of work. Touches nothing."""
    try:
        _check(path)
    except OSError as error:
        raise cannot_write(path, error) from error


def _check(path: Path) -> None:
    if path.is_dir():
        raise UserError(f"cannot write '{path}': Is a directory", stage="write")
    if path.exists() and not path.is_file():
        return
    parent = Path(os.path.realpath(path)).parent
    if not parent.is_dir():
        reason = "Not a directory" if parent.exists() else "No such file or directory"
        raise UserError(f"cannot write '{path}': {reason}", stage="write")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"cannot write '{path}': Permission denied", stage="write")
