"""`python -m benchmarks.clock`: estimated cycles beside those measured on `iss:siracusa`, over many trainings.

Models, modes, sizes of L1 and recipes are chosen by options; what was measured is kept in `benchmarks/data/clock.csv`,
which `python -m benchmarks.truth` turns into the tables of docs/cost-model.md. `--check` exits with 1 where an estimate
is farther off than wanted, or `auto` is slower than another mode. Mini-batches of more than one sample are measured
with a few models (`BATCHED`), as far as options choose their models, modes, sizes and recipes.

Every training is compiled again, and runs only where its program has changed: the file has the digest of each. With
`--stale` nothing runs, and what would is listed. What is done is kept, so that a sweep which was ended goes on where it
was when it is started again, unless the package has changed meanwhile.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType

import tilegrad
from tilegrad import zoo
from tilegrad.build.cache import open_cache
from tilegrad.calibration.cases import KIB, MODES, RECIPES, SIZES, Case
from tilegrad.calibration.observed import l2_bytes, program_digest, training_cycles
from tilegrad.devices.siracusa_image import planned_again
from tilegrad.errors import TilegradError

RESULTS = Path(__file__).parent / "data" / "clock.csv"
ENTRIES, WHOLE = ("step", "update"), "whole step"
DIGITS = 8
SMALL_CYCLES, SMALL_TOLERANCE, TOLERANCE, SLOWER = 1_000_000, 0.10, 0.05, 0.01
# An update of a fused program does nothing: an entry below this is no part of any figure.
NOTHING_CYCLES = 5_000
# Kernels go to other loops where there are several rows; and odd ones leave something beside blocks of four.
BATCHES = {
    "mlp": (5, 32), "autoencoder": (8, 16), "autoencoder_tiny": (5, 32), "dscnn": (4,), "resnet8": (2,),
}  # fmt: skip
BATCHED = tuple(Case(model, "auto", 128 * KIB, batch=batch) for model, batches in BATCHES.items() for batch in batches)


@dataclass(frozen=True)
class Row:
    model: str
    recipe: str
    mode: str
    l1_kib: int
    entry: str
    estimated: int
    measured: int
    program: str  # the first digits of its digest
    l2_kib: int  # what tensors may have of L2: less than usual where code needs it, and the program is planned again
    batch: int = 1

    @property
    def error(self) -> float:
        return self.estimated / self.measured - 1.0

    @property
    def tolerance(self) -> float:
        return SMALL_TOLERANCE if self.measured < SMALL_CYCLES else TOLERANCE

    @property
    def is_near(self) -> bool:
        return abs(self.error) <= self.tolerance

    @property
    def case(self) -> CaseKey:
        return self.model, self.recipe, self.mode, self.l1_kib, self.batch

    @property
    def key(self) -> tuple[str, str, str, int, int, str]:
        return *self.case, self.entry

    @property
    def training(self) -> tuple[str, str, int]:
        """What is trained how, however it is tiled."""
        return self.model, self.recipe, self.batch

    @property
    def name(self) -> str:
        return f"{self.model}, {batched(self.recipe, self.batch)}, {self.mode}, {self.l1_kib}, {self.entry}"


Known = Mapping[str, tuple[Mapping[str, int], int]]
CaseKey = tuple[str, str, str, int, int]


def batched(recipe: str, batch: int) -> str:
    return recipe if batch == 1 else f"{recipe}, batch {batch}"


def case_key(case: Case) -> CaseKey:
    return case.model, case.recipe, case.mode, case.scratch_bytes // KIB, case.batch


def known_programs(rows: Sequence[Row]) -> Known:
    """By its digest, what a program took, and what it had of L2."""
    found: dict[str, tuple[dict[str, int], int]] = {}
    for row in rows:
        found.setdefault(row.program, ({}, row.l2_kib * KIB))[0][row.entry] = row.measured
    return found


def measure(case: Case, known: Known = MappingProxyType({})) -> list[Row]:
    """Nothing where the training does not fit. A program that is `known` does not run again."""
    try:
        compiled = case.compile()
        program = program_digest(compiled)[:DIGITS]
        ran, room_bytes = known.get(program) or training_cycles(compiled)
        if room_bytes != l2_bytes(compiled):
            compiled = planned_again(compiled, room_bytes)
    except TilegradError as error:
        print(f"{case.name}: {error}", file=sys.stderr)
        return []
    rows = []
    for entry in ENTRIES:
        cycles = ran.get(entry, 0)
        if cycles and (entry == "step" or cycles >= NOTHING_CYCLES):
            estimated = round(compiled.timing[entry].cycles)
            *key, batch = case_key(case)
            rows.append(Row(*key, entry, estimated, cycles, program, room_bytes // KIB, batch))
    return rows


@cache
def package_digest() -> str:
    """Of all that an estimate and an image may depend on."""
    folder, digest = Path(tilegrad.__file__).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(hashlib.sha256(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes()).digest())
    return digest.hexdigest()


def measured_once(case: Case, known: Known) -> list[Row]:
    """What this package was found to do before is not found again."""
    kept = open_cache(use_cache=True)
    key = f"clock-{hashlib.sha256(f'{package_digest()} {case.name}'.encode()).hexdigest()}"
    found = kept.take(key) if kept is not None else None
    if found is not None:
        return [Row(**row) for row in json.loads(found)]
    rows = measure(case, known)
    if kept is not None and rows:
        kept.keep(key, json.dumps([asdict(row) for row in rows]).encode())
        kept.finish()
    return rows


def measure_all(group: Sequence[Case]) -> tuple[Sequence[Case], list[Row]]:
    known = known_programs(read())
    return group, [row for case in group for row in measured_once(case, known)]


def changed(group: Sequence[Case], known: Known) -> list[tuple[Case, str]]:
    """Trainings whose programs were never run, by their digests."""
    found = []
    for case in group:
        try:
            program = program_digest(case.compile())[:DIGITS]
        except TilegradError as error:
            print(f"{case.name}: {error}", file=sys.stderr)
            continue
        if program not in known:
            found.append((case, program))
    return found


def groups(chosen: Sequence[Case]) -> list[list[Case]]:
    """What one process does in turn: recipes of a model in one size and mode have most of their nests, and so their
    tilings, in common."""
    found: dict[tuple[str, str, int, int], list[Case]] = {}
    for case in chosen:
        found.setdefault((case.model, case.mode, case.scratch_bytes, case.batch), []).append(case)
    return list(found.values())


def cases(models: Sequence[str], modes: Sequence[str], sizes: Sequence[int], recipes: Sequence[str]) -> list[Case]:
    """Untiled programs do not depend on L1: one size of them is enough."""
    single = [
        Case(model, mode, size * KIB, recipe)
        for model in models
        for recipe in recipes
        for mode in modes
        for size in (sizes if mode != "untiled" else sizes[-1:])
    ]
    wanted = set(single)
    return single + [case for case in BATCHED if replace(case, batch=1) in wanted]


def read(path: Path = RESULTS) -> list[Row]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return [
            Row(
                row["model"], row["recipe"], row["mode"], int(row["l1_kib"]), row["entry"], int(row["estimated"]),
                int(row["measured"]), row["program"], int(row["l2_kib"]), int(row.get("batch", 1)),
            )
            for row in csv.DictReader(stream)
        ]  # fmt: skip


def write(rows: Sequence[Row], done: Sequence[Case], path: Path = RESULTS) -> None:
    """What is there already stays, but for the cases that are done; others may be reading."""
    again = {case_key(case) for case in done}
    kept = {row.key: row for row in (*(row for row in read(path) if row.case not in again), *rows)}
    written = path.with_suffix(".new")
    with written.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for _, row in sorted(kept.items()))
    written.replace(path)


def whole_steps(rows: Sequence[Row]) -> list[Row]:
    """One for each training: what a change of its weights takes, with all mini-batches that it is of."""
    entries: dict[CaseKey, list[Row]] = {}
    for row in rows:
        entries.setdefault(row.case, []).append(row)
    return [_whole_step(own) for own in entries.values()]


def _whole_step(own: Sequence[Row]) -> Row:
    counts = {"step": RECIPES[own[0].recipe].accumulate, "update": 1}
    estimated = sum(counts[row.entry] * row.estimated for row in own)
    return replace(
        own[0], entry=WHOLE, estimated=estimated, measured=sum(counts[row.entry] * row.measured for row in own)
    )


def slower_than_another(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """`auto` with the fastest other mode of the same training, where that is faster: whole steps."""
    steps = whole_steps(rows)
    for auto in (row for row in steps if row.mode == "auto"):
        same = [
            row
            for row in steps
            if row.training == auto.training
            and row.mode != "auto"
            and (row.mode == "untiled" or row.l1_kib == auto.l1_kib)
        ]
        best = min(same, key=lambda row: row.measured, default=None)
        if best is not None and auto.measured > best.measured:
            yield auto, best


def complaints(rows: Sequence[Row]) -> Iterator[str]:
    for row in whole_steps(rows):
        if not row.is_near:
            yield f"{row.name}: {100 * row.error:+.1f} %"
    for auto, best in slower_than_another(rows):
        share = auto.measured / best.measured - 1.0
        if share > SLOWER:
            recipe = batched(auto.recipe, auto.batch)
            yield f"{auto.model}, {recipe}, {auto.l1_kib}K: auto is {100 * share:.1f} % slower than {best.mode}"


def table(rows: Sequence[Row]) -> Iterator[str]:
    """By training: the largest error of each mode, of whole steps over sizes of L1."""
    yield "| model | recipe | steps, cycles | untiled | single | double | auto | auto behind the best |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    models, recipes = list(zoo.names()), list(RECIPES)
    trainings = {row.training for row in rows if row.model in models}
    for model, recipe, batch in sorted(
        trainings, key=lambda one: (models.index(one[0]), one[2], recipes.index(one[1]))
    ):
        own = [row for row in rows if row.training == (model, recipe, batch)]
        autos = [row.measured for row in own if row.mode == "auto" and row.entry == "step"] or [0]
        cells = []
        for mode in MODES:
            errors = [row.error for row in whole_steps(own) if row.mode == mode]
            cells.append(f"{100 * max(errors, key=abs):+.1f} %" if errors else "-")
        losses = [auto.measured / best.measured - 1.0 for auto, best in slower_than_another(own)]
        cells.append(f"{100 * max(losses):.1f} %" if losses else "-")
        span = f"{min(autos):,}" if min(autos) == max(autos) else f"{min(autos):,} to {max(autos):,}"
        yield f"| `{model}` | {batched(recipe, batch)} | {span} | {' | '.join(cells)} |"


def different(rows: Sequence[Row]) -> list[Row]:
    """Much of L1 and little, or two modes, often give the same program: it ran once, and counts once."""
    return list({(row.program, row.entry): row for row in rows}.values())


def summary(rows: Sequence[Row]) -> str:
    """Of whole steps; and of their entries, where one may be far off that takes no time."""
    whole = whole_steps(rows)
    own, entries = different(whole), different(rows)
    mean = sum(abs(row.error) for row in own) / max(len(own), 1)
    near, near_entries = (sum(row.is_near for row in those) for those in (own, entries))
    far = sorted({f"`{row.model}` with {batched(row.recipe, row.batch)}" for row in entries if not row.is_near})
    return (
        f"{len(whole)} trainings, {len(own)} of them different: the estimate of a whole step is off by "
        f"{100 * mean:.1f} % on average, and {near} are within 5 % (10 % below a million cycles). Of their "
        f"{len(entries)} entries, mini-batches and updates apart, {near_entries} are. Updates that are not: "
        f"{', '.join(far) or 'none'}."
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(zoo.names()))
    parser.add_argument("--modes", nargs="*", default=list(MODES), choices=list(MODES))
    parser.add_argument("--l1", nargs="*", type=int, default=[size // KIB for size in SIZES], help="KiB")
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--missing", action="store_true", help="only what is not in benchmarks/data/clock.csv yet")
    parser.add_argument("--stale", action="store_true", help="run nothing, and list the trainings that would run")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="exit with 1 where something is not as wanted")
    return parser.parse_args()


def list_stale(chosen: Sequence[Case], jobs: int) -> None:
    programs: set[str] = set()
    with get_context("spawn").Pool(jobs) as pool:
        for found in pool.imap_unordered(partial(changed, known=known_programs(read())), groups(chosen)):
            for case, program in found:
                print(f"{case.name}: {program}{' again' if program in programs else ''}", flush=True)
                programs.add(program)
    print(f"{len(programs)} programs would run, for {len(chosen)} trainings")


def sweep(chosen: Sequence[Case], jobs: int) -> list[Row]:
    found: list[Row] = []
    with get_context("spawn").Pool(jobs) as pool:
        todo, begun = groups(chosen), time.monotonic()
        for count, (done, rows) in enumerate(pool.imap_unordered(measure_all, todo), 1):
            for row in rows:
                print(f"{row.name}: {row.estimated:,} estimated, {row.measured:,} measured, "
                      f"{100 * row.error:+.1f} %", flush=True)  # fmt: skip
            found += rows
            write(rows, done)
            print(f"-- {count} of {len(todo)} groups, {(time.monotonic() - begun) / 60:.1f} min", flush=True)
    return found


def main() -> int:
    arguments = _options()
    chosen = cases(arguments.models, arguments.modes, arguments.l1, arguments.recipes)
    if arguments.missing:
        known = {row.case for row in read()}
        chosen = [one for one in chosen if case_key(one) not in known]
    if arguments.stale:
        list_stale(chosen, arguments.jobs)
        return 0
    found = sweep(chosen, arguments.jobs)
    print(summary(found))
    wrong = list(complaints(found))
    print("\n".join(wrong) if wrong else "everything is as wanted")
    return 1 if wrong and arguments.check else 0


if __name__ == "__main__":
    raise SystemExit(main())
