"""Makes a program fit: activations are computed again, as few as bring it under the bytes that there are.

It stands between the passes and the plan and asks both: what is alive at once decides what is computed again
(passes/recompute.py), and the plan tells how many bytes that takes in the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilegrad.errors import DoesNotFit
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import Program
from tilegrad.passes.recompute import recomputed
from tilegrad.passes.split_conv_grad import SplitConvGrad
from tilegrad.place.plan import plan_memory
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.schedule.schedule import schedule_program
from tilegrad.targets.base import Target

MOST_PLANS = 4
"""Where the plan takes more than what is alive at once, the next one has that much less to go by."""


@dataclass(frozen=True)
class Fit:
    """What it took: bytes of RAM and MACs of a step as they were, and as they are."""

    limit_bytes: int
    before_bytes: int
    after_bytes: int
    before_macs: int
    after_macs: int
    repeated: int  # operators that are computed again

    @property
    def is_as_it_was(self) -> bool:
        return self.before_bytes <= self.limit_bytes

    @property
    def more_macs(self) -> float:
        """As a share of those of a step."""
        return self.after_macs / max(self.before_macs, 1) - 1.0

    def as_json(self) -> dict[str, int | float | bool]:
        return {
            "limit_bytes": self.limit_bytes,
            "before_bytes": self.before_bytes,
            "after_bytes": self.after_bytes,
            "before_macs": self.before_macs,
            "after_macs": self.after_macs,
            "repeated_operators": self.repeated,
            "as_it_was": self.is_as_it_was,
        }


def fitted(program: Program, target: Target, limit_bytes: int) -> tuple[Program, Fit]:
    """The program as it is where that fits; else with as little computed again as it takes. The bits are the same."""
    first = _plan(program, target)
    before = _used_bytes(first)
    if before <= limit_bytes:
        return program, Fit(limit_bytes, before, before, _macs(first), _macs(first), 0)
    split = SplitConvGrad().apply(program)
    kept_bytes = before - first.arena_bytes
    budget = limit_bytes - kept_bytes
    found, plan, used = program, first, before
    for _ in range(MOST_PLANS):
        step = recomputed(split.entries["step"], max(budget, 0), first.alignment_bytes).graph
        candidate = program.with_step(step)
        planned = _plan(candidate, target)
        missing = _used_bytes(planned) - limit_bytes
        if _used_bytes(planned) < used:
            found, plan, used = candidate, planned, _used_bytes(planned)
        if missing <= 0 or budget <= 0:
            break
        budget -= missing
    if used > limit_bytes:
        raise DoesNotFit(
            f"nothing that is computed again makes '{program.name}' fit into {target.home} of {target.name}",
            stage="fit",
            expected=f"at most {limit_bytes} bytes",
            got=f"{used} bytes at best, {before} as it is: {kept_bytes} of state and what the image needs",
            hint=f"--ram {-(-used // 1024)}K would do; or train fewer parameters (--train last:K)",
        )
    repeated = len(found.entries["step"].nodes) - len(split.entries["step"].nodes)
    return found, Fit(limit_bytes, before, used, _macs(first), _macs(plan), max(repeated, 0))


def _plan(program: Program, target: Target) -> Plan:
    return plan_memory(schedule_program(program, target.without_limits(), ScheduleOptions()))


def _used_bytes(plan: Plan) -> int:
    return plan.memory[plan.schedule.target.home].used_bytes


def _macs(plan: Plan) -> int:
    return plan.schedule.macs("step")
