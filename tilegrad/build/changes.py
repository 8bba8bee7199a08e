"""What writing a project into a folder would change there, and what stands in the way. Touches nothing."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tilegrad.build.ownership import MANIFEST, Listing, digest_of, is_unchanged, read_listing
from tilegrad.errors import UserError

SHOWN_NAMES = 12


@dataclass(frozen=True)
class Changes:
    """Paths below the folder. What is in none of these is the user's, or none of our business."""

    written: frozenset[str]
    kept: frozenset[str]
    """Ours, and already what it should be."""
    removed: frozenset[str]
    """Ours, unchanged, and no longer made."""

    @property
    def ours(self) -> frozenset[str]:
        return self.written | self.kept | self.removed


def find_changes(folder: Path, files: Mapping[str, bytes], *, force: bool) -> Changes:
    """UserError with the names where files that are not ours, or that were edited, are in the way."""
    listing = read_listing(folder) or Listing()
    removed = {
        name
        for name in listing.digests
        if name not in files and is_unchanged(folder, name, listing) and not _is_folder_of(name, files)
    }
    kept = {
        name
        for name, content in files.items()
        if name in listing and digest_of(folder, name) == hashlib.sha256(content).hexdigest()
    }
    check_conflicts(folder, [name for name in files if name not in kept], removed, listing, force=force)
    return Changes(frozenset(set(files) - kept), frozenset(kept), frozenset(removed))


def _is_folder_of(name: str, files: Collection[str]) -> bool:
    return any(other.startswith(f"{name}/") for other in files)


def check_conflicts(
    folder: Path, names: Iterable[str], removed: Collection[str], listing: Listing, *, force: bool
) -> None:
    foreign: list[str] = []
    edited: list[str] = []
    for name in names:
        blocker = _blocker(folder, name, removed)
        if blocker is not None:
            foreign.append(blocker)
        elif _kind(folder / name) is None:
            continue
        elif name not in listing or _kind(folder / name) != stat.S_IFREG:
            foreign.append(name)
        elif not is_unchanged(folder, name, listing) and not force:
            edited.append(name)
    if not foreign and not edited:
        return
    raise UserError(
        f"cannot write the project to '{folder}': files there would be lost",
        stage="write",
        expected="only files that tilegrad wrote there, as it wrote them",
        got="; ".join(
            f"{what}: {_listed(found)}"
            for what, found in (("not written by tilegrad", foreign), ("edited since", edited))
            if found
        ),
        hint="move them away, or choose a new folder with -o" if foreign else "--force overwrites what was edited",
    )


def _listed(names: Iterable[str]) -> str:
    found = sorted(set(names))
    more = f" and {len(found) - SHOWN_NAMES} more" if len(found) > SHOWN_NAMES else ""
    return ", ".join(f"'{name}'" for name in found[:SHOWN_NAMES]) + more


def _kind(path: Path) -> int | None:
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _blocker(folder: Path, name: str, removed: Collection[str]) -> str | None:
    """What is where a folder of ours should be: a file, or a link, which may lead anywhere."""
    for parent in reversed(PurePosixPath(name).parents[:-1]):
        kind = _kind(folder / parent)
        if kind is None or str(parent) in removed:
            return None
        if kind != stat.S_IFDIR:
            return str(parent)
    return None


def check_usable(folder: Path, names: Iterable[str], *, force: bool) -> None:
    """Refuses a folder that cannot be written to, or in which one of `names` would be lost, before any work is done."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise UserError(f"cannot write the project to '{folder}': it is a file", stage="write")
    if folder.is_dir():
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise UserError(f"cannot write the project to '{folder}': Permission denied", stage="write")
        _check_ours(folder, names, force=force)
        return
    there = next(parent for parent in folder.parents if parent.exists())
    if not there.is_dir():
        raise UserError(f"cannot write to '{folder.parent}': '{there}' is a file", stage="write")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to '{folder.parent}': Permission denied", stage="write")


def _check_ours(folder: Path, names: Iterable[str], *, force: bool) -> None:
    listing = read_listing(folder)
    if listing is not None:
        check_conflicts(folder, names, (), listing, force=force)
    elif any(folder.iterdir()):
        has_other = os.path.lexists(folder / MANIFEST)
        raise UserError(
            f"cannot write the project to '{folder}': it is not empty and not a tilegrad project",
            stage="write",
            got=f"a {MANIFEST} that is not tilegrad's, or of a version that did not list its files"
            if has_other
            else None,
            hint="choose a new folder with -o",
        )
