"""Random chains of nests, cut and placed at random: whatever places overlap, what is made of them must be right.

A planner keeps neighbours apart where it can. Here nobody does, so that everything that has to be waited for is.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.sequence.toy import Toy, chip, tiling_of
from tilegrad.analysis.footprint import tileable_axes
from tilegrad.analysis.lifetimes import align
from tilegrad.ir.listing import Listing
from tilegrad.ir.nest import Access, Axis, AxisKind, Index, Nest, Operand, along, ordered_sizes
from tilegrad.ir.plan import Staging
from tilegrad.ir.schedule import Tiling

READ, WRITE = Access.READ, Access.WRITE


class _Chain:
    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.nests: list[Nest] = []

    def pick(self, *choices: int) -> int:
        return int(self.random.choice(choices))

    def value(self, *shape: int) -> str:
        name = f"v{len(self.shapes)}"
        self.shapes[name] = shape
        return name

    def source(self, dims: int, *shape: int) -> tuple[str, tuple[int, ...]]:
        """What some nest made, mostly the latest, or something new."""
        known = [o.value for nest in self.nests for o in nest.results if o.value and len(o.shape) == dims]
        if shape:
            known = [name for name in known if self.shapes[name] == shape]
        if known and self.random.random() < 0.8:
            name = known[-1] if self.random.random() < 0.7 else known[self.random.integers(len(known))]
        else:
            name = self.value(*(shape or [self.pick(3, 5, 6, 8) for _ in range(dims)]))
        return name, self.shapes[name]

    def copy(self) -> Nest:
        """Also with a reach, and with a second operand that stays or is absent."""
        x, (n,) = self.source(1)
        reach = self.pick(-3, -1, 0, 0, 0, 0, 1, 2)
        operands = [Operand("x", x, READ, (n,), (Index((("m", 1),), reach),))]
        kind = self.pick(0, 1, 2)
        if kind == 1:
            operands.append(Operand("b", self.value(2), READ, (2,), None))
        elif kind == 2:
            operands.append(Operand("b", None, READ))
        operands.append(Operand("y", self.value(n), WRITE, (n,), (along("m"),)))
        return Nest("copy", (Axis("m", n),), tuple(operands))

    def add(self) -> Nest:
        x, (n, m) = self.source(2)
        z, _ = self.source(2, n, m)
        index = (along("i"), along("k"))
        operands = [Operand("x", x, READ, (n, m), index), Operand("z", z, READ, (n, m), index)]
        operands.append(Operand("y", self.value(n, m), WRITE, (n, m), index))
        if self.random.random() < 0.3:
            operands.append(Operand("mask", self.value(n, m), WRITE, (n, m), index))
        return Nest("add", (Axis("i", n), Axis("k", m)), tuple(operands))

    def product(self) -> Nest:
        x, (m, k) = self.source(2)
        n = self.pick(2, 5)
        axes = (Axis("m", m), Axis("n", n), Axis("k", k, AxisKind.REDUCTION))
        w = Operand("w", self.value(k, n), READ, (k, n), (along("k"), along("n")))
        y = Operand("y", self.value(m, n), WRITE, (m, n), (along("m"), along("n")))
        return Nest("product", axes, (Operand("x", x, READ, (m, k), (along("m"), along("k"))), w, y))

    def window(self) -> Nest:
        """y[c, m] = sum over k of x[c, stride * m + k - 1]."""
        x, (c, n) = self.source(2)
        stride, size = self.pick(1, 2), self.pick(1, 3)
        m = (n - 1) // stride + 1
        axes = (Axis("c", c), Axis("m", m), Axis("k", size, AxisKind.INNER))
        index = (along("c"), Index((("m", stride), ("k", 1)), -(size // 2)))
        y = Operand("y", self.value(c, m), WRITE, (c, m), (along("c"), along("m")))
        return Nest("window", axes, (Operand("x", x, READ, (c, n), index), y))

    def total(self) -> Nest:
        x, (n, m) = self.source(2)
        axes = (Axis("m", m), Axis("i", n, AxisKind.REDUCTION))
        y = Operand("y", self.value(m), WRITE, (m,), (along("m"),))
        return Nest("total", axes, (Operand("x", x, READ, (n, m), (along("i"), along("m"))), y))

    def tiling(self, nest: Nest) -> Tiling:
        sizes = {axis.name: axis.extent for axis in nest.axes}
        for axis in tileable_axes(nest):
            if self.random.random() < 0.6:
                sizes[axis] = int(self.random.integers(1, nest.axis(axis).extent + 1))
        sizes = dict(ordered_sizes(nest, sizes))
        tiles = {axis.name: sizes[axis.name] for axis in nest.axes if sizes[axis.name] < axis.extent}
        kinds = {axis.name: axis.kind for axis in nest.axes}
        parallel = [name for name in tiles if kinds[name] is AxisKind.PARALLEL]
        order = [*self.random.permutation(parallel).tolist(), *(name for name in tiles if name not in parallel)]
        return tiling_of(nest, tiles, bool(tiles) and self.random.random() < 0.6, order)

    def lives(self) -> dict[str, tuple[int, int]]:
        """The nests between which each value is needed; -1 is the caller."""
        last = {o.value: i for i, nest in enumerate(self.nests) for o in nest.reads}
        made = {o.value: i for i, nest in enumerate(self.nests) for o in nest.results}
        return {name: (made.get(name, -1), last.get(name, len(self.nests))) for name in self.shapes}

    def staging(self, offsets: dict[str, int]) -> tuple[Staging, ...]:
        """Some values also go to L3, some time while they are there."""
        found, behind = [], 0
        for name, (made, until) in self.lives().items():
            if until > made and self.random.random() < 0.3:
                start, wait = sorted(int(at) for at in self.random.integers(made + 1, until + 1, 2))
                size_bytes = 4 * int(np.prod(self.shapes[name]))
                found.append(Staging(name, offsets[name], behind, size_bytes, start, wait, inward=False))
                behind += align(size_bytes, 8)
        return tuple(found)

    def offsets(self) -> dict[str, int]:
        """Values may lie where others did that nobody needs any more."""
        own = self.lives()
        placed: dict[str, tuple[int, int, int, int]] = {}
        for name, shape in self.shapes.items():
            (first, until), size = own[name], align(4 * int(np.prod(shape)), 8)
            at = 0 if self.random.random() < 0.7 else 64
            lives = [one for one in placed.values() if one[0] <= until and first <= one[1]]
            while any(at < stop and start < at + size for _, _, start, stop in lives):
                at += 8
            placed[name] = (first, until, at, at + size)
        return {name: one[2] for name, one in placed.items()}


def random_toy(seed: int) -> Listing:
    """Not yet proved. Always the same for a seed."""
    chain = _Chain(seed)
    for _ in range(chain.pick(1, 2, 3, 4, 5)):
        makers = (chain.copy, chain.add, chain.product, chain.window, chain.total)
        chain.nests.append(makers[chain.pick(0, 1, 2, 3, 4)]())
    overlaps = bool(chain.random.random() < 0.8)
    target = chip({"longest_bytes": chain.pick(24, 64, 100_000)}, {"queue_depth": chain.pick(1, 1, 2)})
    nests: list[tuple[Nest, Tiling | None]] = [(nest, chain.tiling(nest)) for nest in chain.nests]
    if chain.random.random() < 0.1:
        nests = [(nest, None) for nest in chain.nests]
    toy = Toy(nests, target, overlaps, at=chain.offsets())
    needs = [one.place.table_bytes + one.tiling.scratch_bytes for one in toy.listed() if one.place and one.tiling]
    most = int(max(needs, default=0) * chain.random.uniform(1.0, 3.0)) // 8 * 8
    places = {}
    for number, one in enumerate(toy.listed()):
        if one.place is None or one.tiling is None:
            continue
        table, slots = one.place.table_bytes, one.tiling.scratch_bytes
        gap = int(chain.random.integers(0, (most - table - slots) // 8 + 1)) * 8 if most > table + slots else 0
        start = int(chain.random.integers(0, max((most - table - slots - gap) // 8, 0) + 1)) * 8
        is_first = bool(chain.random.random() < 0.5)
        places[number] = (start, start + table + gap) if is_first else (start + slots + gap, start)
    return replace(toy, places=places, staging=chain.staging(toy.offsets())).listing()
