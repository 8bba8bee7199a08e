"""A compiled model: what every stage made."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tilegrad.build.folder import write_folder
from tilegrad.codegen.project import Project
from tilegrad.costs.kernel_cost import estimates_are
from tilegrad.fit import Fit
from tilegrad.frontend import ImportedModel
from tilegrad.ir.listing import Listing
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import Program, Role
from tilegrad.ir.residency import Residency
from tilegrad.pictured import Pictured
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.sequence.timing import EntryTiming, time_listing
from tilegrad.targets.base import Target

CALLS = ("step", "update", "infer")
"""The entries in the order in which their costs are shown."""


@dataclass(frozen=True, repr=False)
class Compiled(Pictured):
    """A model compiled for a target: what every stage made, and the C project. `residency` is where a device that loads
    it leaves inputs, outputs and gradients, unless it is told otherwise."""

    model: ImportedModel
    program: Program
    listing: Listing
    project: Project
    options: ScheduleOptions = field(default_factory=ScheduleOptions)
    fit: Fit | None = None
    residency: Residency = field(default_factory=Residency)

    @property
    def name(self) -> str:
        return self.program.name

    @cached_property
    def timing(self) -> dict[str, EntryTiming]:
        """Estimated cycles of each entry, where the target has a scratchpad; nothing is run for it."""
        return time_listing(self.listing)

    @property
    def cycles(self) -> dict[str, int | None]:
        """Estimated, of one call of each entry; None where the target has no cost model."""
        return {entry: round(self.timing[entry].cycles) if entry in self.timing else None for entry in CALLS}

    @property
    def cycles_are(self) -> str:
        """What these are, in a few words: kernels that nobody counted are named."""
        return estimates_are(self.plan.schedule)

    @property
    def plan(self) -> Plan:
        return self.listing.plan

    @property
    def target(self) -> Target:
        return self.plan.schedule.target

    def __repr__(self) -> str:
        """One line of what it is: `--dump-after` and `tilegrad inspect` have the rest."""
        program = self.program
        trained = sum(tensor.type.size for tensor in program.trainable)
        held = trained + sum(tensor.type.size for tensor in program.with_role(Role.FROZEN))
        memory = ", ".join(f"{name} {use}" for name, use in self.plan.memory.items())
        return (
            f"<Compiled '{self.name}' for {self.target.name}: {', '.join(program.entries)}; "
            f"{trained:,} of {held:,} parameters train; {memory}; {self.project.line_count:,} lines of C>"
        )

    def write(self, folder: str | Path, *, force: bool = False) -> Path:
        """Writes the C project; the folder appears complete or not at all.

        A folder that has one already keeps what is not ours. Files that were edited are refused, unless `force`.
        """
        write_folder(Path(folder), self.project.files, force=force)
        return Path(folder)
