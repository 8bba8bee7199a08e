"""The README's table of what generated programs need, computed from the programs."""

from __future__ import annotations

import tilegrad as tg
from tilegrad import zoo

# Lines of C are told in steps, so that a kernel's comment does not make the table stale.
LINES_STEP = 1000


def figures_table() -> str:
    rows = ["| model | parameters | state | arena | arena / lower bound | lines of C |", "|---|--:|--:|--:|--:|--:|"]
    for name in zoo.names():
        program = tg.compile(name)
        plan = program.plan
        bound = max(entry.lower_bound_bytes for entry in plan.entries.values())
        lines = -(-program.project.line_count // LINES_STEP) * LINES_STEP
        rows.append(
            f"| `{name}` | {zoo.describe(name).params:,} | {plan.state_bytes / 1024:,.0f} KiB "
            f"| {plan.arena_bytes / 1024:,.0f} KiB | {plan.arena_bytes / bound:.3f} | under {lines:,} |"
        )
    return "\n".join(rows) + "\n"
