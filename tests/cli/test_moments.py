"""`compile` and `train` interrupted, killed or starved at random moments, into a folder that the user works in, too."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import start
from tilegrad.build.folder import check_folder
from tilegrad.build.ownership import MANIFEST, is_unchanged, read_listing

TOKEN = "TILEGRAD_TEST_RUN"
SECONDS_TO_END = 2.0
MINE = {"board.c": b"mine", ".git/HEAD": b"ref: main", ".git/objects/ab/cd": b"\0", "kernels/mine.c": b"mine"}


def processes_of(token: str) -> list[str]:
    """What a run has started, itself included: all inherit its environment. Zombies have none."""
    wanted = f"{TOKEN}={token}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return found


def soon(condition: Callable[[], object], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return bool(condition())
        time.sleep(0.01)
    return True


def facts_of_mine(folder: Path) -> dict[str, object]:
    found = {name: (folder / name).stat() for name in MINE}
    return {name: (s.st_ino, s.st_mode, s.st_mtime_ns, (folder / name).read_bytes()) for name, s in found.items()}


def seed_of_whole_project(folder: Path) -> int:
    """Fails unless exactly one whole project is there, beside what is mine."""
    listing = read_listing(folder)
    assert listing is not None and not listing.is_edited
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {*listing.digests, MANIFEST, *MINE}
    assert all(is_unchanged(folder, name, listing) for name in listing.digests)
    return int(json.loads((folder / MANIFEST).read_text())["recipe"]["seed"])


def starve(process: Any) -> None:
    """From now on, no file can grow: neither its nor those of what it starts."""
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))


ACTS: dict[str, Callable[[Any], None]] = {
    "interrupt": lambda process: process.send_signal(signal.SIGINT),
    "terminate": lambda process: process.send_signal(signal.SIGTERM),
    "kill": lambda process: process.send_signal(signal.SIGKILL),
    "kill group": lambda process: os.killpg(process.pid, signal.SIGKILL),
    "starve": starve,
}
RUNS = {
    "compile": ("compile", "simplemlp", "--device", "host"),
    "train": ("train", "simplemlp", "--device", "host", "--no-verify", "--steps", 2000),
    "train on the simulator": ("train", "simplemlp", "--no-verify", "--steps", 200),
}
COLD = 6
"""One run in so many finds no cache, and is stopped while compilers run."""
MOMENTS = 30


class Place:
    """A folder with an earlier project and the user's files, and a folder for temporary files."""

    def __init__(self, root: Path) -> None:
        self.out, self.scratch, self.cache = root / "work" / "out", root / "scratch", root / "cache"
        self.scratch.mkdir()

    def start(self, token: str, *line: object) -> Any:
        environment = {TOKEN: token, "TMPDIR": str(self.scratch), "TILEGRAD_CACHE": str(self.cache)}
        return start(*line, "-o", self.out, environment=environment)

    def beside(self) -> list[Path]:
        return [path for path in self.out.parent.iterdir() if path != self.out]


def end(process: Any) -> str:
    try:
        return str(process.communicate(timeout=120)[1])
    except subprocess.TimeoutExpired:
        process.kill()
        raise


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_whatever_happens_at_any_moment_nothing_is_lost_or_left(tmp_path: Path) -> None:
    place = Place(tmp_path)
    seconds = {}
    for name, line in [*RUNS.items(), *RUNS.items()]:  # the second time, objects are cached
        begin = time.monotonic()
        process = place.start(name, *line)
        assert end(process) == "" and process.returncode == 0
        seconds[name] = time.monotonic() - begin
    for name, content in MINE.items():
        (place.out / name).parent.mkdir(parents=True, exist_ok=True)
        (place.out / name).write_bytes(content)
    mine = facts_of_mine(place.out)
    generator = random.Random(9)
    seed_before = 0
    outcomes = []
    for moment in range(MOMENTS):
        name, act = list(RUNS)[moment % len(RUNS)], list(ACTS)[moment % len(ACTS)]
        cold = ("--no-cache",) if moment % COLD == 0 else ()
        delay = generator.uniform(0.0, 1.05 * seconds[name]) + (generator.uniform(0.0, 2.0) if cold else 0.0)
        what = f"moment {moment}: {name}, {act} after {delay:.3f} s"
        process = place.start(str(moment), *RUNS[name], *cold, "--seed", moment + 1)
        time.sleep(delay)
        ACTS[act](process)
        words = end(process)
        assert soon(lambda token=str(moment): not processes_of(token), SECONDS_TO_END), (  # type: ignore[misc]
            what,
            processes_of(str(moment)),
        )
        assert facts_of_mine(place.out) == mine, what
        seed = seed_of_whole_project(place.out)
        assert seed in (seed_before, moment + 1), what
        left = place.beside()
        assert len(left) <= act.startswith("kill") and all(path.name.startswith(".") for path in left), (what, left)
        if act != "starve":  # what a failed compiler was given stays, to be looked at
            assert list(place.scratch.iterdir()) == [], what
            assert "Traceback" not in words or delay < 0.5, (what, words)
        elif process.returncode:
            assert process.returncode in (2, 3), (what, process.returncode, words)
        check_folder(place.out)
        assert place.beside() == [] and facts_of_mine(place.out) == mine, what
        outcomes.append((process.returncode, seed == moment + 1))
        seed_before = seed
    assert end(place.start("last", *RUNS["compile"], "--seed", 1000)) == ""
    assert seed_of_whole_project(place.out) == 1000 and facts_of_mine(place.out) == mine
    kept = [path for path in place.scratch.iterdir() if not (path / "failure.txt").exists()]
    assert kept == [] and place.beside() == []
    assert len({status for status, _ in outcomes}) >= 4, outcomes
