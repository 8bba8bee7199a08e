"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilegrad.sequence.timing import Roofline
from tilegrad.sizes import bytes_text

__all__ = [
    "bytes_text",
    "count_text",
    "error_text",
    "plural",
    "ratio_text",
    "seconds_text",
    "shape_text",
]


def count_text(count: int) -> str:
    return f"{count:,}"


def seconds_text(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.{0 if seconds >= 0.01 else 1}f} ms"
    return f"{seconds:.1f} s"


def error_text(value: float | None) -> str:
    """An error figure; `-` where there is none."""
    return "-" if value is None else f"{value:.1e}"


def ratio_text(used: int, bound: int) -> str:
    return "-" if bound == 0 else f"{used / bound:.3f}"


def shape_text(shape: Sequence[int]) -> str:
    return "scalar" if not shape else "×".join(map(str, shape))


def uncounted_text(kernels: Sequence[str]) -> str:
    """What is to be said of kernels whose cycles nobody counted; empty where there are none."""
    return f"uncounted, a guess from other kernels: {', '.join(kernels)}" if kernels else ""


def roofline_text(roof: Roofline | None, word: str) -> str:
    """Of launches over blocks: what they would take if only one thing took time, under the target's
    word for cycles; empty where there are none."""
    if roof is None or not roof.least_cycles:
        return ""
    each = f"compute {count_text(round(roof.compute_cycles))}, {roof.memory} {count_text(round(roof.memory_cycles))}"
    return (
        f"roofline of a step's launches, {word}: {each} alone ({roof.bytes_per_cycle:g} bytes/cycle for "
        f"{roof.clusters} clusters); each the longer of both: {count_text(round(roof.least_cycles))}, "
        f"{roof.bound_launches} of {roof.launches} for {roof.memory}; "
        f"they take {roof.cycles / roof.least_cycles:.2f} × that"
    )


def cycles_text(cycles: Mapping[str, int | None], word: str, uncounted: Sequence[str]) -> str:
    """Estimated cycles of the entries, under the target's word for them; empty where there are none."""
    known = ", ".join(f"{entry} {count_text(count)}" for entry, count in cycles.items() if count is not None)
    guessed = f"; {uncounted_text(uncounted)}" if uncounted else ""
    return f"{word}: {known}{guessed}" if known else ""


def plural(count: int, noun: str) -> str:
    return f"{count_text(count)} {noun}" if count == 1 else f"{count_text(count)} {noun}s"
