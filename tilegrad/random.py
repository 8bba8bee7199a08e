"""Counter-based random numbers: Philox4x32-10, the same bits here and in `runtime/tg_random.h`.

There is no running state. A word is a pure function of (seed, purpose, stream, index), so a weight, a sample or a
dropout mask can be made anywhere, in any order, by any core, and by the board itself.

    key = (seed, purpose)    counter = (index >> 2, stream, 0, 0)    word = index & 3

Streams: the tensor's index for weights, the sample's number for data, labels and targets, the label for patterns, the
mini-batch's number for dropout, the epoch for the order of samples, the adapter's index for adapters.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tilegrad.errors import UserError

U32Array = npt.NDArray[np.uint32]
U64Array = npt.NDArray[np.uint64]
F32Array = npt.NDArray[np.float32]
I64Array = npt.NDArray[np.int64]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


class Purpose(IntEnum):
    """What a number is for. The values are part of the bit contract and equal `TG_RANDOM_*` in C."""

    WEIGHTS = 1
    DATA = 2
    LABELS = 3
    PATTERN = 4
    DROPOUT = 5
    TARGETS = 6
    ORDER = 7
    ADAPTERS = 8


def check_seed(seed: int) -> int:
    """The seed, if it fits the generator's 32-bit key; a larger one would silently repeat a smaller one."""
    if not 0 <= seed <= 0xFFFFFFFF:
        raise UserError("the seed is out of range", expected="an integer from 0 to 4294967295", got=str(seed))
    return seed


def family(purpose: int, ordinal: int) -> int:
    """The purpose word of the `ordinal`-th independent user of one purpose (say, the model's third Dropout)."""
    return purpose | ordinal << 8


def philox4x32(counter: npt.ArrayLike, key: npt.ArrayLike) -> U32Array:
    """Philox4x32-10 over the last axis: counters `[..., 4]` under keys `[..., 2]` to words `[..., 4]`."""
    c0, c1, c2, c3 = (np.asarray(counter, np.uint64)[..., word] for word in range(4))
    k0, k1 = (np.asarray(key, np.uint64)[..., word] for word in range(2))
    for round_index in range(_ROUNDS):
        round_keys = [(k + np.uint64(round_index * weyl)) & _LOW for k, weyl in zip((k0, k1), _WEYL, strict=True)]
        product_0, product_1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c2 = (product_1 >> _HALF) ^ c1 ^ round_keys[0], (product_0 >> _HALF) ^ c3 ^ round_keys[1]
        c1, c3 = product_1 & _LOW, product_0 & _LOW
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), axis=-1).astype(np.uint32)


def words(seed: int, purpose: int, stream: int | npt.NDArray[np.integer], count: int) -> U32Array:
    """Words 0 to `count` of each stream: shape `[count]`, or `[..., count]` for an array of streams."""
    streams = np.asarray(stream, np.uint64)
    blocks = np.arange((count + 3) // 4, dtype=np.uint64)
    counters = np.zeros((*streams.shape, len(blocks), 4), np.uint64)
    counters[..., 0] = blocks
    counters[..., 1] = streams[..., np.newaxis] & _LOW
    drawn = philox4x32(counters, (check_seed(seed), purpose))
    return drawn.reshape(*streams.shape, 4 * len(blocks))[..., :count]


def word(seed: int, purpose: int, stream: int, index: int) -> int:
    """One word: C's `tg_random_u32`."""
    return int(philox4x32((index >> 2, stream & 0xFFFFFFFF, 0, 0), (check_seed(seed), purpose))[index & 3])


def to_unit(drawn: U32Array) -> F32Array:
    """Uniform in [0, 1): multiples of 2^-24, so the conversion is exact."""
    return (drawn >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def to_signed(drawn: U32Array) -> F32Array:
    """Uniform in [-1, 1): `2u - 1`, multiples of 2^-23, exact."""
    return np.float32(2.0) * to_unit(drawn) - np.float32(1.0)


def to_bounded(drawn: U32Array, bound: int) -> I64Array:
    """Integers in [0, bound): the high half of a 32 x 32-bit product, so no division and no rejection loop."""
    return (drawn.astype(np.uint64) * np.uint64(bound) >> _HALF).astype(np.int64)


SHUFFLE_ROUNDS = 8
"""Of the Feistel network that orders samples; part of the bit contract."""


@lru_cache(maxsize=4)
def order(seed: int, epoch: int, count: int) -> I64Array:
    """The samples of an epoch in their order, a permutation of 0 to `count`: C's `tg_shuffled`, for all indices.

    A Feistel network over the smallest even number of bits that holds the count permutes these numbers; one that falls
    outside goes through it again. So the sample at an index needs no table, and no index before it.
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    shift = np.uint64(half)
    found = np.arange(count, dtype=np.uint64)
    outside = np.ones(count, np.bool_)
    while outside.any():
        x = found[outside]
        for turn in range(SHUFFLE_ROUNDS):
            left, right = x >> shift, x & mask
            drawn = _words_at(seed, Purpose.ORDER, epoch, right * np.uint64(SHUFFLE_ROUNDS) + np.uint64(turn))
            x = (right << shift) | (left ^ (drawn.astype(np.uint64) & mask))
        found[outside] = x
        outside = found >= count
    result = found.astype(np.int64)
    result.flags.writeable = False
    return result


def _words_at(seed: int, purpose: int, stream: int, indices: U64Array) -> U32Array:
    """One word of a stream at each index."""
    counters = np.zeros((*indices.shape, 4), np.uint64)
    counters[..., 0] = indices >> np.uint64(2)
    counters[..., 1] = np.uint64(stream & 0xFFFFFFFF)
    drawn = philox4x32(counters, (check_seed(seed), purpose))
    chosen = (indices & np.uint64(3)).astype(np.int64)
    return np.take_along_axis(drawn, chosen[..., np.newaxis], axis=-1)[..., 0]
