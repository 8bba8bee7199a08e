"""What is ours in a folder: what our manifest lists, as long as it still has the content that the manifest names.

The manifest is `manifest.json`. Many programs have one; ours is known by its `written_by`, and lists every other file
with its SHA-256. A listing is not trusted: a path that leads anywhere but to a regular file below the folder lists
nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

MANIFEST = "manifest.json"
WRITER = "tilegrad"
FORMAT = 1
_MAX_MANIFEST_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20


def with_listing(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files with a manifest that lists them; what else the manifest says comes first."""
    document = json.loads(files[MANIFEST]) if MANIFEST in files else {}
    document |= {
        "written_by": {"name": WRITER, "format": FORMAT},
        "files": {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files) if name != MANIFEST},
    }
    document["sha256"] = _own_digest(document)
    text = json.dumps(document, indent=1) + "\n"
    return dict(sorted({**files, MANIFEST: text.encode()}.items()))


def _own_digest(document: Mapping[str, Any]) -> str:
    """Of all that the manifest says but this; how it is laid out does not matter."""
    said = {key: value for key, value in document.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Listing:
    """`digests` are by path, the manifest's own apart. `is_edited`: somebody has changed what the manifest says."""

    digests: Mapping[str, str] = field(default_factory=dict)
    is_edited: bool = False

    def __contains__(self, name: str) -> bool:
        return name == MANIFEST or name in self.digests


def read_listing(folder: Path) -> Listing | None:
    """What our manifest in this folder lists; None where there is no manifest of ours."""
    content = read_plain(folder, MANIFEST, _MAX_MANIFEST_BYTES)
    try:
        document = json.loads(content) if content is not None else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("files"), dict):
        return None
    if document.get("written_by") != {"name": WRITER, "format": FORMAT}:
        return None
    digests = {
        name: digest for name, digest in document["files"].items() if isinstance(digest, str) and _is_plain(name)
    }
    return Listing(digests, document.get("sha256") != _own_digest(document))


def _is_plain(name: str) -> bool:
    """A relative path that stays below its folder, spelled in the one way we spell it."""
    path = PurePosixPath(name)
    return (
        str(path) == name
        and name not in (".", MANIFEST)
        and not path.is_absolute()
        and ".." not in path.parts
        and "\0" not in name
    )


def is_unchanged(folder: Path, name: str, listing: Listing) -> bool:
    """Whether the file that is there has the content that the manifest names."""
    if name == MANIFEST:
        return not listing.is_edited
    expected = listing.digests.get(name)
    return expected is not None and digest_of(folder, name) == expected


def digest_of(folder: Path, name: str) -> str | None:
    """None where there is no regular file, reached through real folders alone."""
    descriptor = _open_plain(folder, name)
    if descriptor is None:
        return None
    digest = hashlib.sha256()
    with os.fdopen(descriptor, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def read_plain(folder: Path, name: str, limit_bytes: int) -> bytes | None:
    descriptor = _open_plain(folder, name)
    if descriptor is None:
        return None
    with os.fdopen(descriptor, "rb") as file:
        return file.read() if os.fstat(descriptor).st_size <= limit_bytes else None


def _open_plain(folder: Path, name: str) -> int | None:
    """Follows no link below `folder`, and waits for no FIFO."""
    *parents, last = PurePosixPath(name).parts
    try:
        for i in range(len(parents)):
            if not stat.S_ISDIR((folder / Path(*parents[: i + 1])).lstat().st_mode):
                return None
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        path = folder.joinpath(*parents, last)
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        return os.open(path, flags)
    except OSError:
        return None
