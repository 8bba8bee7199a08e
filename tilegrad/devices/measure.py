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
Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Measurement:
    """`values` has a row for each call and a column for each counter."""

    entry: str
    counters: tuple[str, ...]
    values: npt.NDArray[np.float64]

    def of(self, counter: str) -> npt.NDArray[np.float64]:
        """One counter of every call."""
        return self.values[:, self.counters.index(counter)]

    def median(self, counter: str) -> float:
        return float(np.median(self.of(counter)))


def measure(
    session: Session,
    entry: str,
    inputs: Sequence[npt.ArrayLike] | None,
    repeat: int,
    warmup: int,
    counters: Sequence[str] | None,
    expected: Mapping[str, npt.ArrayLike] | None,
) -> Measurement:
    """See `Session.measure`."""
    wanted = _checked_counters(session, counters)
    for what, number, least in (("repetitions", repeat, 1), ("calls to warm up", warmup, 0)):
        if number < least:
            raise UserError(
                f"the number of {what} cannot be used", stage="measure", expected=f"{least} or more", got=str(number)
            )
    graph = session._entry(entry)
    written = tuple(dict.fromkeys(state for _, state in graph.writes))
    _check_names(entry, (*graph.outputs, *written), expected or {})
    arrays = None if inputs is None else session._as_inputs(entry, inputs)
    before = {state: session.read(state) for state in written}
    rows = []
    first: dict[str, Array] = {}
    try:
        for call in range(warmup + repeat):
            if call > 0:
                _restore(session, before)
            counted, made = _measured_call(session, entry, arrays)
            made |= {state: session.read(state) for state in written}
            first = first or made
            _compare(f"call {call + 1} of {entry} differs from the first", first, made, 0.0)
            if call >= warmup:
                rows.append([counted[name] for name in wanted])
    finally:
        _restore(session, before)
    wrong = f"{entry} does not give what was expected"
    _compare(wrong, {name: np.asarray(value) for name, value in (expected or {}).items()}, first, EXPECTED_TOLERANCE)
    return Measurement(entry, wanted, np.array(rows, dtype=np.float64).reshape(repeat, len(wanted)))


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
    if session.residency.outputs == HOST and names:
        session.outputs(entry)
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
