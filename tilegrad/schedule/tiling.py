"""Chooses how a nest is cut into tiles: by estimated cycles, then by traffic.

The search is exhaustive over a small set of sensible sizes per axis and all orders of the parallel loops; equal nests
are searched once. Everything it needs follows from the axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import combinations
from math import inf, prod
from operator import itemgetter

from tilegrad.analysis.footprint import moving_axes, slot_of, tile_bytes, tile_sizes, tileable_axes
from tilegrad.analysis.lifetimes import align
from tilegrad.analysis.tables import CALL_WORDS, NEST_WORDS, OPERAND_WORDS, describing_bytes, nest_fields
from tilegrad.costs.kernel_cost import KernelCosts
from tilegrad.errors import DoesNotFit
from tilegrad.ir.nest import Nest, ordered_sizes
from tilegrad.ir.schedule import Loop, Slot, TileEstimate, Tiling
from tilegrad.schedule.candidates import EVALUATED, MOST_AXES_CUT, Candidate, Row, Split, best_rows, one_row
from tilegrad.schedule.judge import NOTHING_AHEAD, Ahead, Judge
from tilegrad.targets.base import Target

# Of scratchpad, what a double-buffered nest takes at most, and what it may take so that its neighbours have room too.
MOST_L1, SHARED_L1 = 0.7, 0.5
# Of a nest's first loads and last stores, what is not hidden where neighbours have room. Half of it by experience: a
# nest that reads what the one before wrote last must wait for it.
SHOWN_WITH_NEIGHBOURS = 0.5
# Tilings of a nest that are compared with those of its neighbours, none that takes much longer than the best.
MOST_CHOICES, WORTH_A_LOOK, MANY_TILES = 12, 1.1, 6
SURELY = 1 - 1e-9  # of a bound, what rounding leaves
NEXT_TABLE_BYTES = 1024
NOT_ESTIMATED = TileEstimate(inf, 0.0, 0.0, 0, "")


@dataclass(frozen=True)
class TilingOptions:
    """`buffering`: auto, single or double."""

    target: Target
    buffering: str
    costs: KernelCosts

    @property
    def overlaps(self) -> bool:
        """Whether nests may overlap with their neighbours."""
        return self.buffering != "single"


class TilingSearch:
    """Searches one nest. `sharers`: nests that have the scratchpad of its engine, or of the cores, at once."""

    def __init__(self, options: TilingOptions, op: str, nest: Nest, sharers: int = 1) -> None:
        self.options = options
        self.nest = nest
        self.op = op
        self.judge = Judge(options.target, options.costs)
        self.target = options.target
        self.scratch_bytes = self.target.scratch_bytes(self.target.compute_engine(nest.counts_macs)) // sharers
        self.alignment = self.target.memory(self.target.compute).alignment_bytes
        self.engine = self.target.engine(self.target.home, self.target.compute)
        field_count = len(nest_fields(op, nest))
        whole_table = (NEST_WORDS + CALL_WORDS + (1 + OPERAND_WORDS) * len(nest.operands) + field_count) * 4
        # Candidates leave room for their table, about as large, and for the next nest's where it costs little.
        self.has_room = self.scratch_bytes >= 32 * NEXT_TABLE_BYTES
        self.tables: dict[object, int] = {}
        self.budget_bytes = self.scratch_bytes - whole_table - (NEXT_TABLE_BYTES if self.has_room else 0)

    def choices(self, name: str) -> tuple[tuple[Tiling, int], ...]:
        """Tilings with the bytes of their tables: the best first, then others that are cut otherwise or leave more
        room, and are not much worse.

        `name` is the operator's, for the error when nothing fits.
        """
        found: list[tuple[Tiling, int]] = []
        if self.options.buffering != "double":
            found += self._of_kind(self._candidates(False), is_double=False)
        else:
            # One tile has nothing to overlap with; it may still be the best, and with little scratchpad the only way.
            singles = self._candidates(False)
            found += self._different([one for one in singles if one.tile_count == 1])
        if self.options.overlaps:
            found += self._of_kind(self._candidates(True), is_double=True)
        found = found or self._of_kind([], is_double=False)
        if not found:
            raise self._does_not_fit(name)
        found.sort(key=lambda pair: (pair[0].estimate.cycles, pair[0].estimate.dma_bytes))
        return tuple(found if self.options.overlaps else found[:1])

    def over_blocks(self, blocks: int, ahead: Ahead = NOTHING_AHEAD) -> Tiling | None:
        """The fastest way to cut the nest for a launch over so many blocks; None where it cannot be split."""
        split = Split(blocks, self.cycles(tile_sizes(self.nest, ())), self.judge.bytes_per_cycle(blocks))
        kinds = {"single": (False,), "double": (True,)}.get(self.options.buffering, (False, True))
        best: Tiling | None = None
        for is_double in kinds:
            found = [row.candidate() for row in self._rows(is_double, self.budget_bytes, split)]
            ranked = sorted(found, key=lambda one: (self._promise(split, one), one.footprint_bytes))
            for candidate in ranked[: EVALUATED // 2]:
                estimate = self.judge.estimate_over(self.nest, candidate, blocks, ahead)
                tiling = self._tiling(candidate.loops, is_double, estimate)
                is_better = best is None or tiling.estimate.cycles < best.estimate.cycles
                if is_better and self.fits(tiling):
                    best = tiling
        return best

    def _promise(self, split: Split, one: Candidate) -> float:
        """With as much as whole tiles take, for what there is of them: the last ones may be smaller."""
        cycles = self.cycles(one.sizes) * prod(loop.extent / loop.tile for loop in one.loops)
        return float(split.rough_cycles(one.units, one.tile_count, one.traffic_bytes, one.is_double, cycles))

    def cycles(self, sizes: Mapping[str, int]) -> float:
        """What a tile computes for."""
        return self.options.costs.cycles(self.nest, sizes, self.target.compute, self.target.cores)

    def cut(self, loops: Sequence[Loop], rings: Mapping[str, int]) -> Tiling | None:
        """A nest that is cut like this, double buffered if that fits; None where neither does. Operands in `rings` have
        so many slots. Tables of what is cut along the same axes are taken to be as long: who chooses one asks whether
        it `fits`."""
        for is_double in (True, False) if self.options.overlaps and loops else (False,):
            tiling = self._tiling(loops, is_double, rings=rings)
            key = (is_double, *(loop.axis for loop in loops))
            if key not in self.tables:
                self.tables[key] = self.table_bytes(tiling)
            if tiling.scratch_bytes + self.tables[key] <= self.scratch_bytes:
                return tiling
        return None

    def _of_kind(self, candidates: Sequence[Candidate], is_double: bool) -> list[tuple[Tiling, int]]:
        """Those with one tile and those with several, or if none fits, one that does."""
        whole, cut = ([one for one in candidates if bool(one.loops) is is_cut] for is_cut in (False, True))
        return [*self._different(whole), *self._different(cut)] or self._different(self._shrunk(is_double))

    def _different(self, candidates: Sequence[Candidate]) -> list[tuple[Tiling, int]]:
        """Of candidates of one kind, the best first: those that fit, are cut differently and are not much worse. What
        is chosen of a kind does not depend on other kinds, so that `auto` chooses among all that `double` does."""
        able = [candidate for candidate in candidates if self._may_continue(candidate)]
        compute_cycles = [self.judge.compute_cycles(self.nest, candidate) for candidate in able]
        # By cycles. Nothing takes fewer than cores compute: what these rule out, or one of its kind, is never played.
        queue: list[tuple[float, int, int, TileEstimate | None]]
        queue = [(cycles * SURELY, -1, i, None) for i, cycles in enumerate(compute_cycles)]
        heapify(queue)
        found: dict[object, tuple[Tiling, int]] = {}
        worst_cycles = inf
        while queue and len(found) < (MOST_CHOICES if self.options.overlaps else 1):
            least_cycles, _, i, estimate = heappop(queue)
            candidate = able[i]
            has_neighbours = candidate.footprint_bytes <= self.budget_bytes * SHARED_L1
            key = (has_neighbours, tuple((loop.axis, min(loop.count, MANY_TILES)) for loop in candidate.loops))
            if key in found or (least_cycles if estimate is None else estimate.steady_cycles) > worst_cycles:
                continue
            if estimate is None:
                shown = SHOWN_WITH_NEIGHBOURS if has_neighbours else 1.0
                shares = self.options.overlaps, shown
                estimate = self.judge.estimate(self.nest, candidate, compute_cycles[i], *shares)
                heappush(queue, (estimate.cycles, estimate.dma_bytes, i, estimate))
                continue
            tiling = self._tiling(candidate.loops, candidate.is_double, estimate)
            table_bytes = self.table_bytes(tiling)
            if tiling.scratch_bytes + table_bytes <= self.scratch_bytes:
                worst_cycles = min(worst_cycles, estimate.cycles * WORTH_A_LOOK)
                found[key] = tiling, table_bytes
        return list(found.values())

    def _may_continue(self, candidate: Candidate) -> bool:
        """A sum that goes on cannot be brought to a slot that a result has not left yet."""
        begun = [operand for operand in self.nest.present if operand.continues is not None]
        return not candidate.is_double or not any(moving_axes(operand, candidate.loops) for operand in begun)

    def fits(self, tiling: Tiling) -> bool:
        """With the table that describes it."""
        return tiling.scratch_bytes + self.table_bytes(tiling) <= self.scratch_bytes

    def table_bytes(self, tiling: Tiling) -> int:
        return align(describing_bytes(self.op, self.nest, tiling, self.engine.longest_bytes), self.alignment)

    def _candidates(self, is_double: bool) -> list[Candidate]:
        """Those that fit, the most promising by traffic and tile count."""
        leaves_room = is_double and self.has_room
        found = self._rows(is_double, self.budget_bytes * (MOST_L1 if leaves_room else 1.0))
        found.sort(key=itemgetter(0, 1))
        return [row.candidate() for row in found[:EVALUATED]] or self._shrunk(is_double)

    def _rows(self, is_double: bool, budget: float, split: Split | None = None) -> list[Row]:
        """For every choice of a few axes."""
        found: list[Row] = []
        for count in range(MOST_AXES_CUT + 1 if self.budget_bytes > 0 else 0):
            for chosen in combinations(tileable_axes(self.nest), count):
                found += best_rows(self.nest, chosen, self.alignment, is_double, budget, split)
        return found

    def _shrunk(self, is_double: bool) -> list[Candidate]:
        """Where no choice of few axes fits."""
        found = (one for one in self._ever_smaller(is_double) if self.fits(self._tiling(one.loops, is_double)))
        best = next(found, None)
        return [] if best is None or (is_double and not best.loops) else [best]  # one tile has none to overlap with

    def _ever_smaller(self, is_double: bool) -> Iterator[Candidate]:
        """From the whole nest to single steps: halves whatever saves most."""
        best, axes = self._candidate({}, is_double), tileable_axes(self.nest)
        while True:
            yield best
            every = ({**best.sizes, axis: -(-best.sizes[axis] // 2)} for axis in axes if best.sizes[axis] > 1)
            smaller = [self._candidate(sizes, is_double) for sizes in every]
            if not smaller:
                return
            best = min(smaller, key=lambda one: one.footprint_bytes)

    def _candidate(self, sizes: Mapping[str, int], is_double: bool) -> Candidate:
        return one_row(self.nest, ordered_sizes(self.nest, sizes), self.alignment, is_double)

    def _tiling(
        self,
        loops: Sequence[Loop],
        is_double: bool,
        estimate: TileEstimate = NOT_ESTIMATED,
        rings: Mapping[str, int] | None = None,
    ) -> Tiling:
        slots: dict[str, Slot] = {}
        offset, sizes = 0, tile_sizes(self.nest, loops)
        for operand in self.nest.present:
            if operand.continues is not None:
                slots[operand.name] = slots[operand.continues]
                continue
            slot_bytes, count = slot_of(operand, loops, sizes, is_double, self.alignment)
            count = (rings or {}).get(operand.name, count)
            slots[operand.name] = Slot(offset, slot_bytes, count)
            offset += slot_bytes * count
        return Tiling(tuple(loops), slots, is_double, offset, estimate, estimate.asks_ahead)

    def smallest(self) -> tuple[Tiling, int]:
        """The tile that needs least, with the table that describes it; the bytes of both together."""
        tilings = [self._tiling(one.loops, False) for one in self._ever_smaller(False)]
        needed = [tiling.scratch_bytes + self.table_bytes(tiling) for tiling in tilings]
        return tilings[needed.index(min(needed))], min(needed)

    def _does_not_fit(self, name: str) -> DoesNotFit:
        tiling, size_bytes = self.smallest()
        sizes, table_bytes = tile_sizes(self.nest, tiling.loops), self.table_bytes(tiling)
        budget = ", ".join(f"{operand.name} {tile_bytes(operand, sizes)}" for operand in self.nest.present)
        return DoesNotFit(
            f"the smallest tile of tg_{self.nest.kernel} does not fit into {self.target.compute}",
            stage="tiling",
            node=name,
            expected=f"at most {self.scratch_bytes} bytes",
            got=f"{size_bytes} bytes: {budget}, its description {table_bytes}",
            hint=f"give {self.target.compute} at least {size_bytes} bytes (--l1)",
        )
