"""A search with a budget, by Optuna: what to try next follows from what was found. The same seed and the same figures
give the same points, so a search that is begun again goes through what is known to where it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilegrad.errors import DeviceError
from tilegrad.exploration.axes import Axis, Point
from tilegrad.exploration.pareto import OBJECTIVES
from tilegrad.exploration.store import Row

AT_ONCE = 8
"""Points that are asked for together, however many processes there are: so their number changes nothing."""
MOST_ASKED = 20
"""Times the budget: a sampler that only repeats itself has seen what it wants."""


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise DeviceError(
            "there is no Optuna here, which a search with a budget needs",
            stage="explore",
            hint="pip install 'tilegrad[explore]', or leave --budget out for the whole grid",
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def search(
    axes: Sequence[Axis],
    budget: int,
    objectives: Sequence[str],
    evaluate: Callable[[Sequence[Point]], Sequence[Row]],
    seed: int,
) -> None:
    """Lets `evaluate` see up to `budget` different points."""
    optuna = _optuna()
    directions = ["maximize" if OBJECTIVES[name] > 0 else "minimize" for name in objectives]
    study = optuna.create_study(directions=directions, sampler=optuna.samplers.TPESampler(seed=seed))
    space = {axis.name: optuna.distributions.CategoricalDistribution(axis.values) for axis in axes}
    seen: set[tuple[tuple[str, object], ...]] = set()
    asked = 0
    while len(seen) < budget and asked < MOST_ASKED * budget:
        trials: list[tuple[Any, Point]] = []
        for _ in range(AT_ONCE):
            trial = study.ask(space)
            asked += 1
            seen.add(tuple(sorted(trial.params.items())))
            trials.append((trial, {axis.name: trial.params[axis.name] for axis in axes}))
            if len(seen) >= budget:
                break
        for (trial, _), row in zip(trials, evaluate([point for _, point in trials]), strict=True):
            values = [row["figures"].get(name) for name in objectives]
            if any(value is None for value in values):
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, values)
