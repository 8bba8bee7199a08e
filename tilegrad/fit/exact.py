"""The cheapest tape for a budget, and the one with the fewest bytes, of a graph that is small enough to try all.

A state is what is alive, which updates are made and what is also in a farther memory. Running a node leads to another;
what it read or made may be dropped right behind it, and nowhere else, since that is when a value's last use is, and may
be taken away as it goes; what is away may come back. A* finds the cheapest way to where
every output is alive and every update made, or the way whose largest moment is smallest: nodes without which what is
missing cannot be made are the part that is known of the way to go.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import product
from math import inf

from tilegrad.analysis.lifetimes import analyse
from tilegrad.fit.tape import Facts, Tape, graph_of, play
from tilegrad.place.allocate import allocate

MOST_STATES = 4_000
"""Bounds count work, so that the same program gives the same result."""

_State = tuple[int, int, int]  # bits of values that are alive, of updates that are made, of values in farther memory


def cheapest(facts: Facts, budget_bytes: int, most_states: int = MOST_STATES) -> Tape | None:
    """The least cost whose arena is within the budget; else the smallest arena. None: too large to tell."""
    found = _within(facts, budget_bytes, most_states)
    return fewest_bytes(facts, most_states) if found == () else found


def fewest_bytes(facts: Facts, most_states: int = MOST_STATES) -> Tape | None:
    """The smallest arena, and of those the least cost."""
    least = _Search(facts, None, most_states).run()
    if not least:
        return None
    found: Tape | None = least
    bound, best = _peak_bytes(facts, least), least
    while found and arena_bytes(facts, best) > bound:
        found = _within(facts, arena_bytes(facts, best) - facts.alignment_bytes, most_states)
        best = found or best
    return None if found is None else _within(facts, arena_bytes(facts, best), most_states) or best


def arena_bytes(facts: Facts, tape: Tape) -> int:
    """What a plan takes for a tape: with the holes that it leaves, if any."""
    if not any(map(facts.is_fetch, tape)):
        return allocate(analyse(graph_of(facts, tape), facts.alignment_bytes).buffers).size_bytes
    played = play(facts, tape)
    assert played is not None
    return allocate(list(played.buffers())).size_bytes


def _within(facts: Facts, budget_bytes: int, most_states: int) -> Tape | None:
    """Empty where there is none. Where the cheapest leaves holes, every way is tried, by cost."""
    found = _Search(facts, budget_bytes, most_states).run()
    if not found or arena_bytes(facts, found) <= budget_bytes:
        return found
    return _Search(facts, budget_bytes, most_states, tries_all=True).run()


def _peak_bytes(facts: Facts, tape: Tape) -> int:
    played = play(facts, tape)
    assert played is not None
    return played.peak_bytes


def _bits(values: Iterator[int] | tuple[int, ...] | frozenset[int]) -> int:
    found = 0
    for value in values:
        found |= 1 << value
    return found


class _Search:
    """Without a budget a path's key is its largest moment; with one, its cost.

    `tries_all` takes every way by itself until one's arena is within the budget; else ways that lead to the same state
    are one.
    """

    def __init__(
        self, facts: Facts, budget_bytes: int | None, most_states: int, tries_all: bool = False
    ) -> None:
        self.facts = facts
        self.tries_all = tries_all
        self.budget_bytes = budget_bytes
        self.most_states = most_states
        groups: dict[int, list[int]] = {}
        for value, group in enumerate(facts.groups):
            groups.setdefault(group, []).append(value)
        self.group_bits = {group: _bits(tuple(own)) for group, own in groups.items()}
        self.group_bytes = {group: max(facts.sizes[v] for v in own) for group, own in groups.items()}
        self.named = [_bits(own) for own in facts.named]
        self.makes = [_bits(own) for own in facts.makes]
        self.bars = [_bits(own) for own in facts.bars]
        self.once, self.outputs = _bits(facts.once), _bits(facts.outputs)
        self.readers = [0] * len(facts.names)
        for node, own in enumerate(facts.named):
            for value in own:
                self.readers[value] |= 1 << node
        self.operands = [facts.operand_bytes(node) for node in facts.whole]
        self.known_bytes: dict[int, int] = {}

    def run(self) -> Tape | None:
        """The best tape; empty where there is none, None where it is too much to find out."""
        pending: list[tuple[float, float, int, _State, Tape]] = []
        best: dict[_State, tuple[float, float]] = {}
        count = 0
        for alive, away, cost in self._kept(_bits(self.facts.inputs), self.facts.inputs, 0, 0):
            state = (alive, 0, away)
            heappush(pending, (self._estimate(0.0, cost, state), cost, count, state, ()))
            count += 1
        while pending:
            key, cost, _, state, tape = heappop(pending)
            if key == inf:
                break
            if not self.tries_all and best.get(state, (inf, inf)) <= (key, cost):
                continue
            best[state] = (key, cost)
            if len(best) > self.most_states or count > 10 * self.most_states:
                return None
            if state[1] == self.once and state[0] & self.outputs == self.outputs and self._is_good(tape):
                return tape
            for node, after, moment, more in self._steps(state):
                spent = cost + more
                reached = self._estimate(max(key, moment) if self.budget_bytes is None else 0.0, spent, after)
                if self.tries_all or best.get(after, (inf, inf)) > (reached, spent):
                    count += 1
                    heappush(pending, (reached, spent, count, after, (*tape, node)))
        return ()

    def _is_good(self, tape: Tape) -> bool:
        return self.budget_bytes is None or not self.tries_all or arena_bytes(self.facts, tape) <= self.budget_bytes

    def _estimate(self, moment: float, spent: float, state: _State) -> float:
        """What a whole way through a state takes at least."""
        alive, done, away = state
        wanted = self.outputs & ~alive & ~away
        pending = [node for node in self.facts.once if not done >> node & 1]
        seen = _bits(tuple(pending))
        while wanted or pending:
            if not pending:
                value = (wanted & -wanted).bit_length() - 1
                wanted &= wanted - 1
                node = self.facts.makers.get(value)
                if node is None:
                    return inf  # an input that is gone
                if seen >> node & 1:
                    continue
                seen |= 1 << node
                pending.append(node)
            node = pending.pop()
            if self.budget_bytes is None:
                moment = max(moment, self.operands[node])
            else:
                spent += self.facts.costs[node]
            wanted |= self.named[node] & ~alive & ~away
        return spent if self.budget_bytes is not None else moment

    def _steps(self, state: _State) -> Iterator[tuple[int, _State, int, float]]:
        """What may run, what may be left behind each, what is alive while it runs, and what it costs."""
        facts = self.facts
        alive, done, away = state
        for node in facts.whole:
            bit = 1 << node
            if done & bit or done & self.bars[node] or self.named[node] & ~alive:
                continue
            is_once = node in facts.once
            if not is_once and not self.makes[node] & ~alive:
                continue  # a second one beside it helps nobody
            now = done | bit if is_once else done
            there = alive | self.makes[node]
            for kept, far, cost in self._kept(there, (*facts.reads[node], *facts.makes[node]), now, away):
                moment = self._moment(node, alive, there & ~kept, kept)
                if self.budget_bytes is None or moment <= self.budget_bytes:
                    yield node, (kept, now, far), moment, facts.costs[node] + cost
        for value, node in facts.fetches.items():
            if away >> value & 1 and not alive >> value & 1 and self.readers[value] & ~done:
                moment = self._alive_bytes(alive) + facts.sizes[value]
                if self.budget_bytes is None or moment <= self.budget_bytes:
                    yield node, (alive | 1 << value, done, away), moment, facts.costs[node]

    def _kept(
        self, there: int, droppable: tuple[int, ...], done: int, away: int
    ) -> Iterator[tuple[int, int, float]]:
        """What may be left: nothing that nobody can read any more, and any part of the rest that takes bytes. What is
        dropped may be taken away first, which costs something, once."""
        free = []
        for value in dict.fromkeys(droppable):
            if not there >> value & 1:
                continue
            if not self.outputs >> value & 1 and not self.readers[value] & ~done:
                there &= ~(1 << value)
            elif self.facts.sizes[value]:
                can_go = value in self.facts.stores and not away >> value & 1
                free.append([(0, 0, 0.0), (1 << value, 0, 0.0)])
                free[-1] += [(1 << value, 1 << value, self.facts.stores[value])] if can_go else []
        for choice in product(*free):
            gone, taken, cost = sum(one[0] for one in choice), sum(one[1] for one in choice), sum(c for *_, c in choice)
            yield there & ~gone, away | taken, cost

    def _alive_bytes(self, alive: int) -> int:
        if alive not in self.known_bytes:
            groups = (group for group, bits in self.group_bits.items() if alive & bits)
            self.known_bytes[alive] = sum(self.group_bytes[group] for group in groups)
        return self.known_bytes[alive]

    def _moment(self, node: int, alive: int, gone: int, kept: int) -> int:
        """Bytes while a node runs: outputs may take over what dies with it."""
        facts = self.facts
        total = self._alive_bytes(alive) + facts.scratch[node]
        if facts.views[node] >= 0:
            return total
        taken: set[int] = set()
        settled: set[int] = set()
        for one in facts.takeovers[node]:
            group = facts.groups[one.source]
            others = {facts.groups[v] for v in (*one.other_inputs, *one.other_outputs)}
            is_dying = gone & self.group_bits[group] and not kept & self.group_bits[group] and group not in taken
            if one.output not in settled and is_dying and group not in others:
                settled.add(one.output)
                taken.add(group)
        return total + sum(facts.sizes[v] for v in facts.makes[node] if v not in settled)
