"""What would make training fit: nothing, changes that keep every bit, or changes of what is learned, in that order.

Each way is planned, so that its bytes are those of the program that it leads to; none is guessed. Ways that change what
is learned are ranked by how many parameters still train, then by what a step costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from tilegrad.errors import DoesNotFit, UserError
from tilegrad.fit.fitted import Fit, nearest, planned
from tilegrad.ir.plan import Plan
from tilegrad.ir.program import Program
from tilegrad.optimizers import SGD
from tilegrad.place.board import place
from tilegrad.recipe import Recipe
from tilegrad.recipe.stored_types import Stored
from tilegrad.sizes import bytes_text
from tilegrad.targets.base import FLASH, Target

SAME, OTHER = "same", "other"
ADAPTER = "lora:4"
MOST_HINTS = 3
ProgramOf = Callable[[Recipe], tuple[Program, Program]]
"""The program of a recipe, for the model and the chip in question, and the same split, as `fitted` takes it; what does
not apply to it is UserError."""


@dataclass(frozen=True)
class Way:
    """What to add to the command, and what it takes then. `results` are the same, or other ones are learned."""

    options: str
    results: str
    used_bytes: int
    flash_bytes: int
    macs: int
    trained: int
    repeated: int
    fits: bool


@dataclass(frozen=True)
class Answer:
    """`ways` begin with the cheapest that keeps the results. `bound_bytes` is what no such way goes below."""

    memory: str
    limit_bytes: int
    as_is: Way
    ways: tuple[Way, ...]
    bound_bytes: int
    trainable: int

    @property
    def fits(self) -> bool:
        """As it is, or without other results."""
        return self.as_is.fits or any(way.fits for way in self.ways if way.results == SAME)

    @property
    def helping(self) -> tuple[Way, ...]:
        return tuple(way for way in self.ways if way.fits)

    @property
    def least_bytes(self) -> int:
        """The fewest that were found with the same results."""
        return min(way.used_bytes for way in (self.as_is, *self.ways) if way.results == SAME)

    @property
    def hints(self) -> tuple[str, ...]:
        """What closes the gap, each by itself."""
        found = []
        for way in self.helping[:MOST_HINTS]:
            learned = "the same bits" if way.results == SAME else f"{way.trained / max(self.trainable, 1):.0%} train"
            more = way.macs / max(self.as_is.macs, 1) - 1.0
            found.append(f"{way.options} ({bytes_text(way.used_bytes)}, {more:+.0%} MACs, {learned})")
        if not self.fits and self.memory != FLASH:
            found.append(f"--{self.memory.lower()} {-(-self.least_bytes // 1024)}K --fit, a larger chip")
        return tuple(found)

    def as_json(self) -> dict[str, Any]:
        return {
            "memory": self.memory,
            "limit_bytes": self.limit_bytes,
            "fits_as_it_is": self.as_is.fits,
            "fits": self.fits,
            "as_it_is": asdict(self.as_is),
            "ways": [asdict(way) for way in self.ways],
            "least_bytes": self.least_bytes,
            "bound_bytes": self.bound_bytes,
        }


@dataclass(frozen=True)
class _Change:
    """Another recipe, and what to type for it."""

    options: str
    recipe: Recipe


def answer(program_of: ProgramOf, recipe: Recipe, target: Target, layers: int) -> Answer:
    """`layers` is how many of them have parameters. The target is flat, and its memory has a limit."""
    return _Answering(program_of, recipe, target).run(layers)


class _Answering:
    def __init__(self, program_of: ProgramOf, recipe: Recipe, target: Target) -> None:
        self.program_of = program_of
        self.recipe = recipe
        self.target = target
        limit = target.memory(target.home).capacity_bytes
        assert limit is not None
        self.limit_bytes = limit
        self.as_is_bytes = 0

    def run(self, layers: int) -> Answer:
        program, split = self.program_of(self.recipe)
        as_is = self._way("", SAME, program, planned(program, self.target))
        self.as_is_bytes = as_is.used_bytes
        ways: list[Way] = []
        limit_bytes = self.limit_bytes if not as_is.fits else as_is.used_bytes
        found, fit = nearest(program, split, self.target, limit_bytes)
        if not as_is.fits:
            ways.append(self._recomputed("--fit", SAME, found, fit))
            others = [way for way in self._others(layers) if way is not None]
            others.sort(key=lambda way: (not way.fits, -way.trained, way.macs, way.options))
            # Where none helps: the one that trains most, and the one that comes nearest.
            nearest_way = min(others, key=lambda way: way.used_bytes, default=None)
            ways += [
                way for k, way in enumerate(others) if way.fits or not k or (not others[0].fits and way is nearest_way)
            ]
        return Answer(self.target.home, self.limit_bytes, as_is, tuple(ways), fit.bound_bytes, as_is.trained)

    def _way(self, options: str, results: str, program: Program, plan: Plan, repeated: int = 0) -> Way:
        used = plan.memory[self.target.home].used_bytes
        fits = used <= self.limit_bytes and self._has_place(plan)
        trained = sum(tensor.type.size for tensor in program.trainable)
        return Way(options, results, used, plan.flash_bytes, plan.schedule.macs("step"), trained, repeated, fits)

    def _recomputed(self, options: str, results: str, program: Program, fit: Fit) -> Way:
        return self._way(options, results, program, planned(program, self.target), fit.repeated)

    def _has_place(self, plan: Plan) -> bool:
        """In the banks of a board."""
        if self.target.board is None:
            return True
        try:
            place(replace(plan.schedule, target=self.target), self.target.board, plan.state_bytes, plan.arena_bytes)
        except DoesNotFit:
            return False
        return True

    def _others(self, layers: int) -> Iterator[Way | None]:
        for change in self._changes():
            plain = self._plain(change)
            if plain is not None and not plain.fits and plain.used_bytes < self.as_is_bytes:
                plain = self._with_fit(change) or plain
            yield plain
        yield self._smaller_batch()
        if self.recipe.train in (None, "all"):
            yield from self._last(layers)

    def _smaller_batch(self) -> Way | None:
        """The largest of its halves that fits."""
        batch, way = self.recipe.batch, None
        while batch > 1 and (way is None or not way.fits):
            batch //= 2
            way = self._plain(_Change(f"--batch {batch}", replace(self.recipe, batch=batch)))
        return way

    def _changes(self) -> Iterator[_Change]:
        """What may be asked for instead, where it is not asked for already."""
        recipe = self.recipe
        if recipe.store.is_plain:
            wanted = ("activations=bf16", "bf16") if recipe.optimizer.slots else ("activations=bf16",)
            for store in wanted:
                yield _Change(f"--store {store}", replace(recipe, store=Stored.parse(store)))
        if recipe.optimizer.slots:
            yield _Change("--optimizer sgd", replace(recipe, optimizer=SGD(lr=recipe.optimizer.lr)))
        if recipe.accumulate > 1:
            yield _Change("--accum 1", replace(recipe, accumulate=1))
        if recipe.clip is not None:
            yield _Change("without --clip", replace(recipe, clip=None))
        if recipe.train in (None, "all"):
            for train in ("norm", "bias", ADAPTER, f"sparse:{self.limit_bytes // 1024}K"):
                yield _Change(f"--train {train}", replace(recipe, train=train))

    def _last(self, layers: int) -> Iterator[Way | None]:
        """As many of the last layers as fit, as they are and with `--fit`."""

        def change(count: int) -> _Change:
            return _Change(f"--train last:{count}", replace(self.recipe, train=f"last:{count}"))

        plain = self._most(1, layers - 1, lambda count: self._plain(change(count)), tries=8)
        yield plain[1]
        if plain[0] < layers - 1:
            yield self._most(plain[0] + 1, layers - 1, lambda count: self._with_fit(change(count)), tries=2)[1]

    @staticmethod
    def _most(low: int, high: int, way_of: Callable[[int], Way | None], tries: int) -> tuple[int, Way | None]:
        """The largest number whose way fits, by halving; it is tried a few times only."""
        best: tuple[int, Way | None] = (low - 1, None)
        while low <= high and tries:
            tries -= 1
            middle = (low + high + 1) // 2
            way = way_of(middle)
            if way is not None and way.fits:
                best, low = (middle, way), middle + 1
            else:
                high = middle - 1
        return best

    def _plain(self, change: _Change) -> Way | None:
        """None where the change does not apply to the model."""
        try:
            program, _ = self.program_of(change.recipe)
        except UserError:
            return None
        return self._way(change.options, OTHER, program, planned(program, self.target))

    def _with_fit(self, change: _Change) -> Way | None:
        try:
            found, fit = nearest(*self.program_of(change.recipe), self.target, self.limit_bytes, gives_up=True)
        except UserError:
            return None
        return self._recomputed(f"{change.options} --fit", OTHER, found, fit)


def explained(error: DoesNotFit, ways: Callable[[], Answer]) -> DoesNotFit:
    """The error with hints that close the gap, or with none."""
    hints = "; or ".join(ways().hints)
    return DoesNotFit(
        error.message, stage=error.stage, node=error.node, expected=error.expected, got=error.got, hint=hints or None
    )
