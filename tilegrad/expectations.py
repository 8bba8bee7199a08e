"""Checks of what a recipe is made of, each with what was expected and what came."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real

from tilegrad.errors import UserError

LARGEST_COUNT = 2**31 - 1
LARGEST_FLOAT = (2 - 2**-23) * 2.0**127


def refused(what: str, expected: str, got: object, hint: str | None = None) -> UserError:
    """A text is shown as it is; anything else that is no number with its type."""
    shown = str(got) if isinstance(got, str) or is_a(Real, got) else f"{got!r} ({type(got).__name__})"
    return UserError(f"{what} cannot be used", stage="recipe", expected=expected, got=shown, hint=hint)


def expect(condition: bool, what: str, expected: str, got: object) -> None:
    if not condition:
        raise refused(what, expected, got)


def is_a(kind: type, value: object) -> bool:
    """NumPy's numbers count; True is no number."""
    return isinstance(value, kind) and not isinstance(value, bool)


def expect_one_of(what: str, value: object, choices: Iterable[str]) -> None:
    expect(isinstance(value, str) and value in choices, what, " or ".join(choices), value)


def expect_whole(what: str, value: object, expected: str) -> None:
    if not is_a(Integral, value):
        raise refused(what, f"a whole number, {expected}", value)


class Untold(int):
    """A count that nobody gave. It is that number, unless something else tells another."""


class UntoldRate(float):
    """A learning rate that nobody gave, likewise."""


ONE_UNLESS_TOLD = Untold(1)
RATE_UNLESS_TOLD = UntoldRate(0.01)


def is_told(number: float | None) -> bool:
    return number is not None and not isinstance(number, Untold | UntoldRate)


def as_count(value: int) -> int:
    """Of any kind of whole number; what nobody gave stays so."""
    return value if isinstance(value, Untold) else int(value)


def expect_count(what: str, value: int) -> None:
    """A number of samples, mini-batches or updates: C and ONNX count them in 32 and 64 bits."""
    expect_whole(what, value, "1 or more")
    expect(value >= 1, what, "1 or more", value)
    expect(value <= LARGEST_COUNT, what, f"at most {LARGEST_COUNT}", value)


def expect_seed(value: int) -> None:
    expect_whole("the seed", value, "0 to 4294967295")
    expect(0 <= value < 2**32, "the seed", "0 to 4294967295", value)


def expect_tolerance(value: float) -> None:
    """The error that is no disagreement."""
    expect(is_a(Real, value) and 0.0 < value < float("inf"), "the tolerance", "a finite number above 0", value)


def expect_number(what: str, value: float) -> None:
    expect(is_a(Real, value) and 0.0 <= value < float("inf"), what, "a finite number, 0 or more", value)
    expect(value <= LARGEST_FLOAT, what, f"at most {LARGEST_FLOAT:.3g}, the largest float", value)


def expect_share(what: str, value: float) -> None:
    """Of what an average keeps: at 1 and beyond it amplifies."""
    expect(is_a(Real, value) and 0.0 <= value < 1.0, what, "0 or more, less than 1", value)
