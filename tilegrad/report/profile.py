"""A profile for people: where the cycles of a step went, nest by nest, in 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.text import Text

from tilegrad.devices.iss_profile import NestProfile, Profile
from tilegrad.report.format import count_text, plural
from tilegrad.report.output import table

NAME_WIDTH = 21
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "fetch": ("fetch",),
    "mem.": ("memory", "use"),
    "fpu": ("fpu", "divide"),
    "other": ("branch", "integer", "queue"),
    "sleep": ("sleep",),
}
"""Shares of all cores' cycles; the reasons that each column is the sum of."""


def profile_report(profile: Profile) -> Iterator[RenderableType]:
    """The step alone: other entries are in the JSON."""
    nests = profile.entries.get("step", ())
    numbers = ("cycles", "instr.", "work", *COLUMNS)
    made = table("nest of a step", *numbers, right=numbers)
    for nest in nests:
        made.add_row(*_row(nest, profile.cores))
    if nests:
        made.add_row(*_row(_total(nests), profile.cores))
    yield made
    yield Text(
        f"instr.: instructions of {plural(profile.cores, 'core')}; then shares of their cycles: an instruction done, "
        "or waiting for a fetch, for memory or what it loads, for an FPU, for branches and integer units, or asleep."
    )


def _row(nest: NestProfile, cores: int) -> list[str]:
    whole = max(nest.cycles * cores, 1)

    def share(count: int) -> str:
        return f"{100 * count / whole:.0f} %"

    lost = (sum(nest.stalls.get(reason, 0) for reason in reasons) for reasons in COLUMNS.values())
    return [
        _short(nest.name),
        count_text(nest.cycles),
        count_text(nest.instructions),
        share(nest.instructions),
        *map(share, lost),
    ]


def _short(name: str) -> str:
    """The end says more than the beginning: nodes of one layer begin alike."""
    return name if len(name) <= NAME_WIDTH else f"…{name[1 - NAME_WIDTH :]}"


def _total(nests: tuple[NestProfile, ...]) -> NestProfile:
    reasons = nests[0].stalls
    return NestProfile(
        "all",
        sum(nest.cycles for nest in nests),
        sum(nest.instructions for nest in nests),
        {reason: sum(nest.stalls[reason] for nest in nests) for reason in reasons},
    )
