"""Where nests begin in scratchpad: inside it, and apart from those before them wherever that is possible."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tilegrad.place.scratch_offsets import nest_offsets

LIMIT = 100


def are_apart(spans: list[tuple[int, int]]) -> bool:
    ordered = sorted(spans)
    return all(stop <= first for (_, stop), (first, _) in pairwise(ordered))


@given(st.lists(st.integers(1, LIMIT), max_size=8))
def test_neighbours_that_fit_beside_each_other_are_apart(sizes: list[int]) -> None:
    spans = [(first, first + size) for first, size in zip(nest_offsets(sizes, LIMIT), sizes, strict=True)]
    assert all(first >= 0 and stop <= LIMIT for first, stop in spans)
    for i, (a, b) in enumerate(pairwise(sizes)):
        common = min(spans[i][1], spans[i + 1][1]) - max(spans[i][0], spans[i + 1][0])
        if a + b <= LIMIT:
            assert common <= 0
        else:  # one is at either end
            assert common == a + b - LIMIT


@given(st.lists(st.integers(1, LIMIT // 5), max_size=12))
def test_small_ones_are_apart_from_two_before_them(sizes: list[int]) -> None:
    spans = [(first, first + size) for first, size in zip(nest_offsets(sizes, LIMIT), sizes, strict=True)]
    assert all(are_apart(spans[i : i + 3]) for i in range(len(spans)))
