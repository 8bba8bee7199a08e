"""Trainings that are estimated and run on `iss:siracusa`: a model, how it is tiled, its scratchpad, its recipe."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilegrad import frontend
from tilegrad.compiled import Compiled
from tilegrad.pipeline import compile_model
from tilegrad.recipe import Adam, Momentum, Recipe
from tilegrad.schedule.options import ScheduleOptions
from tilegrad.targets.base import L1, get

TARGET = "siracusa"
KIB = 1024
MODES = {
    "untiled": ScheduleOptions(is_tiled=False),
    "single": ScheduleOptions(buffering="single"),
    "double": ScheduleOptions(buffering="double"),
    "auto": ScheduleOptions(),
}
RECIPES = {
    "sgd": Recipe(),
    "sgd, accum 2": Recipe(accumulate=2),
    "momentum": Recipe(optimizer=Momentum()),
    "momentum, accum 2": Recipe(optimizer=Momentum(), accumulate=2),
    "adam": Recipe(optimizer=Adam()),
    "adam, accum 2": Recipe(optimizer=Adam(), accumulate=2),
}
SIZES = (32 * KIB, 64 * KIB, 128 * KIB, 240 * KIB)


@dataclass(frozen=True, order=True)
class Case:
    model: str
    mode: str = "auto"
    scratch_bytes: int = 240 * KIB
    recipe: str = "sgd"
    batch: int = 1

    @property
    def name(self) -> str:
        own = f"{self.model}, {self.recipe}, {self.mode}, {self.scratch_bytes // KIB}K"
        return own if self.batch == 1 else f"{own}, batch {self.batch}"

    def compile(self) -> Compiled:
        target, recipe = get(TARGET).with_capacity(L1, self.scratch_bytes), RECIPES[self.recipe]
        model = frontend.load(self.model, batch=self.batch)
        return compile_model(model, replace(recipe, batch=self.batch), target, options=MODES[self.mode])
