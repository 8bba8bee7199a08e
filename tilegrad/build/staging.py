"""A hidden folder beside an output, in which that is made before it takes its place by one rename.

`PLACE/.tilegrad-HEX` holds `owner.json`, which says whose it is, and `new`, what is being made. Whoever uses one has
claimed the place it lies in. So one that is there while another process has the claim was left by a process that was
killed, and `sweep` takes it away. It never holds the only copy of anything that is not ours: files of the user's are in
it as further names of files that also have their own (see replace.py).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tilegrad.build.signals import uninterrupted
from tilegrad.errors import UserError

OWNER = "owner.json"
NEW = "new"
JOURNAL = "journal.json"
OLD = "old"
CLAIM_SECONDS = 60.0
_NAME = re.compile(r"\.tilegrad-[0-9a-f]{16}")
_WRITER = "tilegrad staging 1"
_POLL_SECONDS = 0.02
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF)


class Staging:
    """`new` is an empty folder to fill. `output` is the name that is written in the place, or `.` for all of it."""

    def __init__(self, place: Path, output: str) -> None:
        self.path = place / f".tilegrad-{secrets.token_hex(8)}"
        self.new = self.path / NEW
        self.old = self.path / OLD
        self.journal = self.path / JOURNAL
        self.is_needed = False
        """What it holds must outlive this process: an attempt to put something back has failed."""
        try:
            with uninterrupted():
                self.path.mkdir(0o700)
            self.new.mkdir(0o777)
            owner = {"written_by": _WRITER, "output": output, "inode": self.new.stat().st_ino}
            (self.path / OWNER).write_text(json.dumps(owner))
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        with uninterrupted():
            if not self.is_needed:
                remove_tree(self.path)


def remove_tree(path: Path) -> None:
    """Also what is below folders that may not be written to: copies of a user's may be among them."""
    shutil.rmtree(path, ignore_errors=True)
    if not os.path.lexists(path):
        return
    for folder, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            Path(folder).chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def claimed(place: Path) -> Iterator[bool]:
    """One process at a time writes into a place; others wait. False where the file system has no locks."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        yield _claim(descriptor, place)
    finally:
        os.close(descriptor)


def _claim(descriptor: int, place: Path) -> bool:
    end = time.monotonic() + CLAIM_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            if time.monotonic() > end:
                raise UserError(
                    f"cannot write to '{place}': another process has locked it for {CLAIM_SECONDS:g} s", stage="write"
                ) from error
        time.sleep(_POLL_SECONDS)


def sweep(place: Path, put_back: Callable[[Path, Path, bool], bool]) -> None:
    """Removes what killed processes left in a place that is claimed.

    `put_back(staging, output, has_changed_places)` first brings back what must not go; False keeps the folder.
    """
    try:
        names = [entry.name for entry in os.scandir(place) if _NAME.fullmatch(entry.name)]
    except OSError:
        return
    for name in names:
        path = place / name
        with contextlib.suppress(OSError):
            facts = path.lstat()
            if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
                continue
            owner = _owner(path)
            if owner is not None:
                output, inode = owner
                new = path / NEW
                has_changed_places = new.is_dir() and new.stat().st_ino != inode
                if put_back(path, place / output, has_changed_places):
                    remove_tree(path)
            elif _is_barely_begun(path):
                remove_tree(path)


def _owner(path: Path) -> tuple[str, int] | None:
    try:
        document = json.loads((path / OWNER).read_text())
        output, inode = document["output"], document["inode"]
        is_ours = document["written_by"] == _WRITER
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(output, str) or not isinstance(inode, int):
        return None
    is_name = output == "." or (output not in ("", "..") and "/" not in output and "\0" not in output)
    return (output, inode) if is_ours and is_name else None


def _is_barely_begun(path: Path) -> bool:
    """Killed before it said whose it is: there are at most an empty folder and an empty file."""
    names = {found.name for found in path.iterdir()}
    return (
        names <= {OWNER, NEW}
        and (NEW not in names or not any((path / NEW).iterdir()))
        and (OWNER not in names or (path / OWNER).lstat().st_size == 0)
    )
