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
    for folder in folders:
        remove_folder(folder)


if __name__ == "__main__":
    main()
