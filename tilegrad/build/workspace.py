"""The temporary folder that a program is built and run in. It goes with its session, unless the run failed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tilegrad.build import watch
from tilegrad.build.guardian import FOLDER_PREFIX
from tilegrad.build.signals import uninterrupted
from tilegrad.errors import DeviceError

PREFIX = FOLDER_PREFIX
FAILURE_FILE = "failure.txt"
LOCK_FILE = ".tilegrad-in-use"
KEPT_FAILURES = 16
_swept: set[str] = set()


class Workspace:
    """A folder of its own. `close` removes it; after `keep` it stays, and says why in failure.txt.

    Its owner has locked a file in it: a folder of ours that nobody has locked was left by a process that was killed.
    """

    def __init__(self) -> None:
        self._is_kept = False
        try:
            _sweep_once(tempfile.gettempdir())
            with uninterrupted():
                self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
                watch.folder_began(self.path)
                self._lock = _locked(self.path / LOCK_FILE)
        except OSError as error:
            raise DeviceError(f"there is no place for temporary files: {error.strerror}", stage="build") from error

    def keep(self, reason: str) -> None:
        """For looking at later. The oldest of many failures make room."""
        self._is_kept = True
        with contextlib.suppress(OSError):
            (self.path / FAILURE_FILE).write_text(reason + "\n", encoding="utf-8")
        watch.folder_ended(self.path)
        _prune(self.path.parent)

    @contextlib.contextmanager
    def kept_on_failure(self) -> Iterator[Path]:
        """A DeviceError keeps the folder and names it; whatever else ends the block early removes it."""
        try:
            yield self.path
        except DeviceError as error:
            self.keep(str(error))
            if error.hint is None:
                error.hint = f"the folder is '{self.path}'"
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with uninterrupted():
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None
            if not self._is_kept:
                shutil.rmtree(self.path, ignore_errors=True)
                watch.folder_ended(self.path)


def _locked(path: Path) -> int | None:
    """A locked file that appears locked, and stays so until the descriptor is closed, or the process has ended."""
    partial = path.with_name(path.name + "-to-be")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # a file system without locks: nobody may take this folder for abandoned
        os.close(descriptor)
        partial.unlink()
        return None
    partial.rename(path)
    return descriptor


def _sweep_once(folder: str) -> None:
    if folder not in _swept:
        _swept.add(folder)
        sweep(Path(folder))


def sweep(folder: Path) -> None:
    """Removes what killed processes of this user left, and failures apart from that nothing."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"{PREFIX}*"):
            if _is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_abandoned(path: Path) -> bool:
    try:
        facts = path.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or (path / FAILURE_FILE).exists():
            return False
        descriptor = os.open(path / LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _prune(folder: Path) -> None:
    """Other processes may do the same at the same time: what is gone already is fine."""
    dated = []
    for failure in folder.glob(f"{PREFIX}*/{FAILURE_FILE}"):
        with contextlib.suppress(OSError):
            dated.append((failure.stat().st_mtime, failure.parent))
    for _, old in sorted(dated)[:-KEPT_FAILURES]:
        shutil.rmtree(old, ignore_errors=True)
