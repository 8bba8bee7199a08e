"""A model's loss and accuracy on stored samples, on a device: what `tilegrad evaluate` is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilegrad.compiled import Compiled
from tilegrad.data.batches import Batches, StoredSamples
from tilegrad.data.samples import make_batches
from tilegrad.devices.base import Device
from tilegrad.errors import UserError
from tilegrad.training.course import Progress
from tilegrad.training.measures import Measures, measure_samples
from tilegrad.training.running import no_progress, running, whose


@dataclass(frozen=True)
class Evaluation:
    compiled: Compiled
    device: str
    data: str
    measures: Measures
    timings_seconds: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        program = self.compiled.program
        return {
            **whose(self.compiled, self.device),
            "data": self.data,
            "loss_name": program.loss,
            **self.measures.as_json(),
            "timings": self.timings_seconds,
        }


def evaluate(
    compiled: Compiled,
    device: Device,
    data: str | Path,
    *,
    top_k: Sequence[int] = (),
    progress: Progress = no_progress,
) -> Evaluation:
    """Every sample once, through the inference entry; the last mini-batch is filled up with samples not counted."""
    if not (device.capabilities.runs and device.capabilities.is_interactive):
        raise UserError(
            f"device '{device.name}' gives no outputs back",
            stage="options",
            expected="a device that answers while it runs",
            hint="such as host, sim:siracusa or qemu:riscv32",
        )
    batches = make_batches(compiled, data)
    assert isinstance(batches, Batches) and isinstance(batches.samples, StoredSamples)
    timings: dict[str, float] = {}
    with running(compiled, device, progress, timings) as session:
        told = measure_samples(session, batches.samples, top_k, lambda done, of: progress("mini-batch", done, of))
    return Evaluation(compiled, device.name, str(data), told, timings)
