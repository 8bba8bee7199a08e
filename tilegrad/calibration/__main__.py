"""`python -m tilegrad.calibration`: counts kernels under QEMU and writes the target's table of kernel costs."""

from __future__ import annotations

import argparse
import sys

from tilegrad.calibration import table
from tilegrad.calibration.counting import missing_tools
from tilegrad.targets.base import get


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="siracusa")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--samples", type=int, default=table.SAMPLES_PER_VARIANT, help="per kernel and variant")
    arguments = parser.parse_args()
    missing = missing_tools()
    if missing:
        print(f"cannot count: {', '.join(missing)} not found", file=sys.stderr)
        return 4
    found = table.collect(arguments.seed, arguments.samples)
    counted = table.count_all(found, lambda line: print(line, flush=True))
    made = table.make_table(counted, arguments.seed)
    path = get(arguments.target).folder / "costs.json"
    table.write_table(made, path)
    entries = [v for kernel in made["kernels"].values() for v in kernel["variants"].values()]
    samples = sum(v["samples"] for v in entries)
    print(f"{path.name}: {len(made['kernels'])} kernels, {len(entries)} variants, {samples} counted calls")
    return 0


if __name__ == "__main__":
    sys.exit(main())
