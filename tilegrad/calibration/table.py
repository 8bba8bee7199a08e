"""The table of kernel costs: made from counts, kept as JSON next to the target it is for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import numpy as np

from tilegrad.build.riscv import COMPILER, COUNTED_FLAGS
from tilegrad.calibration.counting import EMULATOR, FOLDER, Counts, Sample, count, source_hash, version_of
from tilegrad.calibration.examples import operators
from tilegrad.calibration.fit import Fit, choose_structure, fit, fit_typical
from tilegrad.calibration.samples import draw_samples
from tilegrad.costs import derived, loops
from tilegrad.costs.derived import UNCOUNTED, derived_family, family_of, plain_structure
from tilegrad.costs.loops import is_mirrored, mirrored_family
from tilegrad.costs.loops.base import Family
from tilegrad.ops import registry
from tilegrad.ops.example import Draw
from tilegrad.ops.kernels import parse_kernel_file

SAMPLES_PER_VARIANT = 240
DRAWS_WITHOUT_USE, DRAWS_PER_SAMPLE = 40, 8
FEWEST = 15
TYPICAL = 12  # samples of each kernel that the estimate of an uncounted one rests on
K = TypeVar("K")
Key = tuple[str, str]
Counted = list[tuple[Sample, Counts]]


def collect(seed: int, per_variant: int, wanted: Callable[[str], bool] = lambda _: True) -> dict[Key, list[Sample]]:
    """Samples by (kernel, variant): of every operator nodes are drawn until they bring nothing that is not there often
    enough, by its name, so that another operator changes nothing. Variants are those of the plainest structure: which
    one a kernel has is found when it is fitted."""
    found: dict[Key, list[Sample]] = defaultdict(list)
    for name, operator in operators().items():
        useless = 0
        for samples in islice(draw_samples(operator, Draw(seed, crc32(name.encode()))), DRAWS_PER_SAMPLE * per_variant):
            useless += 1
            for sample in samples:
                nest = sample.nest
                if not wanted(nest.kernel):
                    continue
                family = mirrored_family(nest) or derived_family(nest, plain_structure(nest))
                known = found[nest.kernel, family.variant(nest)]
                if len(known) < per_variant:
                    known.append(sample)
                    useless = 0
            if useless > DRAWS_WITHOUT_USE:
                break
    return dict(found)


def count_all(found: Mapping[K, Sequence[Sample]], report: Callable[[str], None] = lambda _: None) -> dict[K, Counted]:
    """Counts every sample, file by file."""
    by_file: dict[Path, list[tuple[K, Sample]]] = defaultdict(list)
    for key, samples in found.items():
        for sample in samples:
            path = registry.kernel_source(sample.op)
            assert path is not None
            by_file[path].append((key, sample))
    result: dict[K, Counted] = defaultdict(list)
    for path, items in sorted(by_file.items()):
        report(f"{path.name}: {len(items)} calls")
        counts = count([sample for _, sample in items], parse_kernel_file(path))
        for (key, sample), counted in zip(items, counts, strict=True):
            result[key].append((sample, counted))
    return dict(result)


def _fitted(items: Counted, family: Family, by: Callable[..., Fit] = fit) -> dict[str, Any]:
    found = by(*zip(*items, strict=True), family)
    errors = np.abs(np.array(found.errors))
    return {
        "samples": len(errors),
        "error_mean_percent": round(100 * float(errors.mean()), 2),
        "within_5_percent": round(100 * float((errors <= 0.05).mean()), 1),
        "trips": list(family.names),
        "classes": {name: list(values) for name, values in found.coefficients.items()},
    }


def _kernel_entry(kernel: str, items: Counted) -> dict[str, Any]:
    """What a kernel's trips are, and the coefficients of each variant that was counted often enough."""
    head: dict[str, Any] = {}
    if not is_mirrored(kernel):
        structure = choose_structure(*zip(*items, strict=True))
        head = {"shared": list(structure.shared), "run": structure.run}
    variants: dict[str, Counted] = defaultdict(list)
    families: dict[str, Family] = {}
    for sample, counts in items:
        family = family_of(sample.nest, head)
        families[family.variant(sample.nest)] = family
        variants[family.variant(sample.nest)].append((sample, counts))
    fitted = {name: _fitted(own, families[name]) for name, own in sorted(variants.items()) if len(own) >= FEWEST}
    if not fitted and len(items) >= FEWEST:  # each variant is rare: together they are not
        fitted = {"": _fitted(items, next(iter(families.values())))}
    return {"description": description_hash(kernel), **head, "variants": fitted}


def make_table(counted: Mapping[Key, Counted], seed: int) -> dict[str, Any]:
    by_kernel: dict[str, Counted] = defaultdict(list)
    for (kernel, _), items in sorted(counted.items()):
        by_kernel[kernel] += items
    kernels: dict[str, dict[str, Any]] = {}
    sources: dict[str, str] = {}
    for kernel, items in by_kernel.items():
        path = registry.kernel_source(items[0][0].op)
        assert path is not None
        sources[path.name] = source_hash(path)
        kernels[kernel] = {"source": path.name, **_kernel_entry(kernel, items)}
    typical = [pair for items in by_kernel.values() for pair in items[:: -(-len(items) // TYPICAL)]]
    return {
        "about": "Instructions per trip of each kernel's loops, by class; made by `make calibrate`, do not edit.",
        "compiler": version_of(COMPILER),
        "emulator": version_of(EMULATOR),
        "flags": " ".join(COUNTED_FLAGS),
        "seed": seed,
        "content": content_hash(),
        "sources": dict(sorted(sources.items())),
        "uncounted": {"variants": {"": _fitted(typical, UNCOUNTED, fit_typical)} if typical else {}},
        "kernels": {name: entry for name, entry in kernels.items() if entry["variants"]},
    }


def kernel_sources() -> dict[str, Path]:
    """The C file of every kernel."""
    paths = {path for op in registry.names() if (path := registry.kernel_source(op)) is not None}
    return {kernel.name: path for path in sorted(paths) for kernel in parse_kernel_file(path).kernels}


def description_hash(kernel: str) -> str:
    """Of the files that say what the trips of a kernel are, comments included."""
    mirrors = Path(loops.__file__).parent
    files = sorted(mirrors.glob("*.py")) if is_mirrored(kernel) else [Path(derived.__file__), mirrors / "base.py"]
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def content_hash() -> str:
    """Of the file that says what operands hold."""
    return sha256((FOLDER / "content.py").read_bytes()).hexdigest()[:16]


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
        "uncounted": old.get("uncounted") or new["uncounted"],  # a few kernels are not typical
        "sources": dict(sorted({**old["sources"], **new["sources"]}.items())),
        "kernels": {name: kernels[name] for name in sorted(kernels) if name in existing},
    }
