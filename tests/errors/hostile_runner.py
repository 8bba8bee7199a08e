"""Runs tilegrad on many files, each in a process of its own with bounds, without starting Python anew for each.

`python -m tests.errors.hostile_runner COMMANDS.json` reads command lines and prints one line of JSON for each:
its exit status (negative for a signal), what it said, its processor time and its largest resident memory. There is no
compiler in its PATH: these models are about reading and planning.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import traceback
from pathlib import Path

from tilegrad.cli import main

CPU_SECONDS = 60
ADDRESS_BYTES = 4 * 2**30


def run(arguments: list[str], folder: Path) -> dict[str, object]:
    """As the `tilegrad` command does, in a child."""
    said, shown = folder / "stderr", folder / "stdout"
    child = os.fork()
    if child == 0:
        status = 70
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
            for path, stream in ((shown, 1), (said, 2)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
            status = main(arguments)
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    _, ended, usage = os.wait4(child, 0)
    return {
        "status": os.waitstatus_to_exitcode(ended),
        "stderr": said.read_text(errors="replace"),
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "resident_bytes": usage.ru_maxrss * 1024,
    }


if __name__ == "__main__":
    commands: list[list[str]] = json.loads(Path(sys.argv[1]).read_text())
    with tempfile.TemporaryDirectory() as empty:
        os.environ["PATH"] = empty
        for command in commands:
            print(json.dumps(run(command, Path(empty))), flush=True)
