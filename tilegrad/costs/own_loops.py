"""What counts of portable loops do not say: that a tile begins or ends sums, and that a chip has loops of its own.

Counts are of portable kernels. Siracusa's blocks of a matrix product are other code (tg_inner.h of its kernels):
hardware loops in which a load or an addition stands behind each multiply-add. A single row goes to other loops than
four rows do, so both are measured apart (costs/measured.py).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple

from tilegrad.costs.loops.base import Sizes
from tilegrad.costs.loops.matrix import GEMM
from tilegrad.ir.nest import AxisKind, Nest, Tile


class Ends(NamedTuple):
    """Of a tile where sums are cut: whether it begins them, and whether it ends them."""

    first: bool
    last: bool


WHOLE = Ends(True, True)


def ends_of(nest: Nest, ranges: Tile) -> Ends:
    """Along all reductions together: one tile begins a sum, and one ends it."""
    cut = [(ranges[axis.name], axis.extent) for axis in nest.axes if axis.kind is AxisKind.REDUCTION]
    return Ends(all(own.start == 0 for own, _ in cut), all(own.stop >= extent for own, extent in cut))


@dataclass(frozen=True)
class OwnLoops:
    """Loops of a chip's own, by the trips that were counted in their place. They are other lines of code in `code`. In
    `turns`, something else stands between two multiply-adds, so that two cores on one FPU take turns."""

    form: str
    code: tuple[float, ...]  # 1 for each trip that is one of these
    turns: tuple[float, ...]


def _chosen(chosen: Container[str]) -> tuple[float, ...]:
    return tuple(float(name in chosen) for name in GEMM.names)


_IN_BLOCKS = [name for name in GEMM.names if name.startswith("blocks") and "finished" not in name]
_BLOCKS = OwnLoops("blocks", _chosen(_IN_BLOCKS), _chosen([name for name in _IN_BLOCKS if "*" in name]))
_PRODUCTS = frozenset(("gemm_nn", "gemm_nt", "gemm_tn", "gemm_tt"))


def own_loops(kernel: str, sizes: Sizes) -> OwnLoops | None:
    """Those that a tile of such sizes goes to, with what is left beside blocks of four; None for rows alone, and for
    outer products."""
    is_blocks = kernel in _PRODUCTS and sizes["m"] >= 4 and sizes["n"] >= 4 and sizes["k"] > 1
    return _BLOCKS if is_blocks else None
