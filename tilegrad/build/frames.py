"""How deep a program's stack gets, by the compiler's own account: frames of functions, added up along calls.

`-fstack-usage` tells the frame of each function that is left after inlining, and the assembly what each one calls.
Both compilers do that for every chip, so nothing here depends on one. Whatever function a body names may be called by
it: that is at least what happens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from tilegrad.errors import DeviceError
from tilegrad.ir.program import ENTRIES


@dataclass(frozen=True)
class StackUse:
    """The deepest stack of one call of each entry in bytes, on the core that conducts where there are several.

    The tile runtime and the chip's drivers are in it, and kernels, unless a core beside those that compute conducts:
    then `worker` is the stack of one that computes. Whoever calls the entry is not. Where it is not known, `entries` is
    empty and `reason` says why.
    """

    entries: Mapping[str, int] = field(default_factory=dict)
    worker: int | None = None
    compiler: str | None = None
    reason: str | None = None

    def as_json(self) -> dict[str, Any]:
        figures = {entry: self.entries.get(entry) for entry in ENTRIES}
        return {**figures, "worker": self.worker, "compiler": self.compiler, "reason": self.reason}

    def __str__(self) -> str:
        if not self.entries:
            return f"stack: not known ({self.reason})"
        stacks = {**self.entries, **({} if self.worker is None else {"each worker": self.worker})}
        figures = ", ".join(f"{name} {size:,}" for name, size in stacks.items())
        return f"stack of one call in bytes, at most: {figures} ({self.compiler})"


_START = re.compile(r"\s*\.type\s+([\w.$]+)\s*,\s*[@%]function")
_STOP = re.compile(r"\s*\.size\s+([\w.$]+)\s*,")
_EXPORT = re.compile(r"\s*\.glob[a]?l\s+([\w.$]+)")
_DATA = re.compile(r"\s*\.(?:word|long|quad|4byte|8byte|dword|xword)\s+([A-Za-z_][\w.$]*)")
_LABEL = re.compile(r"[\w.$]+:")
_NAME = re.compile(r"[A-Za-z_][\w.$]*")
# A call of what a register holds: RISC-V, 32-bit and 64-bit ARM, x86. Jumps through tables are none.
_INDIRECT = re.compile(r"\s*(?:jalr\s|blx\s+r|blr\s|callq?\s+\*)")
_COLD = re.compile(r"\.cold(?:\.\d+)?$")  # a part of a function that lies elsewhere, on the same frame


def _without_numbers(name: str) -> str:
    """A name with the kinds of its clones and without their numbers."""
    return ".".join(part for part in name.split(".") if not part.isdecimal())


def _of_source(name: str) -> str:
    """A name as the source has it: `.` is in no C identifier."""
    return name.partition(".")[0]


def _grouped(names: Iterable[str], group: Callable[[str], str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(group(name), []).append(name)
    return groups


@dataclass(frozen=True)
class Listing:
    """What one file's assembly tells: the frame of each function (None where it grows) and the names in its body.

    `held` are names that data hold: what a call of no known function may reach. `indirect` are those that make one.
    """

    frames: Mapping[str, int | None]
    names: Mapping[str, Sequence[str]]
    exported: Sequence[str]
    held: Sequence[str]
    indirect: Sequence[str]

    def frame_bytes(self, function: str) -> int:
        """The largest frame of those that a function may have: accounts name clones less exactly than assembly does."""
        sizes = [self.frames[name] for name in self._accounts(function)]
        if not sizes:
            raise DeviceError(f"the compiler tells no frame of '{function}'", stage="build")
        if None in sizes:
            raise DeviceError(f"the stack has no bound: the frame of '{function}' grows while it runs", stage="build")
        return max(size for size in sizes if size is not None)

    def _accounts(self, function: str) -> list[str]:
        """The names under which a function's frame is told: its own, else those that differ in the numbers of clones
        (`f.constprop.isra` tells of `f.constprop.0.isra.0`), else those of all clones of one function of the source
        (`f` and `f.part` of `f.llvm.123`)."""
        if function in self.frames:
            return [function]
        same = self._by_kind.get(_without_numbers(function))
        return same or self._by_source.get(_of_source(function), [])

    @cached_property
    def _by_kind(self) -> dict[str, list[str]]:
        return _grouped(self.frames, _without_numbers)

    @cached_property
    def _by_source(self) -> dict[str, list[str]]:
        return _grouped(self.frames, _of_source)

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Listing:
        return cls(**json.loads(content))


def parse_listing(assembly: str, account: str) -> Listing:
    """`account` is the file that `-fstack-usage` writes."""
    frames: dict[str, int | None] = {}
    for line in account.splitlines():
        place, size, kind = line.split("\t")
        name = place.rsplit(":", 1)[-1]
        known = frames.get(name, 0)
        frames[name] = None if kind == "dynamic" or known is None else max(int(size), known)
    names: dict[str, set[str]] = {}
    exported: set[str] = set()
    held: set[str] = set()
    indirect: set[str] = set()
    current: str | None = None
    for line in assembly.splitlines():
        if started := _START.match(line):
            current = _COLD.sub("", started[1])
            names.setdefault(current, set())
        elif (stopped := _STOP.match(line)) and _COLD.sub("", stopped[1]) == current:
            current = None
        elif found := _EXPORT.match(line):
            exported.add(found[1])
        elif current is not None and not _LABEL.match(line):
            names[current].update(_COLD.sub("", name) for name in _NAME.findall(line))
            if _INDIRECT.match(line):
                indirect.add(current)
        elif found := _DATA.match(line):
            held.add(found[1])
    return Listing(frames, {f: sorted(s) for f, s in names.items()}, sorted(exported), sorted(held), sorted(indirect))


def deepest_bytes(listings: Sequence[Listing], roots: Sequence[str], recursion: int) -> dict[str, int]:
    """The stack below each root, its own frame included. A function that calls itself is on it `recursion` times."""
    exported = {name: i for i, listing in enumerate(listings) for name in listing.exported if name in listing.names}
    known: dict[tuple[int, str], int] = {}
    path: list[tuple[int, str]] = []

    def found(file: int, names: Sequence[str]) -> set[tuple[int, str]]:
        """The functions among names of a file: its own before those that others export."""
        own = {(file, name) for name in names if name in listings[file].names}
        return own | {(exported[name], name) for name in names if (file, name) not in own and name in exported}

    held = {function for i, listing in enumerate(listings) for function in found(i, listing.held)}

    def below(function: tuple[int, str]) -> int:
        if function in known:
            return known[function]
        if function in path:
            raise DeviceError(f"the stack has no bound: '{function[1]}' calls itself through others", stage="build")
        file, name = function
        listing = listings[file]
        reached = found(file, listing.names[name]) | (held if name in listing.indirect else set())
        path.append(function)
        calls = max((below(other) for other in reached - {function}), default=0)
        path.pop()
        known[function] = listing.frame_bytes(name) * (recursion if function in reached else 1) + calls
        return known[function]

    return {root: below((exported[root], root)) for root in roots}
