"""Makes one update of shares: in share order, one rounded operation each, as one device does it that computes them all.

Nothing here knows which device computed a share, or when it was done. That is why results do not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegrad.devices.packed import Packed
from tilegrad.parallel.form import Form

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


class Held(Mapping[str, Array]):
    """What shares made so far: gradient sums, one block where they come as one, and the rest."""

    def __init__(self, sums: Mapping[str, Array], rest: Mapping[str, Array]) -> None:
        self.sums = sums
        self.rest: Arrays = dict(rest)
        self.is_own = False  # whether nobody else has the block of the sums

    @staticmethod
    def of(form: Form, arrays: Mapping[str, Array]) -> Held:
        single = [name for name in form.held if name not in form.gradients]
        return Held({name: arrays[name] for name in form.gradients}, {name: arrays[name] for name in single})

    def __getitem__(self, name: str) -> Array:
        return self.rest[name] if name in self.rest else self.sums[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.rest
        yield from (name for name in self.sums if name not in self.rest)

    def __len__(self) -> int:
        return len({*self.rest, *self.sums})

    def put(self, name: str, value: Array) -> None:
        if name in self.rest:
            self.rest[name] = value
        else:
            self.sums = {**self.sums, name: value}

    def copy(self) -> Held:
        self.is_own = False
        return Held(self.sums, self.rest)

    def some(self, names: Sequence[str]) -> Mapping[str, Array]:
        """These, as one block where they are one."""
        if isinstance(self.sums, Packed) and tuple(self.sums.layout.places) == tuple(names):
            return self.sums
        return {name: self[name] for name in names}

    def add(self, form: Form, made: Mapping[str, Array]) -> None:
        """One rounded addition for each element, of all gradients at once where they are one block. Arrays are
        replaced, never changed, unless they are sums of this that nobody else has."""
        with np.errstate(over="ignore", invalid="ignore"):
            sums, parts = (_block(form, arrays) for arrays in (self.sums, made))
            if sums is None or parts is None or not isinstance(made, Packed):
                self.sums = {name: self.sums[name] + made[name] for name in form.gradients}
            elif self.is_own:
                np.add(sums, parts, out=sums)
            else:
                self.sums = Packed(made.layout.first(len(form.gradients)), (sums + parts).view(np.uint8))
                self.is_own = True


def _block(form: Form, sums: Mapping[str, Array]) -> npt.NDArray[np.float32] | None:
    """All gradients, if they are one block."""
    if not isinstance(sums, Packed):
        return None
    end = sums.layout.leading_bytes(form.gradients, np.float32)
    return None if end is None else sums.whole[:end].view(np.float32)


def share_state(form: Form, held: Mapping[str, Array]) -> Arrays:
    """What a session is given before it computes a share, but for the share's number: nothing of it depends on the
    shares before, unless they are chained.

    Minus zero is what fused multiply-add adds nothing to: momentum * -0 + part is the part, bit for bit.
    """
    state: Arrays = {name: np.full_like(held[name], -0.0) for name in form.statistics}
    state |= {name: held[name] for name in form.chained}
    if form.flag is not None:
        state[form.flag] = np.ones_like(held[form.flag])
    if form.counter is not None:
        state[form.counter] = held[form.counter]
    return state


def add_share(form: Form, held: Held, made: Mapping[str, Array]) -> None:
    """Adds what a share made to what is held, as the step would have."""
    rest = held.rest
    begins = form.flag is None or bool(rest[form.flag].any())
    if begins:
        held.sums, held.is_own = made, False
    else:
        held.add(form, made)
    for name, momentum in form.statistics.items():
        rest[name] = fused_multiply_add(np.float32(momentum), rest[name], made[name])
    for name in form.chained:
        rest[name] = made[name]
    if form.flag is not None and begins:
        rest[form.flag] = np.zeros_like(rest[form.flag])
    if form.counter is not None:
        rest[form.counter] = rest[form.counter] + 1


def fused_multiply_add(a: np.float32, b: Array, c: Array) -> Array:
    """a * b + c in float32 with one rounding, as the C's TG_FMA.

    The product is exact in float64. The sum is rounded to odd there: where it is not exact and its last bit is even, it
    moves one step towards what was lost. Rounding that to float32 rounds the exact sum.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        product = np.float64(a) * b.astype(np.float64)
        addend = c.astype(np.float64)
        total = np.asarray(product + addend)
        back = total - product
        lost = (product - (total - back)) + (addend - back)
        is_inexact = np.isfinite(total) & (lost != 0.0)
        is_even = (total.view(np.int64) & 1) == 0
        towards = np.where(lost > 0.0, np.inf, -np.inf)
        odd = np.where(is_inexact & is_even, np.nextafter(total, towards), total)
        return np.asarray(odd.astype(np.float32)).reshape(np.shape(b))
