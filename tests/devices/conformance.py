"""What the conformance tests know of devices: which are here, programs for each, and faults to put into programs.

Nothing here depends on a device's name. What differs between devices comes from their capabilities.
"""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.schedule.programs import imported, patched, recipe_of
from tilegrad.compiled import Compiled
from tilegrad.devices import registry
from tilegrad.devices.base import Device
from tilegrad.devices.embedded import AutonomousDevice
from tilegrad.devices.process import HarnessSession
from tilegrad.devices.transport import ProcessTransport
from tilegrad.errors import DeviceError
from tilegrad.pipeline import compile_model
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.targets.base import Target
from tilegrad.training.train import Run, train

MODELS = ("simplemlp", "odd_cnn", "own_loss", "two_heads", "adapted", "clipped")
"""Matrix products alone; convolutions, pooling, batch statistics and Adam, two mini-batches to an update; several
inputs and a loss that the model computes; a loss of each of two outputs, smoothed, weighted and with ignored labels;
adapters under a schedule; clipped gradients, Nesterov's momentum and no decay on biases."""

STEPS = 2
VARIABLE = "TILEGRAD_CONFORMANCE"


@dataclass(frozen=True)
class Subject:
    """A device under test."""

    name: str

    def __str__(self) -> str:
        return self.name

    @property
    def kind(self) -> type[Device]:
        return registry.device_kind(self.name)

    @property
    def unable(self) -> str | None:
        """Why it cannot be tested here."""
        if not self.kind.capabilities.runs:
            return "it runs nothing"
        if not self.kind.capabilities.is_interactive:
            return self.kind.missing(self.name) or "a run is decided when it is built"
        return self.kind.missing(self.name)

    def open(self) -> Device:
        return registry.open_device(self.name)

    def program(self, model: str, cores: int | None = None) -> Compiled:
        return _program(model, self.kind.chip_of(self.name), cores, not self.kind.capabilities.is_single)


@cache
def _program(model: str, target: Target, cores: int | None, fuses_update: bool) -> Compiled:
    """A device with one program at a time has no second one to read gradients from."""
    chip = target if cores is None else target.with_cores(cores)
    options = None if fuses_update or chip.is_flat else ScheduleOptions(fuses_update=False)
    return compile_model(imported(model), recipe_of(model), chip, options=options)


def subject_names() -> tuple[str, ...]:
    """Every device there is, or those that the environment names: with a configuration, or alone (docs/mppa.md)."""
    return tuple(os.environ.get(VARIABLE, "").split()) or registry.device_names()


def all_devices() -> list[object]:
    """Every device there is; those that are not here are skipped by name, with the reason."""
    made: list[object] = []
    for name in subject_names():
        reason = Subject(name).unable
        marks = [] if reason is None else [pytest.mark.skip(reason=f"{name}: {reason}")]
        made.append(pytest.param(Subject(name), id=name, marks=marks))
    return made


def present(
    family: type[Device] = Device, *, has_process: bool = False, has_several: bool = False
) -> list[object]:
    """The devices of a family that can be tested here. `make check` takes two of them, `make test` all."""
    made: list[object] = []
    for subject in map(Subject, subject_names()):
        fits = issubclass(subject.kind, family) and (subject.kind.capabilities.has_process or not has_process)
        if fits and subject.unable is None and not (has_several and subject.kind.capabilities.is_single):
            marks = [] if subject.name in ("host", registry.DEFAULT_DEVICE) else [pytest.mark.slow]
            made.append(pytest.param(subject, id=subject.name, marks=marks))
    return made


def images() -> list[object]:
    """The devices of which each run is an image of its own, decided when it is built."""
    made: list[object] = []
    for subject in map(Subject, subject_names()):
        if issubclass(subject.kind, AutonomousDevice):
            reason = subject.kind.missing(subject.name)
            marks = [pytest.mark.slow] if reason is None else [pytest.mark.skip(reason=f"{subject.name}: {reason}")]
            made.append(pytest.param(subject, id=subject.name, marks=marks))
    return made


@cache
def reference_run(model: str, steps: int = STEPS) -> Run:
    """The host's, judged by what is not ours; every other device has to give its bits."""
    host = Subject("host")
    with host.open() as device:
        return train(host.program(model), device, steps=steps, verify=True)


def bits(run: Run) -> dict[str, object]:
    groups = {"gradient": run.first_gradients, "weight": run.weights, "statistic": run.statistics}
    found: dict[str, object] = {"losses": run.losses}
    for word, arrays in groups.items():
        found |= {f"{word} {name}": array.tobytes() for name, array in arrays.items()}
    return found


# ---- faults

_UPDATES = {"model.c": "tg_status tg_update(tg_model *m)\n{\n", "kernels.cl": "tg_sgd_args p)\n{\n"}
"""Where an update begins, by the file that has it: a function in C, a kernel that is launched in OpenCL C."""

CRASH = "    __builtin_trap();\n"
HANG = "    for (volatile int hangs = 1; hangs;) {\n    }\n"


def faulty(compiled: Compiled, fault: str) -> Compiled:
    """The program with a fault at the start of its update."""
    ((name, start),) = ((name, start) for name, start in _UPDATES.items() if name in compiled.project.files)
    return patched(compiled, name, start, start + fault)


def process_of(session: object) -> ProcessTransport:
    assert isinstance(session, HarnessSession) and isinstance(session.transport, ProcessTransport)
    return session.transport


def is_over(transport: ProcessTransport) -> bool:
    """Whether nothing of a program's group runs on; what was killed may need a moment to go."""
    end = time.monotonic() + 20
    while _processes_of_group(transport.process.pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not _processes_of_group(transport.process.pid)


def _processes_of_group(group: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(words[2]) == group and words[0] not in "ZX":
                found.append(int(entry.name))
    return found


def wait_until_busy(transport: ProcessTransport, seconds: float = 0.3) -> None:
    """Until the program has computed for a while, so that a signal meets it at work."""
    ticks = os.sysconf("SC_CLK_TCK")

    def used() -> float:
        words = Path(f"/proc/{transport.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / ticks

    wanted, end = used() + seconds, time.monotonic() + 60
    while used() < wanted:
        assert time.monotonic() < end, "the program does not compute"
        time.sleep(0.02)


def check_failure(error: DeviceError, transport: ProcessTransport, what: str) -> None:
    """Command, status and folder are told, the folder is kept, nothing runs on."""
    text = str(error)
    assert re.match(rf"the program {what} \((status \d+|signal SIG[A-Z]+)\)\n", text), text
    assert error.exit_status == 3 and error.got is not None and error.got.startswith(" ".join(transport.command))
    assert error.hint == f"the folder is '{transport.folder}'"
    assert (transport.folder / "manifest.json").exists()
    assert " ".join(transport.command) in (transport.folder / "failure.txt").read_text()
    assert is_over(transport)


def interrupt(transport: ProcessTransport) -> None:
    """As a user's `kill` does."""
    os.killpg(transport.process.pid, signal.SIGTERM)
