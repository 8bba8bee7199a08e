"""Puts a project in the place of the one that is there, around what the user has in the same folder.

The usual way: everything the folder will hold is put together beside it, the user's files as further names (hard links)
of the same files, and then the two folders trade places in one step. At every moment the folder is the old one or the
new one, and has all of the user's files.

Where that cannot be done (a mount point, a file system without links or exchange, a shell that stands in the folder and
would be left in the old one), ours are replaced one by one; copies and a journal bring the old state back if that fails
in the middle, or by the next run if it was killed there.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath

from tilegrad.build import written
from tilegrad.build.changes import Changes
from tilegrad.build.exchange import exchange
from tilegrad.build.ownership import digest_of, is_unchanged, read_listing
from tilegrad.build.signals import uninterrupted
from tilegrad.build.staging import JOURNAL, NEW, OLD, Staging


class CannotExchangeError(Exception):
    """This folder has to be written in place; nothing has changed."""


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes below an existing folder; paths are ours, never a user's."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


# ---- by exchange


def replace_whole(folder: Path, staging: Staging, files: Mapping[str, bytes], changes: Changes, said: Path) -> None:
    write_files(staging.new, {name: files[name] for name in changes.written})
    try:
        linked = _link(folder, staging.new, changes)
    except OSError as error:
        raise CannotExchangeError from error
    with uninterrupted():
        try:
            exchange(staging.new, folder)
        except OSError as error:
            raise CannotExchangeError from error
        written.add(said)
        staging.is_needed = True
        _catch_up(staging.new, folder, changes.ours, linked)
        staging.is_needed = False


def _link(folder: Path, new: Path, changes: Changes) -> dict[str, int]:
    """Gives `new` all that `folder` has and that is not written anew. Returns the inode of each file.

    There may be thousands, of a repository say, so paths are plain strings here.
    """
    device = folder.stat().st_dev
    linked: dict[str, int] = {}
    left_out = changes.written | changes.removed

    def visit(relative: str) -> bool:
        """Whether anything of the folder remains."""
        has_any = has_rest = False
        with os.scandir(os.path.join(folder, relative)) as entries:  # noqa: PTH118
            for entry in entries:
                name = f"{relative}{entry.name}"
                has_any = True
                if name in left_out:
                    continue
                target = os.path.join(new, name)  # noqa: PTH118
                if entry.is_dir(follow_symlinks=False):
                    if entry.stat(follow_symlinks=False).st_dev != device:
                        raise OSError(errno.EXDEV, f"'{name}' is a mount point")
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(target)  # noqa: PTH102
                    has_rest = visit(f"{name}/") or has_rest
                else:
                    os.link(entry.path, target, follow_symlinks=False)
                    linked[name] = entry.inode()
                    has_rest = True
        if relative and has_any and not has_rest and not any((new / relative).iterdir()):
            (new / relative).rmdir()  # it held nothing but what is no longer made
            return False
        _copy_facts(folder / relative, new / relative)
        return True

    visit("")
    os.utime(new)
    return linked


def _copy_facts(old: Path, new: Path) -> None:
    """Owner, permissions, attributes and times of a folder."""
    before, after = old.stat(), new.stat()
    if (before.st_uid, before.st_gid) != (after.st_uid, after.st_gid):
        os.chown(new, before.st_uid, before.st_gid)
    shutil.copystat(old, new)


def _files_below(folder: Path) -> Iterator[tuple[str, int]]:
    """All but folders: paths, and inodes."""

    def visit(relative: str) -> Iterator[tuple[str, int]]:
        with os.scandir(os.path.join(folder, relative)) as entries:  # noqa: PTH118
            found = list(entries)
        for entry in found:
            name = f"{relative}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from visit(f"{name}/")
            else:
                yield name, entry.inode()

    yield from visit("")


def _catch_up(old: Path, folder: Path, ours: Collection[str], linked: Mapping[str, int]) -> None:
    """What others did in the old folder while the new one was put together is done in the new one too."""
    found = set()
    for name, inode in _files_below(old):
        found.add(name)
        if name not in ours and linked.get(name) != inode:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(old / name, folder / name)
    for name, inode in linked.items():
        if name not in found and name not in ours and _inode(folder / name) == inode:
            (folder / name).unlink()


def _inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None


# ---- in place


def replace_in_place(folder: Path, staging: Staging, files: Mapping[str, bytes], changes: Changes, said: Path) -> None:
    write_files(staging.new, {name: files[name] for name in changes.written})
    there = sorted(name for name in changes.written | changes.removed if os.path.lexists(folder / name))
    for name in there:
        (staging.old / name).parent.mkdir(parents=True, exist_ok=True)
        _copy(folder / name, staging.old / name)
    added = {name: digest_of(staging.new, name) for name in sorted(changes.written) if name not in there}
    partial = staging.journal.with_suffix(".partial")
    partial.write_text(json.dumps({"added": added, "there": there}))
    with uninterrupted():
        partial.rename(staging.journal)
        try:
            for name in sorted(changes.removed):
                (folder / name).unlink()
            for name in sorted(changes.written):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(staging.new / name, folder / name)
        except BaseException:
            staging.is_needed = True
            roll_back(staging.path, folder)
            staging.is_needed = False
            raise
        staging.journal.unlink()  # from here on, the new state is what counts
        written.add(said)
        _remove_empty(folder, changes.removed)


def _copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def roll_back(staging: Path, folder: Path) -> None:
    """Brings back what the journal says was there. Ours alone are named in it; doing it twice does no harm."""
    document = json.loads((staging / JOURNAL).read_text())
    for name, digest in document["added"].items():
        if _stays_below(name) and digest is not None and digest_of(folder, name) == digest:
            (folder / name).unlink()
    for name in document["there"]:
        if _stays_below(name) and os.path.lexists(staging / OLD / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(staging / OLD / name, folder / name)
    _remove_empty(folder, [name for name in document["added"] if _stays_below(name)])
    (staging / JOURNAL).unlink()


def _stays_below(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def _remove_empty(folder: Path, names: Collection[str]) -> None:
    """Folders that held nothing but these files."""
    parents = {str(parent) for name in names for parent in PurePosixPath(name).parents[:-1]}
    for parent in sorted(parents, key=len, reverse=True):
        with contextlib.suppress(OSError):
            (folder / parent).rmdir()


# ---- after a process was killed


def put_back(staging: Path, output: Path, has_changed_places: bool) -> bool:
    """Before a staging folder goes: ends what was half done, and takes out what has no other name.

    False where that was not possible, and the folder must stay.
    """
    try:
        if (staging / JOURNAL).exists():
            roll_back(staging, output)
        if has_changed_places and output.is_dir():
            _rescue(staging / NEW, output)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def _rescue(old: Path, folder: Path) -> None:
    """Of a folder that has been replaced: files of the user's that came into it too late to get into the new one."""
    listing = read_listing(old)
    for name, _ in list(_files_below(old)):
        is_ours = listing is not None and name in listing and is_unchanged(old, name, listing)
        facts = (old / name).lstat()
        is_only_name = facts.st_nlink == 1 or stat.S_ISLNK(facts.st_mode)
        if is_ours or not is_only_name or os.path.lexists(folder / name):
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(old / name, folder / name)
