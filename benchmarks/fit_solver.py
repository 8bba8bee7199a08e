"""Whether CP-SAT finds cheaper recomputation than `--fit` does: `python -m benchmarks.fit_solver MODEL KIB`.

The model is the usual one (a stage for each node, in which any node before it may run again, and what is kept between
stages), begun from what the heuristic found. It counts a little more than there is where operators work in place, so
what comes out is played by the same rules as any other tape, and compared with what the heuristic finds in as many
bytes.
"""

from __future__ import annotations

import argparse
import time

from ortools.sat.python import cp_model

import tilegrad as tg
from tilegrad.fit.recompute import cheapest_play, masked_by_input
from tilegrad.fit.tape import Facts, Play, Tape, facts_of, play
from tilegrad.passes.split_conv_grad import SplitConvGrad
from tilegrad.targets import base as targets

SECONDS = 30.0


class Stages:
    """`runs[t][i]`: node i in stage t; `kept[t][v]`: value v from before stage t."""

    def __init__(self, facts: Facts, budget_bytes: int) -> None:
        self.facts = facts
        self.model = cp_model.CpModel()
        self.count = len(facts.graph.nodes)
        new = self.model.new_bool_var
        self.runs = [[new("") for _ in range(t + 1)] for t in range(self.count)]
        self.values = range(len(facts.sizes))
        self.kept = [{v: new("") for v in self.values if facts.makers.get(v, -1) < t} for t in range(self.count + 1)]
        self.users: dict[int, list[int]] = {v: [] for v in self.values}
        for node in facts.whole:
            for v in facts.named[node]:
                self.users[v].append(node)
        self._follow()
        self._limit(budget_bytes)
        unit = 64
        cost = [max(1, round(c / unit)) for c in facts.costs]
        self.model.minimize(sum(cost[i] * self.runs[t][i] for t in range(self.count) for i in range(t + 1)))

    def _follow(self) -> None:
        facts, add = self.facts, self.model.add
        for t in range(self.count):
            add(self.runs[t][t] == 1)
            for i in range(t + 1):
                if i < t and (i in facts.once or any(bar < t for bar in facts.bars[i])):
                    add(self.runs[t][i] == 0)
                for v in facts.named[i]:
                    maker = facts.makers.get(v)
                    made = [] if maker is None else [self.runs[t][maker]]
                    add(self.runs[t][i] <= sum(made) + self.kept[t][v])
            for v, var in self.kept[t + 1].items():
                maker = facts.makers.get(v, -1)
                before = [self.kept[t][v]] if v in self.kept[t] else []
                add(var <= sum(before) + (self.runs[t][maker] if 0 <= maker <= t else 0))
        for v in facts.outputs:
            add(self.kept[self.count][v] == 1)

    def _limit(self, budget_bytes: int) -> None:
        """At node k of stage t is there what was kept or made and what something behind it reads, or the next stage."""
        facts, model = self.facts, self.model
        for t in range(self.count):
            for k in range(t + 1):
                terms = []
                for v in self.values:
                    maker, size = facts.makers.get(v, -1), facts.sizes[v]
                    if not size or maker > k:
                        continue
                    here = [self.runs[t][c] for c in self.users[v] if k <= c <= t]
                    wanted = [*here, *([self.kept[t + 1][v]] if v in self.kept[t + 1] else [])]
                    if maker == k:
                        wanted.append(self.runs[t][k])
                    there = [self.kept[t][v]] if v in self.kept[t] else []
                    if 0 <= maker <= k:
                        there.append(self.runs[t][maker])
                    if not wanted or not there:
                        continue
                    live = model.new_bool_var("")
                    for a in there:
                        for b in wanted:
                            model.add(live >= a + b - 1)
                    terms.append(size // 8 * live)
                slack = sum(facts.sizes[t_.output] for t_ in facts.takeovers[k][:1])
                model.add(sum(terms) <= (budget_bytes - facts.scratch[k] + slack) // 8).only_enforce_if(self.runs[t][k])

    def hint(self, tape: Tape) -> None:
        """A tape as stages: a run belongs to the stage of the next node that runs for the first time."""
        seen: set[int] = set()
        group: list[int] = []
        for node in tape:
            group.append(node)
            if node not in seen and all(i in seen for i in range(node)):
                seen.add(node)
                for i in range(node + 1):
                    self.model.add_hint(self.runs[node][i], i in group)
                group = []
            seen.add(node)

    def solved(self) -> tuple[str, Tape | None]:
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = SECONDS
        solver.parameters.num_workers = 2
        status = solver.solve(self.model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return solver.status_name(status), None
        tape = tuple(i for t in range(self.count) for i in range(t + 1) if solver.value(self.runs[t][i]))
        return solver.status_name(status), tape


def told(who: str, facts: Facts, played: Play) -> str:
    more = facts.cost(played.tape) / facts.cost(facts.whole) - 1
    return f"{who}: {played.peak_bytes:,} bytes, {more:+.1%} cost"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("kib", type=int)
    given = parser.parse_args()
    program = tg.compile(given.model, target=targets.get("mcu").without_limits()).program
    facts = facts_of(masked_by_input(SplitConvGrad().apply(program).entries["step"]), 8)
    begun = time.process_time()
    found = cheapest_play(facts, given.kib * 1024)
    seconds = time.process_time() - begun
    print(f"{given.model}, {len(facts.whole)} nodes; {told('heuristic', facts, found)}, {seconds:.1f} s", flush=True)
    stages = Stages(facts, given.kib * 1024)
    stages.hint(found.tape)
    status, tape = stages.solved()
    played = None if tape is None else play(facts, tape)
    if played is None:
        print(f"CP-SAT: {status} after {SECONDS:.0f} s")
        return
    print(told(f"CP-SAT ({status}) after {SECONDS:.0f} s", facts, played))
    print(told("heuristic in as many bytes", facts, cheapest_play(facts, played.peak_bytes)))


if __name__ == "__main__":
    main()
