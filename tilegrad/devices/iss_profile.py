"""What a cycle model counted, nest by nest: it notes the counters of every core whenever one comes to a mark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tilegrad.errors import DeviceError

BEFORE_NESTS = "(before the nests)"
_BEGIN, _ENTER, _END = "begin", "enter", "end"


@dataclass(frozen=True)
class NestProfile:
    """From where the conductor enters a nest to where it enters the next. All but `cycles` is the sum over cores.

    A core executes an instruction in each cycle, or the cycle is lost for one of the reasons of `stalls`.
    """

    name: str
    cycles: int
    instructions: int
    stalls: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "cycles": self.cycles,
            "instructions": self.instructions,
            "stalls": dict(self.stalls),
        }


@dataclass(frozen=True)
class Profile:
    """Of the last call of each entry, which is like all that follow; `cores` are those that ran."""

    cores: int
    entries: Mapping[str, tuple[NestProfile, ...]]

    def cycles(self, entry: str) -> int:
        return sum(nest.cycles for nest in self.entries.get(entry, ()))

    def as_json(self) -> dict[str, Any]:
        entries = {entry: [nest.as_json() for nest in nests] for entry, nests in self.entries.items()}
        return {"cores": self.cores, "entries": entries}


def parse_calls(text: str) -> list[tuple[str, tuple[NestProfile, ...]]]:
    """Every call of an entry, in the order of the run."""
    try:
        document = json.loads(text)
        reasons = tuple(document["reasons"])
        marks = document["marks"]
        calls: list[tuple[str, tuple[NestProfile, ...]]] = []
        begun = -1
        for i, mark in enumerate(marks):
            if mark["kind"] == _BEGIN:
                begun = i
            elif mark["kind"] == _END and begun >= 0:
                calls.append((marks[begun]["name"], _nests(marks[begun : i + 1], reasons)))
                begun = -1
    except (KeyError, TypeError, ValueError) as error:
        raise DeviceError("the profile cannot be read", stage="run", got=str(error)) from error
    return calls


def _nests(marks: Sequence[Mapping[str, Any]], reasons: tuple[str, ...]) -> tuple[NestProfile, ...]:
    made = []
    for here, there in pairwise(marks):
        totals = [
            sum(after[k] - before[k] for before, after in zip(here["cores"], there["cores"], strict=True))
            for k in range(1 + len(reasons))
        ]
        made.append(
            NestProfile(
                here["name"] if here["kind"] == _ENTER else BEFORE_NESTS,
                there["cycle"] - here["cycle"],
                totals[0],
                dict(zip(reasons, totals[1:], strict=True)),
            )
        )
    return tuple(made)


def parse_profile(text: str) -> Profile:
    calls = parse_calls(text)
    marks = json.loads(text)["marks"]
    cores = sum(1 for counters in marks[-1]["cores"] if counters[0] > 0) if marks else 0
    return Profile(cores, dict(calls))
