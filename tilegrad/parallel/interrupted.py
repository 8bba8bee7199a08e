"""Trainings that lost their scheduler: the last complete update is kept, and the same command goes on from it.

What is kept is named by all that decides the bits of a run: the program with its initial weights, and its data. It goes
when the run ends, or is taken by the run that goes on.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tilegrad.build.cache import cache_folder
from tilegrad.ir.program import Program
from tilegrad.parallel.form import fingerprint

_CHUNK_BYTES = 1 << 20


def kept_file(program: Program, data: str | Path | None, plan: object) -> Path | None:
    """Where the last complete update of such a run is; None where there is no place for it."""
    objects = cache_folder()
    if objects is None:
        return None
    folder = objects.parent / "interrupted"
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return None
    digest = hashlib.sha256(json.dumps([fingerprint(program), repr(plan)]).encode())
    for path in _files(data):
        digest.update(f" {path.name} {path.stat().st_size} ".encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    return folder / f"{digest.hexdigest()}.checkpoint"


def _files(data: str | Path | None) -> list[Path]:
    if data is None:
        return []
    path = Path(data)
    return sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]
