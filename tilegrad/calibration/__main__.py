"""`python -m tilegrad.calibration`: counts kernels under QEMU and writes the target's table of kernel costs."""

from __future__ import annotations

import argparse
import sys

from tilegrad.calibration import check, document, table
from tilegrad.calibration.compare import report
from tilegrad.calibration.counting import missing_tools
from tilegrad.costs.kernel_cost import KernelCosts, kernel_costs, load_table
from tilegrad.targets.base import Target, get

CHECK_SEED_OFFSET = 1000


def _calibrate(target: Target, seed: int, samples: int, only_stale: bool) -> None:
    path = target.folder / "costs.json"
    old = load_table(path) if path.exists() else {}
    stale = table.stale_kernels(old)
    found = table.collect(seed, samples, stale.__contains__ if only_stale else lambda _: True)
    counted = table.count_all(found, lambda line: print(line, flush=True))
    made = table.make_table(counted, seed)
    if only_stale:
        made = table.merged(old, made)
    path.write_text(document.table_text(made), encoding="utf-8")
    load_table.cache_clear()
    kernel_costs.cache_clear()
    document.update(report(target)[0])
    entries = [v for kernel in made["kernels"].values() for v in kernel["variants"].values()]
    calls = sum(v["samples"] for v in entries)
    print(f"{path.name}: {len(made['kernels'])} kernels, {len(entries)} variants, {calls} counted calls")


def _check(target: Target, seed: int) -> None:
    found = check.predictions(KernelCosts(target), seed, check.TILES_PER_KERNEL)
    lines = check.table_lines(found)
    print("\n".join(lines))
    document.update({"predictions": lines})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="siracusa")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--samples", type=int, default=table.SAMPLES_PER_VARIANT, help="per kernel and variant")
    parser.add_argument("--stale", action="store_true", help="count only kernels whose source has changed")
    parser.add_argument("--check-only", action="store_true", help="compare the table with fresh counts, write nothing")
    arguments = parser.parse_args()
    missing = missing_tools()
    if missing:
        print(f"cannot count: {', '.join(missing)} not found", file=sys.stderr)
        return 4
    target = get(arguments.target)
    if not arguments.check_only:
        _calibrate(target, arguments.seed, arguments.samples, arguments.stale)
    if not arguments.stale:
        _check(target, arguments.seed + CHECK_SEED_OFFSET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
