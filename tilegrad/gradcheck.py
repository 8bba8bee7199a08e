"""Every gradient of the generated C against central differences: what `tilegrad gradcheck` is made of."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilegrad.compiled import Compiled
from tilegrad.course import Progress
from tilegrad.devices.base import Device
from tilegrad.pipeline import unfused
from tilegrad.samples import make_batches
from tilegrad.training import no_progress
from tilegrad.verify.compare import Verdict
from tilegrad.verify.finite_differences import GRADIENT_TOLERANCE, gradient_verdict
from tilegrad.verify.judge import float64_model, reference_recipe


@dataclass(frozen=True)
class GradientCheck:
    """One mini-batch's loss and the verdict on it and on every gradient."""

    compiled: Compiled
    device: str
    loss: float
    verdict: Verdict
    timings_seconds: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        program = self.compiled.program
        return {
            "model": program.name,
            "device": self.device,
            "target": self.compiled.target.name,
            "batch": program.recipe.batch,
            "losses": [self.loss],
            "trainable_params": sum(tensor.type.size for tensor in program.trainable),
            **self.verdict.as_json(),
            "timings": self.timings_seconds,
        }


def check_gradients(
    compiled: Compiled,
    device: Device,
    *,
    data: str | Path | None = None,
    tolerance: float = GRADIENT_TOLERANCE,
    progress: Progress = no_progress,
) -> GradientCheck:
    """Runs one mini-batch of the generated C, then asks a float64 forward pass what the gradients should have been."""
    compiled = unfused(compiled)
    batch = make_batches(compiled, data).batch(0)
    timings: dict[str, float] = {}
    progress("build", 0, 1)
    start = time.perf_counter()
    with device.load(compiled) as session:
        timings["build"] = time.perf_counter() - start
        start = time.perf_counter()
        loss = session.step(*batch)
        gradients = session.gradients()
        timings["run"] = time.perf_counter() - start
    progress("central differences", 0, 1)
    start = time.perf_counter()
    recipe = reference_recipe(compiled.program)
    verdict = gradient_verdict(
        float64_model(compiled), batch, loss, gradients, tolerance=tolerance, gradient_scale=recipe.gradient_scale
    )
    timings["verify"] = time.perf_counter() - start
    return GradientCheck(compiled, device.name, loss, verdict, timings)
