"""Makes a program fit: activations are computed again, as few as bring it under the bytes that there are.

It stands between the passes and the plan and asks both: what is alive at once decides what is computed again
(fit/recompute.py), and the plan tells how many bytes that takes in the end. Where that is not enough, operators work on
parts of their tensors (fit/slices.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilegrad.errors import DoesNotFit
from tilegrad.fit.recompute import masked_by_input, recomputed
from tilegrad.fit.slices import sliced
from tilegrad.fit.tape import facts_of
from tilegrad.ir.graph import Graph
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import Program
from tilegrad.place.plan import plan_memory
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.schedule.schedule import schedule_program
from tilegrad.targets.base import Target

MOST_PLANS = 4
"""Where the plan takes more than what is alive at once, the next one has that much less to go by."""
FEW_NODES = 120
STEP_SHARE = 0.9


@dataclass(frozen=True)
class Fit:
    """What it took: bytes of RAM and MACs of a step as they were, and as they are.

    `bound_bytes` is what no choice of what is kept goes below: state, and the operands of one operator, in parts
    where that is known to work.
    """

    limit_bytes: int
    before_bytes: int
    after_bytes: int
    before_macs: int
    after_macs: int
    repeated: int  # operators that are computed again
    bound_bytes: int = 0
    parts: int = 0  # operators that work on a part of a tensor
    before_cycles: int | None = None  # of a step, where the target has a clock
    after_cycles: int | None = None

    @property
    def is_as_it_was(self) -> bool:
        return self.before_bytes <= self.limit_bytes

    @property
    def fits(self) -> bool:
        return self.after_bytes <= self.limit_bytes

    @property
    def more_macs(self) -> float:
        """As a share of those of a step."""
        return self.after_macs / max(self.before_macs, 1) - 1.0

    def as_json(self) -> dict[str, int | float | bool | None]:
        return {
            "limit_bytes": self.limit_bytes,
            "before_bytes": self.before_bytes,
            "after_bytes": self.after_bytes,
            "before_macs": self.before_macs,
            "after_macs": self.after_macs,
            "repeated_operators": self.repeated,
            "operators_on_parts": self.parts,
            "bound_bytes": self.bound_bytes,
            "before_cycles": self.before_cycles,
            "after_cycles": self.after_cycles,
            "as_it_was": self.is_as_it_was,
        }


def fitted(program: Program, split: Program, target: Target, limit_bytes: int) -> tuple[Program, Fit]:
    """The program as it is where that fits; else, `split` (see passes.split_conv_grad), with as little computed again
    as it takes. The bits are the same."""
    found, fit = nearest(program, split, target, limit_bytes)
    if not fit.fits:
        raise DoesNotFit(
            f"nothing that is computed again makes '{program.name}' fit into {target.home} of {target.name}",
            stage="fit",
            expected=f"at most {limit_bytes} bytes",
            got=f"{fit.after_bytes} bytes at best, {fit.before_bytes} as it is; "
            f"{fit.bound_bytes} is the bound",
            hint=f"--ram {-(-fit.after_bytes // 1024)}K would do",
        )
    return found, fit


def nearest(
    program: Program, split: Program, target: Target, limit_bytes: int, *, gives_up: bool = False
) -> tuple[Program, Fit]:
    """The same, or as near as it gets where nothing fits; not even that where the bound says so and it `gives_up`."""
    first = planned(program, target)
    before, macs = _used_bytes(first), _macs(first)
    kept_bytes = before - first.arena_bytes
    bound = kept_bytes + _bound_bytes(sliced_program(split, 0, first.alignment_bytes), first.alignment_bytes)
    if before <= limit_bytes or (gives_up and bound > limit_bytes):
        return program, Fit(limit_bytes, before, before, macs, macs, 0, min(bound, before))
    best = _Found(program, first, 0)
    for parts in (split, sliced_program(split, limit_bytes - kept_bytes, first.alignment_bytes)):
        if best.used_bytes <= limit_bytes or (parts is split and best.plan is not first):
            break  # it fits, or there is nothing to cut
        again = _recomputed(parts, target, limit_bytes, kept_bytes, gives_up)
        best = min(best, again, key=lambda found: found.used_bytes)
    parts_count = sum(_PART in node.name for node in best.program.entries["step"].nodes)
    fit = Fit(limit_bytes, before, best.used_bytes, macs, _macs(best.plan), best.repeated, bound, parts_count)
    return best.program, fit


@dataclass(frozen=True)
class _Found:
    program: Program
    plan: Plan
    repeated: int

    @property
    def used_bytes(self) -> int:
        return _used_bytes(self.plan)


_PART = ".part"


def _recomputed(
    program: Program, target: Target, limit_bytes: int, kept_bytes: int, gives_up: bool
) -> _Found:
    """The program with as little computed again as brings its plan under the limit, or as near as it gets; not so near
    where that would still not be enough and it `gives_up`."""
    budget, graph = max(limit_bytes - kept_bytes, 0), program.entries["step"]
    best = None
    for left in range(MOST_PLANS if len(graph.nodes) <= FEW_NODES else 2, 0, -1):
        step = recomputed(graph, budget, target.memory(target.home).alignment_bytes)
        candidate = program.with_step(step.graph)
        found = _Found(candidate, planned(candidate, target), step.repeated)
        is_better = best is None or found.used_bytes < best.used_bytes
        best = found if best is None or is_better else best
        missing = found.used_bytes - limit_bytes
        is_hopeless = STEP_SHARE ** (left - 1) * step.peak_bytes > max(limit_bytes - kept_bytes, 0)
        if missing <= 0 or not is_better or (gives_up and is_hopeless):
            break
        # Holes are to be had less of; what is out of reach is better gone towards step by step.
        budget = budget - missing if step.peak_bytes <= budget else int(STEP_SHARE * step.peak_bytes)
    assert best is not None
    return best


def sliced_program(program: Program, budget_bytes: int, alignment_bytes: int) -> Program:
    """With operators in parts whose operands are too much for the budget."""
    entries = {name: sliced(graph, max(budget_bytes, 0), alignment_bytes) for name, graph in program.entries.items()}
    return program if entries == program.entries else replace(program, entries=entries)


def planned(program: Program, target: Target) -> Plan:
    """The plan without a limit of what is to be fitted into; other memories have theirs."""
    return plan_memory(schedule_program(program, target.without_limits(), ScheduleOptions()))


def _bound_bytes(program: Program, alignment_bytes: int) -> int:
    """Of the arena: no order and no recomputation goes below the operands of one operator, or of its parts."""

    def own(graph: Graph) -> int:
        return facts_of(graph, alignment_bytes, costs=()).bound_bytes()

    step = program.entries["step"]
    others = (own(graph) for name, graph in program.entries.items() if name != "step")
    return max(*others, min(own(step), own(masked_by_input(step))))


def _used_bytes(plan: Plan) -> int:
    return plan.memory[plan.schedule.target.home].used_bytes


def _macs(plan: Plan) -> int:
    return plan.schedule.macs("step")
