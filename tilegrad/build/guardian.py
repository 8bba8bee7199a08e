"""Ends what a process has started when that process is killed. A program of its own, which imports nothing of ours.

SIGKILL lets nobody clean up. So the first tool or program that tilegrad starts gets a guardian, which reads lines from
a pipe that tilegrad alone can write to: `+group N` and `-group N` for process groups that begin and end, `+folder PATH`
and `-folder PATH` for temporary folders. When the pipe ends, for whatever reason, it ends the groups and removes the
folders that are left, and itself.
"""

from __future__ import annotations

import os
import signal
import stat
import sys

FOLDER_PREFIX = "tilegrad-"


def follow(lines: object) -> tuple[set[int], set[bytes]]:
    """What is left of groups and folders at the end of the lines."""
    groups: set[int] = set()
    folders: set[bytes] = set()
    for line in lines:  # type: ignore[attr-defined]
        word, _, rest = line.rstrip(b"\n").partition(b" ")
        if word == b"+group":
            groups.add(int(rest))
        elif word == b"-group":
            groups.discard(int(rest))
        elif word == b"+folder":
            folders.add(rest)
        elif word == b"-folder":
            folders.discard(rest)
    return groups, folders


def end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        return


def end_tools_of(folders: set[bytes]) -> None:
    """Tools that were started in the very moment of the kill, before their group was told of.

    They are known by where they may put temporary files, which no other process is told.
    """
    settings = {b"TMPDIR=" + folder for folder in folders}
    if not settings:
        return
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:  # noqa: PTH112, PTH208 - starts sooner
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:  # noqa: PTH123
                if settings.intersection(file.read().split(b"\0")):
                    os.kill(int(name), signal.SIGKILL)
        except OSError:
            continue


def remove_folder(path: bytes) -> None:
    """Only a real folder with our prefix."""
    try:
        is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return
    if not is_folder or not os.path.basename(path).startswith(os.fsencode(FOLDER_PREFIX)):  # noqa: PTH119
        return
    import shutil  # slow to import, and needed at the very end only

    shutil.rmtree(path, ignore_errors=True)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups, folders = follow(sys.stdin.buffer)
    for group in groups:
        end_group(group)
    end_tools_of(folders)
    for folder in folders:
        remove_folder(folder)


if __name__ == "__main__":
    main()
