"""Measures an entry, and gives no figure for a wrong result."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tilegrad.devices.residency import HOST
from tilegrad.errors import UserError, VerificationError

if TYPE_CHECKING:
    from tilegrad.devices.base import Session

WALL_SECONDS = "wall_seconds"
COMPUTE_SECONDS = "compute_seconds"
TRANSFER_SECONDS = "transfer_seconds"
CYCLES = "cycles"
INSTRUCTIONS = "instructions"
COUNTERS = (WALL_SECONDS, COMPUTE_SECONDS, TRANSFER_SECONDS, CYCLES, INSTRUCTIONS)
"""Every counter there is. Wall time is that of a whole call: inputs there, compute, outputs back."""

EXPECTED_TOLERANCE = 1e-4
LONGEST_SECONDS = 3600.0
Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Measurement:
    """`values` has a row for each call, or mean of `calls`, and a column for each counter."""

    entry: str
    counters: tuple[str, ...]
    values: npt.NDArray[np.float64]
    calls: tuple[int, ...] = ()

    def of(self, counter: str) -> npt.NDArray[np.float64]:
        """One counter of every call."""
        return self.values[:, self.counters.index(counter)]

    def median(self, counter: str) -> float:
        return float(np.median(self.of(counter)))


@dataclass(frozen=True)
class Extent:
    """How much is measured: rows, calls before them, and how many calls, or seconds of them, a row is the mean of."""

    repeat: int = 10
    warmup: int = 1
    number: int = 1
    min_seconds: float = 0.0

    def __post_init__(self) -> None:
        wanted = (("repetitions", self.repeat, 1), ("calls to warm up", self.warmup, 0), ("calls", self.number, 1))
        for what, number, least in wanted:
            if number < least:
                raise UserError(
                    f"the number of {what} cannot be used",
                    stage="measure",
                    expected=f"{least} or more",
                    got=str(number),
                )
        if not 0.0 <= self.min_seconds <= LONGEST_SECONDS:
            raise UserError(
                "the least time of a row cannot be used",
                stage="measure",
                expected=f"0 to {LONGEST_SECONDS:g} seconds",
                got=str(self.min_seconds),
            )


def measure(
    session: Session,
    entry: str,
    inputs: Sequence[npt.ArrayLike] | None,
    extent: Extent,
    counters: Sequence[str] | None,
    expected: Mapping[str, npt.ArrayLike] | None,
) -> Measurement:
    """See `Session.measure`."""
    wanted = _checked_counters(session, counters)
    graph = session._entry(entry)
    written = tuple(dict.fromkeys(state for _, state in graph.writes))
    _check_names(entry, (*graph.outputs, *written), expected or {})
    arrays = None if inputs is None else session._as_inputs(entry, inputs)
    before = {state: session.read(state) for state in written}
    rows: list[list[float]] = []
    calls: list[int] = []
    first: dict[str, Array] = {}
    made_calls = 0

    def call() -> Mapping[str, float]:
        nonlocal first, made_calls
        if made_calls:
            _restore(session, before)
        made_calls += 1
        counted, made = _measured_call(session, entry, arrays)
        made |= {state: session.read(state) for state in written}
        first = first or made
        _compare(f"call {made_calls} of {entry} differs from the first", first, made, 0.0)
        return counted

    try:
        for _ in range(extent.warmup):
            call()
        for _ in range(extent.repeat):
            row: list[Mapping[str, float]] = []
            while len(row) < extent.number or sum(each[WALL_SECONDS] for each in row) < extent.min_seconds:
                row.append(call())
            rows.append([sum(each[name] for each in row) / len(row) for name in wanted])
            calls.append(len(row))
    finally:
        _restore(session, before)
    wrong = f"{entry} does not give what was expected"
    _compare(wrong, {name: np.asarray(value) for name, value in (expected or {}).items()}, first, EXPECTED_TOLERANCE)
    values = np.array(rows, dtype=np.float64).reshape(extent.repeat, len(wanted))
    return Measurement(entry, wanted, values, tuple(calls))


def _checked_counters(session: Session, counters: Sequence[str] | None) -> tuple[str, ...]:
    """The counters asked for, all of the device's by default; one that the device lacks is refused, never invented."""
    wanted = session.counters if counters is None else tuple(counters)
    lacking = [name for name in wanted if name not in session.counters]
    if lacking:
        raise UserError(
            f"the device does not count '{lacking[0]}'",
            stage="measure",
            expected=" or ".join(session.counters),
            got=lacking[0],
        )
    return wanted


def _check_names(entry: str, made: Sequence[str], expected: Mapping[str, object]) -> None:
    unknown = [name for name in expected if name not in made]
    if unknown:
        raise UserError(
            f"{entry} does not make '{unknown[0]}'", stage="measure", expected=" or ".join(made), got=unknown[0]
        )


def _restore(session: Session, state: Mapping[str, Array]) -> None:
    for name, value in state.items():
        session.write(name, value)


def _measured_call(
    session: Session, entry: str, arrays: Sequence[Array] | None
) -> tuple[dict[str, float], dict[str, Array]]:
    """One call: its counters, and its outputs by name."""
    start = time.perf_counter()
    if arrays:
        session._place_checked(entry, arrays)
    placed = time.perf_counter()
    counted = dict(session._counted(entry))
    computed = time.perf_counter()
    names = session._entry(entry).outputs
    here = [name for name in names if session._places[name] == HOST]
    if here:
        session.outputs(entry, here)
    end = time.perf_counter()
    counted[TRANSFER_SECONDS] = (placed - start) + (end - computed)
    counted[WALL_SECONDS] = end - start
    return counted, dict(zip(names, session.outputs(entry) if names else [], strict=True))


def _compare(what: str, expected: Mapping[str, Array], got: Mapping[str, Array], tolerance: float) -> None:
    """Raises with the worst tensor and its largest error; a tolerance of 0 means the same bits."""
    errors = {name: _largest_error(got[name], array, tolerance) for name, array in expected.items()}
    worst = max(errors, key=lambda name: errors[name], default=None)
    if worst is None or errors[worst] <= tolerance:
        return
    raise VerificationError(
        f"there is no time for a wrong result: {what}",
        stage="measure",
        expected="the same bits" if tolerance == 0.0 else f"errors within {tolerance:g} of the largest element",
        got=f"'{worst}' is off by {errors[worst]:g} of its largest element",
    )


def _largest_error(got: Array, expected: Array, tolerance: float) -> float:
    """Of any element, relative to the largest one expected. Equal bits are no error, NaNs included."""
    if got.shape != expected.shape:
        return float("inf")
    if got.tobytes() == expected.astype(got.dtype).tobytes():
        return 0.0
    left, right = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(left - right)
    if not np.isfinite(difference).all():
        return float("inf")
    scale = float(np.abs(right).max(initial=0.0))
    error = float(difference.max(initial=0.0)) / (scale or 1.0)
    return error or (0.0 if tolerance else np.finfo(np.float64).tiny)  # -0.0 and 0.0 are different bits
