"""Room for a copy of everything that training changes: what a guard restores.

The copies are state like any other, so that they are planned, fit or do not, and are shown; the generated C makes and
restores them (`runtime/guard/tg_guard.h`). A gradient sum has none: after a restoration the next step starts a new one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count

from tilegrad.ir.program import RESET_FLAG, Program, Role, StateTensor


@dataclass(frozen=True)
class AddGuard:
    """A program pass: valid in, valid out."""

    def apply(self, program: Program) -> Program:
        if not any(tensor.name == RESET_FLAG for tensor in program.state):
            return program  # nothing trains, or nothing accumulates gradients
        written = {state for entry in program.entries.values() for _, state in entry.writes}
        taken = {tensor.name for tensor in program.state}
        taken |= {name for entry in program.entries.values() for name in entry.types}
        copies = []
        for tensor in program.state:
            if tensor.name in written and tensor.name != RESET_FLAG and tensor.role is not Role.GRADIENT:
                name = _fresh(f"{tensor.name}.last_good", taken)
                taken.add(name)
                copies.append(StateTensor(name, tensor.type, Role.GUARD, owner=tensor.name))
        return replace(program, state=(*program.state, *copies))


def _fresh(name: str, taken: set[str]) -> str:
    return name if name not in taken else next(f"{name}.{i}" for i in count(1) if f"{name}.{i}" not in taken)
