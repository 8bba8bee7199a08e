"""Writes a folder so that it is either all there or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tilegrad.errors import UserError


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes below an existing folder; paths are ours, never a user's."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def check_folder(folder: Path) -> None:
    """Refuses what `write_folder` would refuse, before any work is done for it. Touches nothing.

    An existing folder is replaced only if tilegrad wrote it (it has a manifest.json) or it is empty.
    """
    folder = Path(os.path.abspath(folder))
    if folder.exists() and not folder.is_dir():
        raise UserError(f"cannot write the project to '{folder}': it is a file", stage="write")
    if folder.exists() and any(folder.iterdir()) and not (folder / "manifest.json").exists():
        raise UserError(
            f"cannot write the project to '{folder}': it is not empty and not a tilegrad project",
            stage="write",
            hint="choose a new folder with -o",
        )
    there = next(parent for parent in folder.parents if parent.exists())
    if not there.is_dir():
        raise UserError(f"cannot write to '{folder.parent}': '{there}' is a file", stage="write")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to '{folder.parent}': Permission denied", stage="write")


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Creates or replaces `folder`, atomically: content appears by one rename."""
    check_folder(folder)
    folder = Path(os.path.abspath(folder))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise UserError(f"cannot write to '{folder.parent}': {error.strerror}", stage="write") from error
    old = staging.with_name(staging.name + ".old")
    try:
        write_files(staging, files)
        staging.chmod(0o755)
        if folder.exists():
            # rename() replaces only empty folders, so the old one steps aside first.
            folder.rename(old)
        staging.rename(folder)
    except OSError as error:
        raise UserError(f"cannot write the project to '{folder}': {error.strerror}", stage="write") from error
    finally:
        if old.exists() and not folder.exists():
            old.rename(folder)  # interrupted between the two renames
        for leftover in (old, staging):
            shutil.rmtree(leftover, ignore_errors=True)
