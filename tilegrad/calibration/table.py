"""The table of kernel costs: made from counts, kept as JSON next to the target it is for."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from tilegrad.calibration.conduct import count_conducting, fit_conducting
from tilegrad.calibration.counting import COMPILER, EMULATOR, FLAGS, FOLDER, Counts, count, source_hash, version_of
from tilegrad.calibration.fit import Fit, fit
from tilegrad.calibration.samples import Sample, draw_samples
from tilegrad.calibration.sketches import SKETCHES
from tilegrad.costs.loops import described_in, family_of
from tilegrad.ops import registry
from tilegrad.ops.kernels import RUNTIME_FOLDER, parse_kernel_file
from tilegrad.targets.base import Target

SAMPLES_PER_VARIANT = 720
DRAWS_WITHOUT_USE = 60
FEWEST = 30
CONDUCTOR = RUNTIME_FOLDER / "cluster" / "tg_tile.c"
_IMPORTED = re.compile(r"^from tilegrad\.calibration\.(loops\.\w+|sequence) import", re.MULTILINE)
_NAMED = re.compile(r"^from tilegrad\.calibration\.loops import (\w+)", re.MULTILINE)
Key = tuple[str, str]
Counted = list[tuple[Sample, Counts]]


def collect(seed: int, per_variant: int, wanted: Callable[[str], bool] = lambda _: True) -> dict[Key, list[Sample]]:
    """Samples by (kernel, variant): every sketch is drawn until it brings nothing that is not there often enough."""
    found: dict[Key, list[Sample]] = defaultdict(list)
    for position, make in enumerate(SKETCHES):
        useless = 0
        for samples in draw_samples(make, np.random.default_rng((seed, position))):
            useless += 1
            for sample in samples:
                nest = sample.case.nest
                family = family_of(nest)
                if family is None or not wanted(nest.kernel):
                    continue
                known = found[nest.kernel, family.variant(nest)]
                if len(known) < per_variant:
                    known.append(sample)
                    useless = 0
            if useless > DRAWS_WITHOUT_USE:
                break
    return dict(found)


def count_all(
    found: Mapping[Key, Sequence[Sample]], report: Callable[[str], None] = lambda _: None
) -> dict[Key, Counted]:
    """Counts every sample, file by file."""
    by_file: dict[Path, list[tuple[Key, Sample]]] = defaultdict(list)
    for key, samples in found.items():
        for sample in samples:
            path = registry.kernel_source(sample.op)
            assert path is not None
            by_file[path].append((key, sample))
    result: dict[Key, Counted] = defaultdict(list)
    for path, items in sorted(by_file.items()):
        report(f"{path.name}: {len(items)} calls")
        counts = count([sample.case for _, sample in items], parse_kernel_file(path))
        for (key, sample), counted in zip(items, counts, strict=True):
            result[key].append((sample, counted))
    return dict(result)


def _entry(found: Fit, names: Sequence[str]) -> dict[str, Any]:
    errors = np.abs(np.array(found.errors))
    return {
        "samples": len(errors),
        "error_mean_percent": round(100 * float(errors.mean()), 2),
        "within_5_percent": round(100 * float((errors <= 0.05).mean()), 1),
        "trips": list(names),
        "classes": {name: list(values) for name, values in found.coefficients.items()},
    }


def make_table(counted: Mapping[Key, Counted], seed: int) -> dict[str, Any]:
    kernels: dict[str, dict[str, Any]] = {}
    sources: dict[str, str] = {}
    for (kernel, variant), items in sorted(counted.items()):
        path = registry.kernel_source(items[0][0].op)
        family = family_of(items[0][0].case.nest)
        assert path is not None and family is not None
        sources[path.name] = source_hash(path)
        head = {"source": path.name, "description": description_hash(kernel), "variants": {}}
        entry = kernels.setdefault(kernel, head)
        if len(items) >= FEWEST:
            found = fit([sample for sample, _ in items], [counts for _, counts in items])
            entry["variants"][variant] = _entry(found, family.names)
    return {
        "about": "Instructions per trip of each kernel's loops, by class; made by `make calibrate`, do not edit.",
        "compiler": version_of(COMPILER),
        "emulator": version_of(EMULATOR),
        "flags": " ".join(FLAGS),
        "seed": seed,
        "content": content_hash(),
        "sources": dict(sorted(sources.items())),
        "kernels": {name: entry for name, entry in kernels.items() if entry["variants"]},
    }


def kernel_sources() -> dict[str, Path]:
    """The C file of every kernel."""
    paths = {path for op in registry.names() if (path := registry.kernel_source(op)) is not None}
    return {kernel.name: path for path in sorted(paths) for kernel in parse_kernel_file(path).kernels}


def description_hash(kernel: str) -> str:
    """Of the file that describes a kernel's loops and of those it imports, comments included."""
    digest = sha256()
    pending, seen = [described_in(kernel)], set()
    while pending:
        module = pending.pop(0)
        if module not in seen:
            seen.add(module)
            text = (FOLDER / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
            digest.update(text.encode())
            pending += _IMPORTED.findall(text)
            pending += [f"loops.{name}" for name in _NAMED.findall(text)]
    return digest.hexdigest()[:16]


def content_hash() -> str:
    """Of the files that say what operands hold."""
    return sha256(b"".join((FOLDER / name).read_bytes() for name in ("content.py", "sequence.py"))).hexdigest()[:16]


def stale_kernels(table: Mapping[str, Any]) -> frozenset[str]:
    """Kernels that the table has no counts of, or those of an older source, description or content."""
    hashes, known = table.get("sources", {}), table.get("kernels", {})
    is_other_content = table.get("content") != content_hash()
    return frozenset(
        kernel
        for kernel, path in kernel_sources().items()
        if is_other_content
        or kernel not in known
        or hashes.get(path.name) != source_hash(path)
        or known[kernel].get("description") != description_hash(kernel)
    )


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The new table, with what it does not have from the old one."""
    kernels = {**old["kernels"], **new["kernels"]}
    existing = kernel_sources()
    return {
        **new,
        "sources": dict(sorted({**old["sources"], **new["sources"]}.items())),
        "kernels": {name: kernels[name] for name in sorted(kernels) if name in existing},
    }


def conduct_entry(target: Target) -> dict[str, Any]:
    """The tile runtime's costs, with the hash of the source they were counted on."""
    return {"source_hash": source_hash(CONDUCTOR), **fit_conducting(count_conducting(target), target)}


def write_table(table: Mapping[str, Any], path: Path) -> None:
    """One line per class: small, and readable as a difference."""
    text = json.dumps(table, indent=1, ensure_ascii=False)
    lines: list[str] = []
    gathering = ""
    for line in text.splitlines():
        stripped = line.strip()
        if gathering:
            gathering += stripped if stripped.startswith("]") else f"{stripped} "
            if stripped.startswith("]"):
                lines.append(gathering.replace(" ]", "]"))
                gathering = ""
        elif stripped.endswith("["):
            gathering = line
        else:
            lines.append(line)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
