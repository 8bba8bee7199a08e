"""Cycles of a kernel call, from counted instructions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tilegrad.ir.nest import Nest
from tilegrad.targets.base import Target


@dataclass(frozen=True)
class KernelCosts:
    target: Target

    def cycles(self, nest: Nest, sizes: Mapping[str, int], level: str, cores: int) -> float:
        work = prod(sizes.values())
        return 80.0 + 2.5 * work / cores

    def conduct_cycles(self, nest: Nest, tile_count: int, parts: float) -> float:
        return tile_count * (200.0 + 40.0 * len(nest.operands)) + 20.0 * parts
