"""Writes a project's folder so that it is either all there or not at all, and nothing of the user's in it is touched.

What is ours is what our manifest lists, unchanged (ownership.py); what is in the way is refused (changes.py); the new
state takes the place of the old one in one step (replace.py), made ready in a hidden folder beside it (staging.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from tilegrad.build import written
from tilegrad.build.changes import check_usable, find_changes
from tilegrad.build.ownership import with_listing
from tilegrad.build.replace import CannotExchangeError, put_back, replace_in_place, replace_whole, write_files
from tilegrad.build.signals import uninterrupted
from tilegrad.build.staging import Staging, claimed, sweep
from tilegrad.errors import UserError

__all__ = ["check_folder", "write_files", "write_folder"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_folder(folder: Path, names: Collection[str] = (), *, force: bool = False) -> None:
    """Refuses what `write_folder` would refuse, before any work is done for it. Writes nothing.

    An existing folder is used if it is empty or tilegrad wrote it. `names` are files that will be written for sure.
    """
    with _as_user_error(folder):
        real = _real(folder)
        with _tidied(real):
            check_usable(real, names, force=force)


def write_folder(folder: Path, files: Mapping[str, bytes], *, force: bool = False) -> None:
    """Creates `folder`, or replaces what is ours in it. Edited files of ours are refused unless `force`.

    Files that are not ours stay, and where one is in the way, that is refused in any case.
    """
    with _as_user_error(folder), _parents_of(_real(folder)) as real, _tidied(real):
        check_usable(real, (), force=force)
        _write(real, with_listing(files), force=force, said=folder)


@contextlib.contextmanager
def _tidied(folder: Path) -> Iterator[None]:
    """Claimed, and without what a process left that was killed while it wrote here."""
    with claimed(folder.parent) as is_alone:
        if is_alone:
            sweep(folder.parent, put_back)
        with claimed(folder) as is_alone_inside:
            if is_alone_inside:
                sweep(folder, put_back)
            yield


def _write(folder: Path, files: Mapping[str, bytes], *, force: bool, said: Path) -> None:
    changes = find_changes(folder, files, force=force)
    if not os.path.lexists(folder) or _can_be_moved(folder):
        try:
            with _staging(folder.parent, folder.name) as staging:
                if folder.is_dir() and any(folder.iterdir()):
                    replace_whole(folder, staging, files, changes, said)
                else:
                    _place(folder, staging, files, said)
            return
        except CannotExchangeError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in _FULL:
                raise error.__cause__ from error
    with _staging(folder, ".") as staging:
        replace_in_place(folder, staging, files, changes, said)


def _place(folder: Path, staging: Staging, files: Mapping[str, bytes], said: Path) -> None:
    """Where there is nothing, or an empty folder, which a rename replaces."""
    write_files(staging.new, files)
    with uninterrupted():
        try:
            if folder.is_dir():
                staging.new.chmod(folder.stat().st_mode & 0o7777)
            staging.new.rename(folder)
        except OSError as error:
            if folder.is_dir():
                raise CannotExchangeError from error
            raise
        written.add(said)


@contextlib.contextmanager
def _staging(place: Path, output: str) -> Iterator[Staging]:
    staging = Staging(place, output)
    try:
        yield staging
    finally:
        staging.remove()


def _can_be_moved(folder: Path) -> bool:
    """Not where it is mounted, where we may not change its parent, or where this process stands in it."""
    if folder.parent == folder or os.path.ismount(folder) or not os.access(folder.parent, os.W_OK | os.X_OK):
        return False
    try:
        return not Path.cwd().is_relative_to(folder)
    except OSError:
        return True


def _real(folder: Path) -> Path:
    """Links that the user put there lead to where the folder is."""
    return Path(os.path.realpath(folder))


@contextlib.contextmanager
def _parents_of(folder: Path) -> Iterator[Path]:
    """With the folders above it; those that were made go again if what follows fails."""
    made = []
    missing = [parent for parent in folder.parents if not parent.exists()]
    try:
        for parent in reversed(missing):
            with contextlib.suppress(FileExistsError):
                _make(parent, folder.parent)
                made.append(parent)
        yield folder
    except BaseException:
        for parent in reversed(made):
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise


def _make(parent: Path, wanted: Path) -> None:
    try:
        parent.mkdir()
    except FileExistsError:
        raise
    except OSError as error:
        raise UserError(f"cannot write to '{wanted}': {error.strerror}", stage="write") from error


@contextlib.contextmanager
def _as_user_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write the project to '{folder}': {error.strerror or error}", stage="write") from error
    except ValueError as error:
        if "null byte" not in str(error) and "null character" not in str(error):
            raise
        raise UserError(f"cannot write the project to {str(folder)!r}: {error}", stage="write") from error
