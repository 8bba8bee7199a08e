"""What `iss:siracusa` saw of a training: when each kernel call began and ended, and what the conductor did when.

The chip's cycle model writes a trace of events at its devices (targets/siracusa/iss/report.c): commands to DMA engines,
barriers, dispatched work. The listing names the same events in the same order, so each gets the time at which it
really happened. Nothing runs in the image for it.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilegrad.build.cache import open_cache
from tilegrad.build.riscv import COMPILER
from tilegrad.build.toolchain import compiler_identity
from tilegrad.compiled import Compiled
from tilegrad.devices.iss import IssDevice, build_simulator, most_cycles, simulator_files
from tilegrad.devices.siracusa_build import folder_files
from tilegrad.devices.siracusa_image import IMAGE_STATUSES, parse_cycles
from tilegrad.devices.siracusa_program import Expected
from tilegrad.errors import DeviceError
from tilegrad.targets.base import L2

# The first step of a training fills the instruction caches, which is next to nothing in a long one.
STEPS, LONG_MACS = 2, 5_000_000
MOST_SECONDS = 3600.0
_READ_BY_PEOPLE = (".md", ".json")
_NOT_CODE = re.compile(rb'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', re.DOTALL)


@dataclass(frozen=True, slots=True)
class TraceEvent:
    kind: str
    cycle: int
    core: int
    a: int
    b: int


@dataclass(frozen=True)
class Observation:
    """Of the last call of each entry: what happened from its begin to its end. `counts` are the image's own, of every
    call, from its caller's point of view; `compiled` is what ran: planned again where its code needed room."""

    compiled: Compiled
    entries: Mapping[str, tuple[TraceEvent, ...]]
    counts: Mapping[str, tuple[int, ...]]

    def cycles(self, entry: str) -> int:
        events = self.entries[entry]
        return events[-1].cycle - events[0].cycle


def steps_of(compiled: Compiled) -> int:
    return STEPS if compiled.plan.schedule.macs("step") < LONG_MACS else 1


def _nothing_expected(compiled: Compiled) -> Expected:
    """Bits are not judged here."""
    return Expected((0,) * steps_of(compiled) * compiled.program.recipe.accumulate, 0)


def _run(compiled: Compiled, folder: Path, *options: str) -> tuple[str, Compiled]:
    """Builds the image and runs it; what it printed, and the program that ran."""
    device = IssDevice()
    device.steps, device.expected = steps_of(compiled), _nothing_expected(compiled)
    image = device.build(compiled, folder)
    work = folder / "iss"
    work.mkdir(exist_ok=True)
    limit = str(most_cycles(compiled, device.steps))
    command = [str(build_simulator(work)), str(image.path.resolve()), "--limit", limit, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MOST_SECONDS)
    if done.returncode not in IMAGE_STATUSES:
        raise DeviceError("the image failed", stage="run", got=done.stderr[-2000:])
    return done.stdout, image.compiled


def observe(compiled: Compiled) -> Observation:
    """A whole run, with its trace."""
    with tempfile.TemporaryDirectory() as name:
        trace = Path(name) / "trace"
        said, ran = _run(compiled, Path(name), "--trace", str(trace))
        with trace.open(encoding="ascii") as lines:
            return Observation(ran, dict(parse_trace(lines)), parse_cycles(said))


def _without_comment(found: re.Match[bytes]) -> bytes:
    return found[0] if found[0].startswith(b'"') else b" "


def program_digest(compiled: Compiled) -> str:
    """Of all that a count of cycles depends on: the image's sources as a compiler reads them, that compiler, and the
    simulator."""
    files = {**folder_files(compiled, steps_of(compiled), _nothing_expected(compiled)), **simulator_files()}
    digest = hashlib.sha256(compiler_identity(COMPILER).encode())
    for name in sorted(files):
        if not name.endswith(_READ_BY_PEOPLE):
            code = b" ".join(_NOT_CODE.sub(_without_comment, files[name]).split())
            digest.update(hashlib.sha256(name.encode() + b"\0" + code).digest())
    return digest.hexdigest()


def l2_bytes(compiled: Compiled) -> int:
    """What tensors may have of L2."""
    return compiled.target.memory(L2).capacity_bytes or 0


def training_cycles(compiled: Compiled) -> tuple[dict[str, int], int]:
    """Of the last call of step and update alone: the run ends behind the last update. With the bytes of L2 that the
    program which ran was planned for. Runs repeat exactly, so what was counted once is kept beside compiled objects;
    much of L1 and little often give the same program, and so do two modes."""
    cache, key = open_cache(use_cache=True), f"ran-{program_digest(compiled)}"
    kept = cache.take(key) if cache is not None else None
    if kept is None:
        with tempfile.TemporaryDirectory() as name:
            said, ran = _run(compiled, Path(name), "--until", f"update {steps_of(compiled) - 1} ")
        counts = {entry: own[-1] for entry, own in parse_cycles(said).items() if own}
        kept = json.dumps([counts, l2_bytes(ran)]).encode()
        if cache is not None:
            cache.keep(key, kept)
            cache.finish()
    found: tuple[dict[str, int], int] = tuple(json.loads(kept))
    return found


def parse_trace(lines: Iterator[str] | Sequence[str]) -> Iterator[tuple[str, tuple[TraceEvent, ...]]]:
    """Calls of entries, in order. An entry's begin and end have its name, and so has that of a nest."""
    name, events = "", list[TraceEvent]()
    for line in lines:
        kind, cycle, core, a, b = line.rstrip("\n").split(" ", 4)
        if kind == "B":
            name, events = b, []
        elif not events:
            continue
        events.append(TraceEvent(kind, int(cycle), int(core), int(a), 0 if kind in "BEX" else int(b)))
        if kind == "X":
            yield name, tuple(events)
            events = []
