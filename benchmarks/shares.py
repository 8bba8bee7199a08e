"""Shares of an update over one and two processes of this machine: resnet8, 16 shares, wall time.

Rounds of `host` and `host*2` alternate, and the least of each counts: other programs on the machine slow both. Samples
are stored ones, as a user's are, so that making them is no part of it. `host` is what `--accum 16` runs: one session,
which sends no gradient anywhere. What is moved per update is counted and compared with what has to be.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilegrad.api import Recipe
from tilegrad.api import compile as compile_model
from tilegrad.compiled import Compiled
from tilegrad.data.batches import Batch
from tilegrad.data.samples import make_batches
from tilegrad.devices.base import Session
from tilegrad.devices.process import HarnessSession
from tilegrad.devices.transport import ProcessTransport
from tilegrad.parallel.group import DeviceGroup, open_devices
from tilegrad.parallel.session import ParallelSession

RESULTS = Path(__file__).parent / "SHARES.md"
MODEL, SHARES = "resnet8", 16
LIMIT = 0.6
BATCHES = (1, 4, 8)
BUSY = "**The machine was busy with other work: these wall times say nothing of a ratio, CPU times do.**"


@dataclass(frozen=True)
class Result:
    """Seconds of one update, the least of all rounds; bytes of an update, as they were and as they have to be."""

    alone_seconds: float
    shared_seconds: float
    moved: dict[str, float]
    needed: dict[str, float]
    batch: int
    alone_cpu_seconds: float
    shared_cpu_seconds: float

    @property
    def cpu_ratio(self) -> float:
        """With two cores that have nothing else to do: one device and whoever feeds it work in turn, two at once."""
        return self.shared_cpu_seconds / 2 / self.alone_cpu_seconds

    @property
    def ratio(self) -> float:
        return self.shared_seconds / self.alone_seconds


def cpu_seconds(sessions: Sequence[Session]) -> float:
    """Of this process and of the programs of these sessions, so far."""
    nanoseconds = 0
    for session in sessions:
        assert isinstance(session, HarnessSession) and isinstance(session.transport, ProcessTransport)
        told = Path(f"/proc/{session.transport.process.pid}/schedstat").read_text(encoding="utf-8")
        nanoseconds += int(told.split()[0])
    return time.process_time() + nanoseconds / 1e9


def one_update(session: Session, batches: Sequence[Batch]) -> float:
    start = time.perf_counter()
    for _ in session.steps(batches):
        pass
    session.update()
    return time.perf_counter() - start


def measured(program: Compiled, rounds: int, devices: int = 2) -> Result:
    batches = list(make_batches(program, None).first(SHARES))
    with open_devices("host") as one, open_devices(f"host*{devices}") as several:
        alone, shared = one.load(program), several.load(program)
        assert isinstance(shared, ParallelSession)
        for session in (alone, shared):
            one_update(session, batches)
        assert isinstance(several, DeviceGroup)
        programs = [device._sessions[0] for device in several.devices]
        times = []
        used: list[list[float]] = [[], []]
        for _ in range(rounds):
            row = []
            for i, (session, running) in enumerate(((alone, [alone]), (shared, programs))):
                before = cpu_seconds(running)
                row.append(one_update(session, batches))
                used[i].append(cpu_seconds(running) - before)
            times.append(row)
        for name, array in alone.weights().items():
            assert array.tobytes() == shared.weights()[name].tobytes(), f"{name} differs"
        told = shared.shares_json()
    trained = float(sum(tensor.type.size_bytes for tensor in program.program.trainable))
    rows = told["devices"]
    moved = {
        "gradients back": sum(row["from_device_bytes"]["gradients"] for row in rows) / told["updates"],
        "gradient sums to the first device": rows[0]["to_device_bytes"]["gradients"] / told["updates"],
        "parameters from the first device": rows[0]["from_device_bytes"]["parameters"] / told["updates"],
        "parameters to the others": sum(row["to_device_bytes"].get("parameters", 0) for row in rows[1:])
        / (told["updates"] - 1),
    }
    needed = {
        "gradients back": SHARES * trained,
        "gradient sums to the first device": trained,
        "parameters from the first device": trained,
        "parameters to the others": (devices - 1) * trained,
    }
    least = [min(column) for column in zip(*times, strict=True)]
    cpu = map(min, used)
    return Result(least[0], least[1], moved, needed, program.program.recipe.batch, *cpu)


def row(result: Result) -> str:
    times = (result.alone_seconds, result.shared_seconds, result.alone_cpu_seconds, result.shared_cpu_seconds)
    alone, shared, alone_cpu, shared_cpu = (f"{1e3 * seconds:.1f} ms" for seconds in times)
    return (
        f"| {result.batch} | {alone} | {shared} | {result.ratio:.2f} | {alone_cpu} | {shared_cpu} "
        f"| {result.cpu_ratio:.2f} |"
    )


def report(results: Sequence[Result], rounds: int) -> str:
    date = datetime.datetime.now(datetime.timezone.utc).date()
    lines = [
        "# Shares of an update",
        "",
        f"`python -m benchmarks.shares`, {date}, {os.cpu_count()} cores, {platform.machine()}.",
        f"{MODEL}, {SHARES} shares, SGD; an update on `host` and on `host*2`. Wall time is the least of {rounds}",
        f"rounds of each, in turn (*measured*; load {os.getloadavg()[0]:.1f} at the end), and so is CPU time;",
        "from that follows what two cores with nothing else to do would take (*estimated*). Wanted: a ratio of at most",
        f"{LIMIT}.",
        *([BUSY] if os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1) else []),
        "",
        "| batch | `host` | `host*2` | ratio | CPU of `host` | CPU of `host*2` | ratio, estimated |",
        "|---|---|---|---|---|---|---|",
        *map(row, results),
        "",
        "A share costs the gradients' way back and their addition, which does not grow with the batch.",
        "",
        "| moved in an update | bytes (counted) | bytes that have to be |",
        "|---|---|---|",
        *(f"| {what} | {size:,.0f} | {results[0].needed[what]:,.0f} |" for what, size in results[0].moved.items()),
        "",
        "The weights have the same bits after all rounds.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    np.seterr(all="ignore")
    recipes = (Recipe(accumulate=SHARES, batch=batch) for batch in BATCHES)
    text = report([measured(compile_model(MODEL, recipe, "host"), rounds) for recipe in recipes], rounds)
    RESULTS.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
