"""Which cases of a long list `make test` runs: the rest are `make matrix`'s."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_always(cases: Iterable[Any], always: int) -> list[Any]:
    """The parameters of a test: the first few as they are, all others marked."""
    return [case if n < always else pytest.param(case, marks=pytest.mark.matrix) for n, case in enumerate(cases)]
