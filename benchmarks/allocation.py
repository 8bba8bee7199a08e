"""How close the arenas of the zoo come to their lower bound, and how long MiniMalloc's hard instances take.

    python -m benchmarks.allocation [MODEL ...]

CPU time of one core. The instances are those of tests/place/data/minimalloc.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tilegrad import zoo
from tilegrad.api import Recipe, load
from tilegrad.ir.plan import Plan
from tilegrad.passes.parameters import select
from tilegrad.passes.program import derive_program
from tilegrad.pipeline import canonical_graph, defaults, forward_graph
from tilegrad.place.allocate import Progress, allocate, lower_bound, read_instance
from tilegrad.place.plan import plan_memory
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.schedule.schedule import schedule_program
from tilegrad.targets import base as targets

INSTANCES = Path(__file__).parents[1] / "tests" / "place" / "data" / "minimalloc"
PLACES = (("host", "auto"), ("siracusa", "auto"), ("siracusa", "L3"))


def plan_of(model_name: str, target: str, home: str) -> tuple[Plan, float]:
    """A model's plan, whole tensors, and the seconds that planning took."""
    model, recipe = load(model_name), Recipe()
    graph = canonical_graph(model, recipe)
    loss, train = defaults(model)
    forward = forward_graph(graph, freezes=True)
    program = derive_program(*forward, recipe, model.roles, select(graph, model.parameters, train), loss)
    options = replace(ScheduleOptions(), is_tiled=False, home=home)
    schedule = schedule_program(program, targets.get(target), options)
    start = time.process_time()
    plan = plan_memory(schedule, home)
    return plan, time.process_time() - start


def report_zoo(models: Sequence[str]) -> None:
    print(f"{'model':<18}{'target':<10}{'home':<6}{'memory':<8}{'used':>10}{'bound':>10}{'ratio':>8}{'buffers':>9}"
          f"{'allocate ms':>13}{'plan s':>8}")
    for name in models:
        for target, home in PLACES:
            plan, seconds = plan_of(name, target, home)
            entry = plan.entries["step"]
            start = time.process_time()
            allocate(entry.buffers)
            milliseconds = 1000 * (time.process_time() - start)
            for memory, use in plan.memory.items():
                if not use.lower_bound_bytes:
                    continue
                ratio = use.used_bytes / use.lower_bound_bytes
                print(f"{name:<18}{target:<10}{home:<6}{memory:<8}{use.used_bytes:>10}{use.lower_bound_bytes:>10}"
                      f"{ratio:>8.3f}{len(entry.buffers):>9}{milliseconds:>13.1f}{seconds:>8.2f}")


def report_instances() -> None:
    print(f"{'instance':<20}{'buffers':>8}{'capacity':>10}{'bound':>10}{'size':>10}{'nodes':>9}{'CPU s':>8}")
    for path in sorted(INSTANCES.glob("*.csv")):
        buffers, capacity = read_instance(path), int(path.name.split(".")[1])
        seen: list[Progress] = []
        start = time.process_time()
        size = allocate(buffers, capacity_bytes=capacity, progress=seen.append).size_bytes
        print(f"{path.stem:<20}{len(buffers):>8}{capacity:>10}{lower_bound(buffers):>10}{size:>10}"
              f"{seen[-1].nodes:>9}{time.process_time() - start:>8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.allocation", description=__doc__)
    parser.add_argument("model", nargs="*", help="models of the zoo; without any, all of them and the instances")
    options = parser.parse_args()
    report_zoo(options.model or zoo.registry.names())
    if not options.model:
        report_instances()


if __name__ == "__main__":
    main()
