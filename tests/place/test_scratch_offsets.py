"""Where nests begin in scratchpad: inside it, and apart from those before them wherever that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from tilegrad.place.scratch_offsets import LEAVING_COUNTS, nest_offsets

LIMIT, FEW = 100, 8


def are_apart(spans: list[tuple[int, int]]) -> bool:
    ordered = sorted(spans)
    return all(stop <= first for (_, stop), (first, _) in pairwise(ordered))


def shared(sizes: Sequence[int], firsts: Sequence[int]) -> float:
    """What neighbours have in common, and what those two apart do, of which less is lost."""
    spans = [(first, first + size) for first, size in zip(firsts, sizes, strict=True)]

    def common(apart: int) -> int:
        pairs = zip(spans, spans[apart:], strict=False)
        return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in pairs)

    return common(1) + LEAVING_COUNTS * common(2)


@given(st.lists(st.integers(1, FEW), min_size=1, max_size=5))
def test_no_other_places_have_much_less_in_common(sizes: list[int]) -> None:
    """All ways to place a few nests in a few bytes: at most two bytes more of results that leave."""
    least = min(shared(sizes, firsts) for firsts in product(*(range(FEW - size + 1) for size in sizes)))
    assert shared(sizes, nest_offsets(sizes, FEW)) <= least + 2 * LEAVING_COUNTS


@given(st.lists(st.integers(1, LIMIT), max_size=2))
def test_two_that_fit_are_apart_and_others_lie_at_either_end(sizes: list[int]) -> None:
    assert shared(sizes, nest_offsets(sizes, LIMIT)) == max(0, sum(sizes) - LIMIT if len(sizes) == 2 else 0)


@given(st.lists(st.integers(1, LIMIT), max_size=8))
def test_all_are_inside(sizes: list[int]) -> None:
    assert all(0 <= first <= LIMIT - size for first, size in zip(nest_offsets(sizes, LIMIT), sizes, strict=True))


@given(st.lists(st.integers(1, LIMIT // 5), max_size=12))
def test_small_ones_are_apart_from_two_before_them(sizes: list[int]) -> None:
    spans = [(first, first + size) for first, size in zip(nest_offsets(sizes, LIMIT), sizes, strict=True)]
    assert all(are_apart(spans[i : i + 3]) for i in range(len(spans)))
