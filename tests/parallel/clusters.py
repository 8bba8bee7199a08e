"""Dask clusters for tests: a scheduler and workers as processes of their own, which can be killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

START_SECONDS = 60.0


@dataclass
class Cluster:
    address: str
    scheduler: subprocess.Popen[bytes]
    folder: Path
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def add_worker(self) -> subprocess.Popen[bytes]:
        process = _started("worker", [self.address, "--nthreads", "1", "--no-nanny"], self.folder / "worker.log")
        self.workers.append(process)
        return process


def _started(what: str, arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"distributed.cli.dask_{what}", "--no-dashboard", *arguments]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, env=environment, cwd=log.parent)


@contextlib.contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    log = folder / "scheduler.log"
    scheduler = _started("scheduler", ["--host", "127.0.0.1", "--port", "0"], log)
    made = None
    try:
        made = Cluster(_address(log, scheduler), scheduler, folder)
        for _ in range(workers):
            made.add_worker()
        yield made
    finally:
        for process in (scheduler, *(made.workers if made is not None else ())):
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


def _address(log: Path, scheduler: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and scheduler.poll() is None:
        found = re.search(r"Scheduler at:\s+(tcp://\S+)", log.read_text(encoding="utf-8"))
        if found:
            return found[1]
        time.sleep(0.05)
    raise AssertionError(log.read_text(encoding="utf-8"))
