"""The inference entry on a device, compared with a float64 forward pass: what `tilegrad infer` is made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegrad.compiled import Compiled
from tilegrad.data.batches import Batches, synthetic
from tilegrad.data.samples import input_spec
from tilegrad.data.stored import load_inputs
from tilegrad.devices.base import Device
from tilegrad.losses import parse
from tilegrad.pipeline import defaults
from tilegrad.training.course import Progress
from tilegrad.training.running import no_progress, running, timed, whose
from tilegrad.training.train import memory_json, parameter_count
from tilegrad.verify.compare import DEFAULT_TOLERANCE
from tilegrad.verify.float64_model import Float64Model
from tilegrad.verify.reference import relative_error

Array = npt.NDArray[Any]
MEASURED_CALLS = 20


@dataclass(frozen=True)
class Inference:
    """One mini-batch's output. `reference` and `error` are None where it was not verified."""

    compiled: Compiled
    device: str
    output: Array
    seconds_per_call: float
    tolerance: float
    reference: str | None
    error: float | None
    timings_seconds: dict[str, float]

    @property
    def verified(self) -> bool | None:
        return None if self.error is None else self.error <= self.tolerance

    @property
    def output_name(self) -> str:
        return self.compiled.program.entries["infer"].outputs[0]

    @property
    def macs(self) -> int:
        return self.compiled.plan.schedule.macs("infer")

    def as_json(self) -> dict[str, Any]:
        plan = self.compiled.plan
        return {
            **whose(self.compiled, self.device),
            "output": self.output_name,
            "shape": list(self.output.shape),
            "values": self.output,
            "reference": self.reference,
            "max_output_error": self.error,
            "tolerance": self.tolerance,
            "verified": self.verified,
            "cycles": {"infer": None},
            "seconds": self.seconds_per_call,
            "memory": {name: memory_json(use) for name, use in plan.memory.items()},
            "arena": {
                "used": plan.entries["infer"].arena_bytes,
                "lower_bound": plan.entries["infer"].lower_bound_bytes,
            },
            "params": parameter_count(self.compiled),
            "macs": self.macs,
            "timings": self.timings_seconds,
            "files": sorted(self.compiled.project.files),
        }


def input_batches(compiled: Compiled, data: str | Path | None) -> Batches:
    """The inputs that training would get; no targets are needed."""
    program = compiled.program
    graph = program.entries["infer"]
    loss, _ = defaults(compiled.model)
    output = graph.types[graph.outputs[0]]
    has_classes = parse(loss).has_classes and output.rank > 1
    spec = input_spec(compiled, loss, output.shape[1:], output.shape[1] if has_classes else None)
    recipe = program.recipe
    return synthetic(recipe.seed, spec, recipe.batch) if data is None else load_inputs(data, spec, recipe.batch)


def infer(
    compiled: Compiled,
    device: Device,
    *,
    data: str | Path | None = None,
    verify: bool = True,
    tolerance: float = DEFAULT_TOLERANCE,
    progress: Progress = no_progress,
) -> Inference:
    """Runs the first mini-batch through the inference entry."""
    inputs = input_batches(compiled, data).batch(0)[: len(compiled.program.entries["infer"].inputs)]
    timings: dict[str, float] = {}
    with running(compiled, device, progress, timings) as session:
        output = session.infer(*inputs)
        seconds = session.seconds_per_call("infer", MEASURED_CALLS)
    reference = error = None
    if verify:
        progress("verify", 0, 1)
        with timed(timings, "verify"):
            model = Float64Model(compiled.model.proto, "mse")  # the loss is not asked for
            error = relative_error(np.asarray(output), model.logits(*inputs))
            reference = model.evaluator
    return Inference(compiled, device.name, output, seconds, tolerance, reference, error, timings)
