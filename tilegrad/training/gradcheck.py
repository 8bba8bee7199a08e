"""Every gradient of the generated C against central differences: what `tilegrad gradcheck` is made of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilegrad.compiled import Compiled
from tilegrad.data.samples import make_batches
from tilegrad.devices.base import Device
from tilegrad.pipeline import unfused
from tilegrad.training.course import Progress
from tilegrad.training.running import no_progress, running, timed, whose
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
            **whose(self.compiled, self.device),
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
    with running(compiled, device, progress, timings) as session:
        loss = session.step(*batch)
        gradients = session.gradients()
    progress("central differences", 0, 1)
    with timed(timings, "verify"):
        recipe = reference_recipe(compiled.program)
        verdict = gradient_verdict(
            float64_model(compiled), batch, loss, gradients, tolerance=tolerance, gradient_scale=recipe.gradient_scale
        )
    return GradientCheck(compiled, device.name, loss, verdict, timings)
