"""In the place of Kalray's tools: this machine's compiler, and programs that are started as they are. They show that
tilegrad asks for what docs/mppa.md says; what the real tools make of it they do not show.

`python -m tests.devices.mppa_stand_ins FOLDER` makes them and prints what to set.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tilegrad.devices.mppa import COMPILER, RUNNERS, VARIABLE

WINDOW_BYTES = 1 << 20


def make_stand_ins(folder: Path) -> None:
    """Tools in `tools`, the card's memory in `ddr`; what the compiler and the runners are told is in two text files."""
    tools = folder / "tools"
    tools.mkdir(parents=True)
    compiler = shutil.which("gcc") or shutil.which("cc")
    scripts = {
        COMPILER: (
            f"open({str(folder / 'built.txt')!r}, 'a').write(' '.join(sys.argv) + chr(10))\n"
            "own = [a for a in sys.argv[1:] if not a.startswith(('-march=kv3', '-Tmppadcos', '-Wl,--defsym=MPPA'))]\n"
            f"os.execv({compiler!r}, ['cc', *('-O1' if a == '-O3' else a for a in own)])"
        ),
        **{
            runner.tool: (
                f"open({str(folder / 'asked.txt')!r}, 'a').write(' '.join(sys.argv) + chr(10))\n"
                "program = sys.argv[-1].removeprefix('--exec-file=Cluster0:')\n"
                "os.execv(program, [program])"
            )
            for runner in RUNNERS.values()
        },
    }
    for name, body in scripts.items():
        (tools / name).write_text(f"#!{sys.executable}\nimport os, sys\n{body}\n", encoding="utf-8")
        (tools / name).chmod(0o755)
    (folder / "ddr").write_bytes(bytes(WINDOW_BYTES))


if __name__ == "__main__":
    where = Path(sys.argv[1]).absolute()
    make_stand_ins(where)
    print(f"export PATH={where / 'tools'}:$PATH {VARIABLE}={where / 'ddr'}")
