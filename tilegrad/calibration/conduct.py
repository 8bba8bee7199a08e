"""What the conducting core spends in the tile runtime: generated models, counted with everything but that left out.

A nest's table is in scratchpad while it runs; what is still loaded from the constants in L2 waits for L2.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tilegrad import frontend
from tilegrad.calibration.counting import COMPILER, COUNTERS, EMULATOR, FLAGS, FOLDER, LINK_FLAGS, plugin, run_tool
from tilegrad.calibration.fit import CLASSES, non_negative_least_squares
from tilegrad.ir.plan import Plan
from tilegrad.memory.scratch_events import Enter, Fetch, OfNest, entry_events
from tilegrad.pipeline import compile_model
from tilegrad.recipe import Recipe
from tilegrad.scheduling.events import Compute, Start
from tilegrad.scheduling.kernel_cost import CONDUCT_TRIPS, TABLE_PARTS, class_cycles, conduct_trips
from tilegrad.scheduling.tables import simple_steps
from tilegrad.targets.base import L1, L2, Target

MODELS = ("autoencoder", "cct", "dscnn", "mobilenetv1", "resnet8")
SCRATCH_BYTES = (240 * 1024, 64 * 1024, 24 * 1024)
_RECORD = struct.Struct("<2i")
_STRING_H = """#include <stddef.h>
void *memcpy(void *, const void *, size_t);
void *memset(void *, int, size_t);
"""


@dataclass(frozen=True)
class Conducted:
    """Nests that ran in one go: the sum of their trips, and the conducting core's instructions."""

    trips: tuple[float, ...]
    counts: Mapping[str, int]


def trips_of(plan: Plan, entry: str) -> list[tuple[float, ...]]:
    """Of each nest of an entry, by what the runtime does while it runs."""
    places = plan.entries[entry].places
    tiles, boxes, parts = ([0] * len(places) for _ in range(3))
    running = -1
    for event in entry_events(plan, entry):
        if isinstance(event, Enter):
            running = event.nest
        elif isinstance(event, Fetch) and running >= 0:
            boxes[running] += TABLE_PARTS
            parts[running] += TABLE_PARTS
        elif isinstance(event, OfNest) and isinstance(event.event, Start):
            boxes[running] += 1
            parts[running] += len(event.event.parts)
        elif isinstance(event, OfNest) and isinstance(event.event, Compute):
            tiles[running] += 1
    launches = plan.schedule.entries[entry].launches
    operands = [len(launches[place.launch].nests[place.nest].operands) for place in places]
    simple = []
    for place, count in zip(places, tiles, strict=True):
        steps = simple_steps(place.table)
        simple.append(count // (steps + 1) * steps)
    other = [count - 1 - one for count, one in zip(tiles, simple, strict=True)]
    return [conduct_trips(*row) for row in zip(operands, simple, other, boxes, parts, strict=True)]


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


def _counted(folder: Path, plan: Plan) -> Iterator[Conducted]:
    elf = _program(folder)
    start, stop = _constants(elf)
    counts = folder / "counts"
    done = run_tool([EMULATOR, "-plugin", f"{plugin()},lo={start},hi={stop},out={counts}", str(elf)])
    lines = iter(counts.read_text(encoding="ascii").splitlines())
    trips = iter([row for entry in ("step", "update") for row in trips_of(plan, entry)])
    for nests, stretches in _RECORD.iter_unpack(done.stdout):
        total: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        for line in islice(lines, stretches):
            for name, value in zip(COUNTERS, map(int, line.split()), strict=True):
                total[name] += value
        instructions = sum(total[name] for name in COUNTERS if name.startswith("i_") and name != "i_branch_taken")
        together = tuple(map(sum, zip(*islice(trips, nests), strict=True)))
        yield Conducted(together, {"i_total": instructions, **total})


def count_conducting(target: Target) -> list[Conducted]:
    """Every tiled nest of a step and an update of some models, at several sizes of L1."""
    result: list[Conducted] = []
    for model in MODELS:
        imported = frontend.load(model)
        for scratch in SCRATCH_BYTES:
            compiled = compile_model(imported, Recipe(), target.with_capacity(L1, scratch))
            with tempfile.TemporaryDirectory(prefix=f"tilegrad-{os.getpid()}-") as name:
                result += _counted(compiled.write(Path(name) / model), compiled.plan)
    return result


def fit_conducting(found: list[Conducted], target: Target) -> dict[str, Any]:
    """Coefficients of the classes, and of the cycles that follow from them."""
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
        "samples": len(found),
        "error_mean_percent": round(100 * float(errors.mean()), 1),
        "trips": list(CONDUCT_TRIPS),
        "classes": classes,
        "cycles": [round(float(value), 1) for value in cycles],
    }
