"""What `iss:siracusa` saw of a training: when each kernel call began and ended, and what the conductor did when.

The chip's cycle model writes a trace of events at its devices (targets/siracusa/iss/report.c): commands to DMA engines,
barriers, dispatched work. The listing names the same events in the same order, so each gets the time at which it
really happened. Nothing runs in the image for it.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilegrad.compiled import Compiled
from tilegrad.devices.iss import IssDevice, build_simulator, most_cycles
from tilegrad.devices.siracusa_image import IMAGE_STATUSES, ImageRun, parse_console
from tilegrad.devices.siracusa_program import Expected
from tilegrad.errors import DeviceError

# The first step of a training fills the instruction caches, which is next to nothing in a long one.
STEPS, LONG_MACS = 2, 5_000_000


@dataclass(frozen=True, slots=True)
class TraceEvent:
    kind: str
    cycle: int
    core: int
    a: int
    b: int
    name: str = ""


@dataclass(frozen=True)
class Observation:
    """Of the last call of each entry: what happened from its begin to its end."""

    entries: Mapping[str, tuple[TraceEvent, ...]]
    ran: ImageRun

    def cycles(self, entry: str) -> int:
        events = self.entries[entry]
        return events[-1].cycle - events[0].cycle


def observe(compiled: Compiled, *, seconds: float = 3600.0) -> Observation:
    """Builds the image and runs it. Its bits are not judged here: nothing is expected of them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        device = IssDevice()
        device.steps = STEPS if compiled.plan.schedule.macs("step") < LONG_MACS else 1
        device.expected = Expected((0,) * device.steps * compiled.program.recipe.accumulate, 0)
        image = device.build(compiled, folder)
        work = folder / "iss"
        work.mkdir(exist_ok=True)
        trace = work / "trace"
        limit = str(most_cycles(compiled, device.steps))
        command = [str(build_simulator(work)), str(image.path.resolve()), "--limit", limit, "--trace", str(trace)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
        if done.returncode not in IMAGE_STATUSES:
            raise DeviceError("the image failed", stage="run", got=done.stderr[-2000:])
        with trace.open(encoding="ascii") as lines:
            return Observation(dict(parse_trace(lines)), parse_console(done.stdout, done.returncode))


def parse_trace(lines: Iterator[str] | Sequence[str]) -> Iterator[tuple[str, tuple[TraceEvent, ...]]]:
    """Calls of entries, in order."""
    name, events = "", []
    for line in lines:
        kind, cycle, core, a, b = line.rstrip("\n").split(" ", 4)
        if kind == "B":
            name, events = b, [TraceEvent(kind, int(cycle), int(core), 0, 0, b)]
        elif events:
            is_named = kind in "EX"
            events.append(
                TraceEvent(kind, int(cycle), int(core), int(a), 0 if is_named else int(b), b if is_named else "")
            )
            if kind == "X":
                yield name, tuple(events)
                events = []
