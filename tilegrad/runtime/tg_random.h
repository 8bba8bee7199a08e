/* Counter-based random numbers (Philox4x32-10) and the synthetic data made of them: the same bits as tilegrad/random.py
 * and tilegrad/data/batches.py. No state: a word is a function of (seed, purpose, stream, index).
 *
 *   key = (seed, purpose)    counter = (index >> 2, stream, 0, 0)    word = index & 3
 *
 * Streams: the tensor's index for weights, the sample's number for data, labels and targets, the label for patterns,
 * the mini-batch's number for dropout, the epoch for the order of samples, the adapter's index for adapters. */
#ifndef TG_RANDOM_H
#define TG_RANDOM_H

#include "tg_kernel.h"

enum tg_random_purpose {
    TG_RANDOM_WEIGHTS = 1,
    TG_RANDOM_DATA = 2,
    TG_RANDOM_LABELS = 3,
    TG_RANDOM_PATTERN = 4,
    TG_RANDOM_DROPOUT = 5,
    TG_RANDOM_TARGETS = 6,
    TG_RANDOM_ORDER = 7,
    TG_RANDOM_ADAPTERS = 8
};

/* The purpose word of the ordinal-th independent user of one purpose (say, the model's third Dropout). */
TG_INLINE uint32_t tg_random_family(uint32_t purpose, uint32_t ordinal) { return purpose | ordinal << 8; }

/* Philox4x32-10: replaces the counter's four words by four random ones. */
TG_INLINE void tg_philox4x32(uint32_t words[4], uint32_t key_0, uint32_t key_1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t product_0 = (uint64_t)0xD2511F53u * words[0];
        uint64_t product_1 = (uint64_t)0xCD9E8D57u * words[2];
        words[0] = (uint32_t)(product_1 >> 32) ^ words[1] ^ key_0;
        words[1] = (uint32_t)product_1;
        words[2] = (uint32_t)(product_0 >> 32) ^ words[3] ^ key_1;
        words[3] = (uint32_t)product_0;
        key_0 += 0x9E3779B9u;
        key_1 += 0xBB67AE85u;
    }
}

TG_INLINE uint32_t tg_random_u32(uint32_t seed, uint32_t purpose, uint32_t stream, uint32_t index)
{
    uint32_t words[4] = {0, 0, 0, 0};
    words[0] = index >> 2;
    words[1] = stream;
    tg_philox4x32(words, seed, purpose);
    return words[index & 3u];
}

/* Uniform in [0, 1): multiples of 2^-24, exact. */
TG_INLINE float tg_random_unit(uint32_t word) { return (float)(word >> 8) * 5.9604644775390625e-8f; }

/* Uniform in [-1, 1): multiples of 2^-23, exact. */
TG_INLINE float tg_random_signed(uint32_t word) { return 2.0f * tg_random_unit(word) - 1.0f; }

/* Uniform in [0, bound). */
TG_INLINE uint32_t tg_random_bounded(uint32_t word, uint32_t bound) { return (uint32_t)((uint64_t)word * bound >> 32); }

/* An initial weight: element `index` of tensor `tensor`, uniform in [-bound, bound). */
TG_INLINE float tg_initial_weight(uint32_t seed, uint32_t tensor, uint32_t index, float bound)
{
    return tg_random_signed(tg_random_u32(seed, TG_RANDOM_WEIGHTS, tensor, index)) * bound;
}

/* Class index `position` (0 unless a sample has several) of sample `sample`. */
TG_INLINE int64_t tg_synthetic_label(uint32_t seed, uint32_t sample, uint32_t position, uint32_t classes)
{
    return (int64_t)tg_random_bounded(tg_random_u32(seed, TG_RANDOM_LABELS, sample, position), classes);
}

/* A sample's features: half noise, half its label's fixed pattern, so that samples never seen before are learnable. */
TG_INLINE void tg_synthetic_sample(uint32_t seed, uint32_t sample, uint32_t label, TG_MEM float *x, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        float noise = 0.5f * tg_random_signed(tg_random_u32(seed, TG_RANDOM_DATA, sample, i));
        float pattern = 0.5f * tg_random_signed(tg_random_u32(seed, TG_RANDOM_PATTERN, label, i));
        x[i] = noise + pattern;
    }
}

/* A sample of token ids in [0, vocabulary). */
TG_INLINE void tg_synthetic_tokens(uint32_t seed, uint32_t sample, uint32_t vocabulary, TG_MEM int64_t *x,
                                   uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        x[i] = (int64_t)tg_random_bounded(tg_random_u32(seed, TG_RANDOM_DATA, sample, i), vocabulary);
}

/* Regression targets in [-1, 1), for outputs that are not a reconstruction of the input. */
TG_INLINE void tg_synthetic_target(uint32_t seed, uint32_t sample, TG_MEM float *y, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        y[i] = tg_random_signed(tg_random_u32(seed, TG_RANDOM_TARGETS, sample, i));
}

/* Targets that are 0 or 1, for binary cross entropy. */
TG_INLINE void tg_synthetic_binary_target(uint32_t seed, uint32_t sample, TG_MEM float *y, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        y[i] = (float)tg_random_bounded(tg_random_u32(seed, TG_RANDOM_TARGETS, sample, i), 2u);
}

/* The sample at `index` of an epoch, of `count` samples (up to 2^31) in an order of the seed and the epoch: no table, and
 * none of the indices before it. A Feistel network over the smallest even number of bits that holds the count permutes
 * these numbers; one that falls outside goes through it again. */
TG_INLINE uint32_t tg_shuffled(uint32_t seed, uint32_t epoch, uint32_t index, uint32_t count)
{
    uint32_t bits = 0;
    while (bits < 32u && (count - 1u) >> bits != 0u)
        bits++;
    const uint32_t width = bits < 2u ? 1u : (bits + 1u) / 2u, mask = (1u << width) - 1u;
    do {
        for (uint32_t round = 0; round < 8u; round++) {
            uint32_t left = index >> width, right = index & mask;
            index = right << width | (left ^ (tg_random_u32(seed, TG_RANDOM_ORDER, epoch, right * 8u + round) & mask));
        }
    } while (index >= count);
    return index;
}

#endif
