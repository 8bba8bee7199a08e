"""What the conducting core spends in the tile runtime: generated models, counted with everything but that left out.

A nest's table is in scratchpad while it runs; what is still loaded from the constants in L2 waits for L2.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tilegrad import frontend
from tilegrad.analysis.tables import simple_steps
from tilegrad.build.riscv import COMPILER, FLAGS
from tilegrad.calibration.counting import COUNTERS, EMULATOR, FOLDER, LINK_FLAGS, plugin, run_tool
from tilegrad.calibration.fit import non_negative_least_squares
from tilegrad.costs.kernel_cost import CLASSES, CONDUCT_TRIPS, Boxes, class_cycles, conduct_trips
from tilegrad.ir.listing import Begin, End, Enter, EntryListing, Fetch, Listing, Load, Store
from tilegrad.pipeline import compile_model
from tilegrad.recipe import Recipe
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.sequence.calls import entry_calls
from tilegrad.targets.base import L1, L2, Target

MODELS = ("autoencoder", "cct", "dscnn", "mobilenetv1", "resnet8")
SCRATCH_BYTES = (240 * 1024, 64 * 1024, 24 * 1024)
UNFUSED = ScheduleOptions(fuses_update=False)
_RECORD = struct.Struct("<2i")
_STRING_H = """#include <stddef.h>
void *memcpy(void *, const void *, size_t);
void *memset(void *, int, size_t);
"""


@dataclass(frozen=True)
class Conducted:
    """Nests that ran in one go: the sum of their trips, and the conducting core's instructions, between kernel calls or
    while other cores computed."""

    trips: tuple[float, ...]
    counts: Mapping[str, int]


Trips = tuple[float, ...]


def trips_of(listing: EntryListing) -> list[tuple[Trips, Trips]]:
    """Of each nest of an entry, by what the runtime does while it runs: between kernel calls, and meanwhile."""
    boxes = [(Boxes(), Boxes()) for _ in listing.nests]
    running, is_meanwhile = -1, 0
    for event in listing.events:
        if isinstance(event, Enter):
            running = event.nest
        elif isinstance(event, Fetch) and running >= 0:
            boxes[running][is_meanwhile].tables += 1
        elif isinstance(event, Load | Store):
            boxes[running][is_meanwhile].add(event.inward, len(event.parts))
        elif isinstance(event, Begin | End):
            is_meanwhile = int(isinstance(event, Begin))
    result = []
    for listed, call, moved in zip(listing.nests, entry_calls(listing).nests, boxes, strict=True):
        assert listed.table is not None
        steps = simple_steps(listed.table)
        simple = listed.tile_count // (steps + 1) * steps
        counts = (len(listed.nest.operands), simple, listed.tile_count - 1 - simple)
        between, meanwhile = (conduct_trips(*counts, one, call.at_once) for one in moved)
        result.append((between, meanwhile))
    return result


def _tool(name: str) -> str:
    return COMPILER.replace("-gcc", f"-{name}")


def _undefined(objects: list[str]) -> list[str]:
    """Symbols that no object defines: kernels, and what the runtime calls that costs nothing here."""
    defined, used = set(), set()
    for line in run_tool([_tool("nm"), *objects]).stdout.decode().splitlines():
        words = line.split()
        if len(words) >= 2 and words[-2] == "U":
            used.add(words[-1])
        elif len(words) == 3:
            defined.add(words[-1])
    renamed = {"__real_tg_run_nests", "tg_run_nests", "__real_tg_start", "tg_start"}
    return sorted(used - defined - renamed)


def _program(folder: Path) -> Path:
    (folder / "string.h").write_text(_STRING_H, encoding="utf-8")
    objects = []
    sources = [folder / "model.c", folder / "tg_tile.c", FOLDER / "count_conduct.c"]
    for source in sources:
        objects.append(str(folder / f"{source.stem}.o"))
        run_tool([COMPILER, *FLAGS, f"-I{folder}", "-c", str(source), "-o", objects[-1]])
    missing = folder / "missing.c"
    text = "".join(f"int {name}(void) {{ return 0; }}\n" for name in _undefined(objects))
    missing.write_text(text, encoding="utf-8")
    objects.append(str(folder / "missing.o"))
    run_tool([COMPILER, *FLAGS, "-c", str(missing), "-o", objects[-1]])
    elf = folder / "conduct.elf"
    run_tool([COMPILER, *LINK_FLAGS, "-Wl,--wrap=tg_run_nests,--wrap=tg_start", *objects, "-o", str(elf), "-lgcc"])
    return elf


def _constants(elf: Path) -> tuple[int, int]:
    """Where the constant tables are."""
    for line in run_tool([_tool("readelf"), "-S", "-W", str(elf)]).stdout.decode().splitlines():
        words = line.partition("]")[2].split()
        if words[:1] == [".rodata"]:
            start = int(words[2], 16)
            return start, start + int(words[4], 16)
    return 0, 0


def _counted(folder: Path, listing: Listing) -> Iterator[tuple[Conducted, Conducted]]:
    elf = _program(folder)
    start, stop = _constants(elf)
    counts = folder / "counts"
    done = run_tool([EMULATOR, "-plugin", f"{plugin()},lo={start},hi={stop},out={counts}", str(elf)])
    lines = iter(counts.read_text(encoding="ascii").splitlines())
    every = iter([row for entry in ("step", "update") for row in trips_of(listing.entries[entry])])
    at = 0
    while at < len(done.stdout):
        nests, stretches = _RECORD.unpack_from(done.stdout, at)
        kinds = done.stdout[at + _RECORD.size :][:stretches]
        at += _RECORD.size + stretches
        totals: list[dict[str, int]] = [dict.fromkeys(COUNTERS, 0) for _ in range(2)]
        for kind, line in zip(kinds, islice(lines, stretches), strict=True):
            for name, value in zip(COUNTERS, map(int, line.split()), strict=True):
                totals[kind][name] += value
        trips = list(islice(every, nests))
        yield tuple(_conducted([pair[kind] for pair in trips], totals[kind]) for kind in (0, 1))  # type: ignore[misc]


def _conducted(trips: Sequence[Trips], total: Mapping[str, int]) -> Conducted:
    instructions = sum(total[name] for name in COUNTERS if name.startswith("i_") and name != "i_branch_taken")
    return Conducted(tuple(map(sum, zip(*trips, strict=True))), {"i_total": instructions, **total})


def count_conducting(target: Target) -> list[tuple[Conducted, Conducted]]:
    """Every tiled nest of a step and an update of some models, at several sizes of L1: between kernel calls, and while
    other cores compute."""
    result: list[tuple[Conducted, Conducted]] = []
    for model in MODELS:
        imported = frontend.load(model)
        for scratch in SCRATCH_BYTES:
            compiled = compile_model(imported, Recipe(), target.with_capacity(L1, scratch), options=UNFUSED)
            with tempfile.TemporaryDirectory(prefix=f"tilegrad-{os.getpid()}-") as name:
                result += _counted(compiled.write(Path(name) / model), compiled.listing)
    return result


def fit_conducting(found: Sequence[tuple[Conducted, Conducted]], target: Target) -> dict[str, Any]:
    """Coefficients of the classes, and of the cycles that follow from them."""
    parts = {name: _fit([pair[k] for pair in found], target) for k, name in enumerate(("between", "meanwhile"))}
    return {"samples": len(found), "trips": list(CONDUCT_TRIPS), **parts}


def _fit(found: Sequence[Conducted], target: Target) -> dict[str, Any]:
    assert target.costs is not None
    trips = np.array([nest.trips for nest in found], dtype=np.float64)
    totals = np.array([nest.counts["i_total"] for nest in found], dtype=np.float64)
    classes = {}
    for name in CLASSES:
        counts = np.array([nest.counts[name] for nest in found], dtype=np.float64)
        coefficients = non_negative_least_squares(trips / totals[:, None], counts / totals)
        if coefficients.any():
            classes[name] = [float(f"{value:.4g}") for value in coefficients]
    errors = np.abs(trips @ np.array(classes["i_total"]) / totals - 1.0)
    weights = class_cycles(target.costs, float(target.memory(L2).core_extra_cycles or 0))
    cycles = np.zeros(len(CONDUCT_TRIPS))
    for name, values in classes.items():
        cycles += weights.get(name, 0.0) * np.array(values)
    return {
        "error_mean_percent": round(100 * float(errors.mean()), 1),
        "classes": classes,
        "cycles": [round(float(value), 1) for value in cycles],
    }
