"""What a Dask worker runs: shares as pure functions, on programs that it started once and keeps.

A share's arguments say everything: which program, which weights, which samples. A worker keeps running programs by the
hash of their files, each with the weights that it holds at the moment, and writes only those that are others. Nothing
here is lost with a worker: another one starts the program again, and computes the same bits.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilegrad import __version__
from tilegrad.errors import DeviceError
from tilegrad.parallel.facts import FILE as FACTS_FILE
from tilegrad.parallel.facts import Facts, FactsEngine
from tilegrad.parallel.program import start_engine
from tilegrad.parallel.shares import Array, Arrays

MOST_PROGRAMS = 4
"""That a worker keeps running beside those at work; the one that was used longest ago goes first."""


@dataclass(eq=False)
class _Running:
    program: str
    engine: FactsEngine
    weights_hash: str = ""
    weights: Arrays = field(default_factory=dict)
    used: float = 0.0


@dataclass(frozen=True)
class Answer:
    """A share's result; `written_bytes` are of parameters that this worker's program did not have."""

    outputs: list[Array]
    made: Arrays
    seconds: float
    written_bytes: int
    worker: str


_idle: list[_Running] = []
_lock = threading.Lock()


def hold(content: Any) -> Any:
    """A program or its weights as a task: its content is the scheduler's to keep, so that no worker's end loses it."""
    return content


def arrays_hash(arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def compute_share(
    version: str,
    device: str,
    program: tuple[str, Mapping[str, bytes]],
    weights: tuple[str, Mapping[str, Array]],
    inputs: Sequence[Array],
    state: Mapping[str, Array],
) -> Answer:
    """One share. `program` and `weights` come with their hashes."""
    if version != __version__:
        raise DeviceError(
            "a Dask worker has another tilegrad", stage="device", expected=f"tilegrad {version}", got=__version__
        )
    running = _taken(device, *program, weights[0])
    start = time.monotonic()
    try:
        changed = _changed(running, *weights)
        outputs, made = running.engine.exchange("step", inputs, {**changed, **state}, running.engine.facts.form.made)
    except BaseException:
        with contextlib.suppress(Exception):
            running.engine.close()
        raise
    running.weights_hash, running.weights = weights[0], dict(weights[1])
    _give_back(running)
    seconds = time.monotonic() - start
    return Answer(list(outputs), dict(made), seconds, sum(array.nbytes for array in changed.values()), _address())


def _taken(device: str, program: str, files: Mapping[str, bytes], weights_hash: str) -> _Running:
    """A running program that nobody uses, one with these weights if there is any; or a new one."""
    with _lock:
        fitting = [each for each in _idle if each.program == program]
        fitting.sort(key=lambda each: each.weights_hash != weights_hash)
        if fitting:
            _idle.remove(fitting[0])
            return fitting[0]
    return _Running(program, start_engine(device, Facts.from_bytes(files[FACTS_FILE]), dict(files)))


def _changed(running: _Running, weights_hash: str, weights: Mapping[str, Array]) -> Arrays:
    if running.weights_hash == weights_hash:
        return {}
    return {
        name: array
        for name, array in weights.items()
        if name not in running.weights or running.weights[name].tobytes() != array.tobytes()
    }


def _give_back(running: _Running) -> None:
    with _lock:
        running.used = time.monotonic()
        _idle.append(running)
        _idle.sort(key=lambda each: each.used)
        surplus = [_idle.pop(0) for _ in range(len(_idle) - MOST_PROGRAMS)]
    for each in surplus:
        each.engine.close()


def forget(program: str | None = None) -> int:
    """Ends idle programs, those of one hash or all; returns how many."""
    with _lock:
        gone = [each for each in _idle if program in (None, each.program)]
        for each in gone:
            _idle.remove(each)
    for each in gone:
        each.engine.close()
    return len(gone)


def version() -> str:
    """Asked of every worker before anything is sent to it."""
    return __version__


def _address() -> str:
    import distributed

    try:
        return str(distributed.get_worker().address)
    except ValueError:
        return "this process"


atexit.register(forget)
