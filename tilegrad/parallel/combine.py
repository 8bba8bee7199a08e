"""Makes one update of shares: in share order, one rounded operation each, as one device does it that computes them all.

Nothing here knows which device computed a share, or when it was done. That is why results do not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tilegrad.parallel.form import Form

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


def share_state(form: Form, number: int, held: Mapping[str, Array]) -> Arrays:
    """What a session is given before it computes a share: nothing of it depends on the shares before, unless they are
    chained.

    Minus zero is what fused multiply-add adds nothing to: momentum * -0 + part is the part, bit for bit.
    """
    state: Arrays = {name: np.full_like(held[name], -0.0) for name in form.statistics}
    state |= {name: held[name] for name in form.chained}
    if form.flag is not None:
        state[form.flag] = np.ones_like(held[form.flag])
    if form.counter is not None:
        state[form.counter] = np.full_like(held[form.counter], number)
    return state


def add_share(form: Form, held: Arrays, made: Mapping[str, Array]) -> None:
    """Adds what a share made to what is held, as the step would have. Arrays are replaced, never changed."""
    begins = form.flag is None or bool(held[form.flag].any())
    if begins:
        held.update((name, made[name]) for name in form.gradients)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            held.update((name, held[name] + made[name]) for name in form.gradients)
    for name, momentum in form.statistics.items():
        held[name] = fused_multiply_add(np.float32(momentum), held[name], made[name])
    for name in form.chained:
        held[name] = made[name]
    if form.flag is not None:
        held[form.flag] = np.zeros_like(held[form.flag])
    if form.counter is not None:
        held[form.counter] = held[form.counter] + 1


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
