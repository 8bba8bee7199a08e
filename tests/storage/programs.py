"""Generated C with tg_save and tg_load, and power.c in the place of its harness."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import tilegrad as tg
from tests.support.projects import CONTRACT_FLAGS, toolchain
from tilegrad.build.folder import write_files
from tilegrad.build.toolchain import build
from tilegrad.compiled import Compiled

POWER = (Path(__file__).parent / "power.c").read_bytes()
SECONDS = 280.0


@cache
def compiled_for(target: str = "host", storage: str = "64K") -> Compiled:
    recipe = tg.Recipe(optimizer=tg.Adam(), accumulate=1)
    return tg.compile("simplemlp", recipe, target=target, storage=storage, weights_as_c=True)


def power_program(
    folder: Path, target: str = "host", flags: tuple[str, ...] = CONTRACT_FLAGS, **changes: tuple[bytes, bytes]
) -> Path:
    """`changes` puts other text into a file, named without its ending: faults that a test must find."""
    files = dict(compiled_for(target).project.files)
    files["main.c"] = POWER
    files["image.c"] = files.pop("weights.c")  # which a build would leave out
    for name, (old, new) in changes.items():
        assert files[f"{name}.c"].count(old) == 1, f"{name}.c is not what the test expects"
        files[f"{name}.c"] = files[f"{name}.c"].replace(old, new)
    write_files(folder, files)
    return build(toolchain("gcc", flags), folder, files, "power")


def run(program: Path, *arguments: object) -> tuple[int, str]:
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(
        command, cwd=program.parent, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    return done.returncode, done.stdout + done.stderr


def figures(text: str) -> dict[str, str]:
    """`status 0 minibatches 5 …` as a dictionary."""
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))
