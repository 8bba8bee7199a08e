"""The temporary folder that a program is built and run in. It goes with its session, unless the run failed."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tilegrad.errors import DeviceError

PREFIX = "tilegrad-"
FAILURE_FILE = "failure.txt"
KEPT_FAILURES = 16


class Workspace:
    """A folder of its own. `close` removes it; after `keep` it stays, and says why in failure.txt."""

    def __init__(self) -> None:
        try:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        except OSError as error:
            raise DeviceError(f"there is no place for temporary files: {error.strerror}", stage="build") from error
        self._is_kept = False

    def keep(self, reason: str) -> None:
        """For looking at later. The oldest of many failures make room."""
        self._is_kept = True
        with contextlib.suppress(OSError):
            (self.path / FAILURE_FILE).write_text(reason + "\n", encoding="utf-8")
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
        if not self._is_kept:
            shutil.rmtree(self.path, ignore_errors=True)


def _prune(folder: Path) -> None:
    """Other processes may do the same at the same time: what is gone already is fine."""
    dated = []
    for failure in folder.glob(f"{PREFIX}*/{FAILURE_FILE}"):
        with contextlib.suppress(OSError):
            dated.append((failure.stat().st_mtime, failure.parent))
    for _, old in sorted(dated)[:-KEPT_FAILURES]:
        shutil.rmtree(old, ignore_errors=True)
