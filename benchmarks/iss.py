"""`python -m benchmarks.iss`: iss:siracusa beside the chip's own cycle model, and how fast it is.

The chip's figures are in benchmarks/siracusa, or in the folder that --truth names: `models.csv` and `nests.csv` of
images whose hashes `images.csv` has, `modes.csv` of other schedules and recipes, and microbenchmarks. Images are
compiled by the package as it was then (--commit, out of this repository); where their bytes are not those that were
measured, the row says so. --images names a folder that has them already (MODEL/image.elf). --docs writes the tables
into a page.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks import iss_micro
from tilegrad.devices.iss import build_simulator
from tilegrad.devices.iss_profile import parse_calls
from tilegrad.devices.siracusa_image import ImageRun, parse_console

TRUTH = Path(__file__).parent / "siracusa"
MEASURED_COMMIT = "fb575ab"
STEP_TOLERANCE, NEST_TOLERANCE, NEST_SHARE = 0.03, 0.08, 0.01
MICRO_TOLERANCES = {"icache_runs": 0.03}
MICRO_TOLERANCE = 0.02
MODES = {
    "untiled": ("--tiling", "off"),
    "single": ("--buffering", "single"),
    "double": ("--buffering", "double"),
    "auto": (),
}
RECIPES = {
    "batch 1, SGD fused": (),
    "--accum 2": ("--accum", "2"),
    "--accum 2, momentum": ("--accum", "2", "--optimizer", "momentum"),
    "adam (fused)": ("--optimizer", "adam"),
}
_MARK = "<!-- {name}: python -m benchmarks.iss --docs docs/iss.md -->"


@dataclass(frozen=True)
class Bench:
    """Where things are: the simulator, the truth, images that exist, and a folder for others."""

    simulator: Path
    truth: Path
    images: Path | None
    work: Path
    package: Path

    def rows(self, name: str, **wanted: str) -> list[dict[str, str]]:
        with (self.truth / name).open(encoding="utf-8", newline="") as stream:
            return [
                row
                for row in csv.DictReader(stream)
                if row.get("variant", "as_is") == "as_is" and all(row[k] == v for k, v in wanted.items())
            ]

    def image(self, name: str, model: str, *options: str) -> Path:
        """`name` is unique among images."""
        found = self.images / name / "image.elf" if self.images is not None else None
        if found is not None and found.exists():
            return found
        folder = self.work / name
        command = [sys.executable, "-m", "tilegrad", "compile", model, "--device", "gvsoc:siracusa", "--steps", "2"]
        done = subprocess.run(
            [*command, *options, "-o", str(folder)],
            cwd=self.package,
            env={**os.environ, "PYTHONPATH": str(self.package)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"{model} cannot be compiled:\n{done.stderr}")
        return folder / "image.elf"

    def run(self, image: Path, profile: Path | None = None) -> tuple[ImageRun, int, float]:
        """What the image printed, the instructions of all cores, and the seconds of the processor that it took."""
        command = [str(self.simulator), str(image), *(("--profile", str(profile)) if profile is not None else ())]
        before = _child_seconds()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = _child_seconds() - before
        if done.returncode not in (0, 1, 2):
            raise SystemExit(f"'{image}' failed:\n{done.stderr}")
        counted = re.search(r"instructions (\d+)", done.stderr)
        assert counted is not None
        return parse_console(done.stdout, done.returncode), int(counted[1]), seconds


def package_of(commit: str, folder: Path) -> Path:
    """The package as it was then."""
    folder.mkdir()
    archive = folder / "package.tar"
    command = ["git", "archive", "--output", str(archive), commit, "tilegrad"]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"commit {commit} is not in this repository: give --images\n{done.stderr}")
    shutil.unpack_archive(archive, folder)
    return folder


def _child_seconds() -> float:
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _error(got: float, wanted: float) -> str:
    return f"{100 * (got / wanted - 1):+.2f} %"


def _grid(heads: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'|'.join('---' if i == 0 else '---:' for i in range(len(heads)))}|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


# ---- The tables.


def models_table(bench: Bench, names: list[str]) -> tuple[str, list[str], list[tuple[int, float]]]:
    """Each model's second step, and its worst nest of those that take more than 1 % of it."""
    made, misses, speeds = [], [], []
    for row in bench.rows("models.csv"):
        model = row["model"]
        if names and model not in names:
            continue
        image = bench.image(model, model, "--l1", "128K")
        wanted = bench.rows("images.csv", model=model)[0]["sha256_of_image_elf"]
        is_same = hashlib.sha256(image.read_bytes()).hexdigest() == wanted
        profile = bench.work / f"{model}.json"
        ran, instructions, seconds = bench.run(image, profile)
        speeds.append((instructions, seconds))
        step, truth = ran.cycles["step"][1], int(row["step1"])
        cells = [model, f"{int(row['est_step']):,}", f"{step:,}", f"{truth:,}", _error(step, truth)]
        if abs(step / truth - 1) > STEP_TOLERANCE:
            misses.append(f"{model}: step {_error(step, truth)}")
        cells += [_error(ran.cycles["infer"][-1], int(row["infer"]))]
        calls = [nests[1:] for entry, nests in parse_calls(profile.read_text(encoding="utf-8")) if entry == "step"]
        truths = bench.rows("nests.csv", model=model)
        if is_same and len(calls[1]) == len(truths):
            errors = [
                (nest.cycles / int(told["cycles"]) - 1, told)
                for nest, told in zip(calls[1], truths, strict=True)
                if int(told["cycles"]) > NEST_SHARE * truth
            ]
            worst, told = max(errors, key=lambda each: abs(each[0]))
            mean = sum(abs(error) for error, _ in errors) / len(errors)
            cells += [f"{100 * mean:.2f} %", f"{100 * worst:+.1f} % ({told['kernel']}, {int(told['cycles']):,})"]
            misses += [
                f"{model}: nest {told['nest']} ({told['kernel']}) {100 * error:+.1f} %"
                for error, told in errors
                if abs(error) > NEST_TOLERANCE
            ]
        else:
            cells += ["-", "another image than the measured one"]
        cells.append(ran.verdict)
        made.append(cells)
        print(" ".join(cells), flush=True)
    heads = ["model", "estimate", "`iss`", "chip's cycle model", "error", "inference", "nests: mean", "worst", "bits"]
    return _grid(heads, made), misses, speeds


def modes_table(bench: Bench, names: list[str]) -> tuple[str, list[str]]:
    made, misses = [], []
    for row in bench.rows("modes.csv"):
        model = row["model"]
        if names and model not in names:
            continue
        options = [
            *MODES[row["mode"]],
            *RECIPES[row["recipe"]],
            *(() if row["l1"] == "default" else ("--l1", row["l1"])),
        ]
        name = "-".join([model, row["mode"], row["l1"], *(option.strip("-") for option in RECIPES[row["recipe"]])])
        ran, _, _ = bench.run(bench.image(name, model, *options))
        # The second step, whatever an update has of them.
        pairs = [("step", ran.cycles["step"][1], row["step1_cycles_measured"], row["step_cycles_estimated"])]
        if row["update_cycles_measured"]:
            pairs.append(
                ("update", ran.cycles["update"][-1], row["update_cycles_measured"], row["update_cycles_estimated"])
            )
        for entry, got, told, estimate in pairs:
            cells = [
                model,
                row["recipe"],
                row["mode"],
                row["l1"],
                entry,
                f"{int(estimate):,}",
                f"{got:,}",
                f"{int(told):,}",
            ]
            cells.append(_error(got, int(told)))
            if abs(got / int(told) - 1) > STEP_TOLERANCE:
                misses.append(f"{model}, {row['recipe']}, {row['mode']}, {row['l1']}: {entry} {cells[-1]}")
            made.append(cells)
            print(" ".join(cells), flush=True)
    heads = ["model", "recipe", "mode", "L1", "entry", "estimate", "`iss`", "chip's cycle model", "error"]
    return _grid(heads, made), misses


def micro_table(bench: Bench) -> tuple[str, list[str]]:
    """By file: how many rows, how many are within the tolerance, and the worst."""
    tables: dict[str, list[tuple[iss_micro.Row, iss_micro.Found]]] = {}
    for row, found in iss_micro.measure(bench.simulator, bench.work):
        tables.setdefault(row.table, []).append((row, found))
    made, misses = [], []
    for name, pairs in tables.items():
        allowed = MICRO_TOLERANCES.get(name, MICRO_TOLERANCE)
        row, worst = max(pairs, key=lambda pair: abs(pair[1].error(pair[0])))
        inside = sum(abs(found.error(row)) <= allowed for row, found in pairs)
        among = sum(abs(found.beyond(row)) <= allowed for row, found in pairs)
        mean = sum(abs(found.error(row)) for row, found in pairs) / len(pairs)
        made.append(
            [
                f"`{name}`",
                str(len(pairs)),
                f"{100 * allowed:.0f} %",
                str(inside),
                str(among),
                f"{100 * mean:.2f} %",
                f"{100 * worst.error(row):+.1f} % ({row.what}, {row.who})",
            ]
        )
        for row, found in pairs:
            if abs(found.error(row)) > allowed:
                calls = f"its calls take {found.least:,.0f} to {found.most:,.0f}, measured were {row.cycles:,.0f}"
                misses.append(f"{name}: {row.what}, {row.who}: {100 * found.error(row):+.1f} %; {calls}")
    heads = ["rows of", "rows", "tolerance", "median call inside", "some call inside", "mean error", "worst"]
    return _grid(heads, made), misses


def _with_misses(table: str, misses: list[str], wanted: str) -> str:
    told = "none." if not misses else "\n\n" + "\n".join(f"- {miss}" for miss in misses)
    return f"{table}\n\nOutside of what is wanted ({wanted}): {told}"


def speed_line(speeds: list[tuple[int, float]]) -> str:
    instructions, seconds = (sum(column) for column in zip(*speeds, strict=True))
    return (
        f"{instructions / 1e6:,.0f} million instructions of all cores in {seconds:.0f} s of one processor core: "
        f"**{instructions / seconds / 1e6:.0f} million instructions per second**."
    )


def write_docs(page: Path, parts: dict[str, str]) -> None:
    text = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        begin, end = _MARK.format(name=name), f"<!-- end of {name} -->"
        if begin not in text or end not in text:
            raise SystemExit(f"{page} has no place for the part '{name}'")
        head, _, rest = text.partition(begin)
        text = f"{head}{begin}\n{part}\n{end}{rest.partition(end)[2]}"
    page.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", type=Path, default=TRUTH, help="the chip's figures")
    parser.add_argument("--images", type=Path, help="a folder with images: NAME/image.elf")
    parser.add_argument("--commit", default=MEASURED_COMMIT, help="of the package that images are compiled by")
    parser.add_argument("--models", nargs="*", default=[], help="only these")
    parser.add_argument(
        "--parts", nargs="*", default=["models", "modes", "micro"], choices=["models", "modes", "micro"]
    )
    parser.add_argument("--docs", type=Path, help="write the tables into this page")
    arguments = parser.parse_args()
    begun = time.monotonic()
    parts: dict[str, str] = {}
    misses: list[str] = []
    with tempfile.TemporaryDirectory() as work:
        package = package_of(arguments.commit, Path(work) / "package")
        bench = Bench(build_simulator(Path(work)), arguments.truth, arguments.images, Path(work), package)
        if "models" in arguments.parts:
            table, missed, speeds = models_table(bench, arguments.models)
            parts["models"] = _with_misses(table, missed, "steps within 3 %, nests within 8 %")
            misses += missed
            parts["speed"] = speed_line(speeds)
        if "modes" in arguments.parts:
            table, missed = modes_table(bench, arguments.models)
            parts["modes"] = _with_misses(table, missed, "steps within 3 %")
            misses += missed
        if "micro" in arguments.parts:
            table, missed = micro_table(bench)
            parts["microbenchmarks"] = _with_misses(table, missed, "2 %; runs of the instruction cache 3 %")
            misses += missed
    if arguments.docs is not None:
        write_docs(arguments.docs, parts)
    for name, part in parts.items():
        print(f"\n## {name}\n\n{part}")
    print(f"\n{time.monotonic() - begun:.0f} s")
    return 1 if misses else 0


if __name__ == "__main__":
    raise SystemExit(main())
