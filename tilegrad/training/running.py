"""A compiled program on a device for as long as it takes, and what every answer from there says first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tilegrad.compiled import Compiled
from tilegrad.devices.base import Device, Session
from tilegrad.training.course import Progress


def no_progress(what: str, done: int, of: int) -> None:
    del what, done, of


@contextmanager
def timed(seconds: dict[str, float], part: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[part] = time.perf_counter() - start


@contextmanager
def running(compiled: Compiled, device: Device, progress: Progress, seconds: dict[str, float]) -> Iterator[Session]:
    """A session; `seconds` learns how long it took to build the program, and to do what is done with it."""
    progress("build", 0, 1)
    start = time.perf_counter()
    with device.load(compiled) as session:
        seconds["build"] = time.perf_counter() - start
        with timed(seconds, "run"):
            yield session


def whose(compiled: Compiled, device: str) -> dict[str, Any]:
    """The facts that tell one result from another, as JSON has them."""
    recipe = compiled.program.recipe
    return {
        "model": compiled.program.name,
        "device": device,
        "target": compiled.target.name,
        "batch": recipe.batch,
    }
