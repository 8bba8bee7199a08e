"""Compiled objects, kept by content: what their key says is all they depend on.

Any number of processes may use one cache. Entries appear whole by a rename, carry a checksum, and may vanish at any
time: what cannot be taken is compiled again. Time of last use is the file's own, so that pruning needs no index.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from pathlib import Path

from tilegrad.sizes import parse_size

LIMIT_VARIABLE = "TILEGRAD_CACHE_LIMIT"
DEFAULT_LIMIT = "512M"
_PRUNED_TO = 0.8
_DIGEST_BYTES = hashlib.sha256().digest_size
_SUFFIX = ".o"
_ABANDONED_SECONDS = 3600.0


def cache_folder() -> Path | None:
    """Where objects are kept, or None where there is no place for them."""
    root = Path(os.environ.get("TILEGRAD_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser())
    folder = root / "tilegrad" / "objects"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def limit_bytes() -> int:
    return parse_size(LIMIT_VARIABLE, os.environ.get(LIMIT_VARIABLE) or DEFAULT_LIMIT, stage="build")


class ObjectCache:
    """The objects of one build: taken from `folder`, or compiled and kept there. `finish` keeps the limit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes()
        self._has_grown = False

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def take(self, key: str) -> bytes | None:
        """A cached object, or None where there is none or it is damaged: its checksum comes first."""
        try:
            kept = self._path(key).read_bytes()
        except OSError:
            return None
        digest, content = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
        if hashlib.sha256(content).digest() != digest:
            return None
        with contextlib.suppress(OSError):
            os.utime(self._path(key))
        return content

    def keep(self, key: str, content: bytes) -> None:
        """Appears whole or not at all; a cache that cannot be written is no obstacle."""
        self._has_grown = True
        try:
            with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as partial:
                try:
                    partial.write(hashlib.sha256(content).digest() + content)
                    partial.close()
                    os.replace(partial.name, self._path(key))
                except BaseException:
                    Path(partial.name).unlink()
                    raise
        except OSError:
            return

    def finish(self) -> None:
        if self._has_grown:
            prune(self.folder, self.limit_bytes)


def open_cache(use_cache: bool) -> ObjectCache | None:
    folder = cache_folder() if use_cache else None
    return None if folder is None else ObjectCache(folder)


def prune(folder: Path, limit_bytes: int) -> None:
    """Where the cache is larger than its limit, removes what was used longest ago, down to well below it.

    Two processes that prune at once remove the same oldest entries first, so little more goes than has to.
    """
    entries: list[tuple[float, int, str]] = []
    try:
        with os.scandir(folder) as found:
            for entry in found:
                with contextlib.suppress(OSError):
                    facts = entry.stat()
                    is_being_written = time.time() - facts.st_mtime < _ABANDONED_SECONDS
                    if entry.name.endswith(_SUFFIX) or not is_being_written:
                        entries.append((facts.st_mtime, facts.st_size, entry.path))
    except OSError:
        return
    total = sum(size for _, size, _ in entries)
    if total <= limit_bytes:
        return
    for _, size, path in sorted(entries):
        with contextlib.suppress(OSError):
            Path(path).unlink()
            total -= size
        if total <= _PRUNED_TO * limit_bytes:
            return
