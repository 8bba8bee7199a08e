/* Dropout at inference: y = x, an all-true mask. SeededDropout: element i of the whole tensor is kept where its random
 * number of this node and mini-batch is not below the ratio, then scaled. */
#include "tg_elementwise.h"
#include "tg_random.h"

typedef struct {
    int32_t n_i, at_i, seed, stream;
    float ratio, scale;
} tg_seeded_dropout_args;

TG_KERNEL void tg_dropout_copy(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                               int core_count)
{
    if (x == y)
        return;
    TG_MAP(y[i] = x[i];)
}

TG_KERNEL void tg_dropout_mask(TG_MEM uint8_t *mask, TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(mask[i] = 1;)
}

TG_KERNEL void tg_seeded_dropout(TG_MEM const float *x, TG_MEM const int64_t *minibatch, TG_MEM float *y,
                                 TG_MEM uint8_t *mask, TG_ARG const tg_seeded_dropout_args *p, int core_id,
                                 int core_count)
{
    const uint32_t family = tg_random_family(TG_RANDOM_DROPOUT, (uint32_t)p->stream);
    int start, stop;
    tg_share(p->n_i, core_id, core_count, &start, &stop);
    uint32_t words[4];
    for (int i = start; i < stop; i++) {
        uint32_t position = (uint32_t)(p->at_i + i);
        if (i == start || (position & 3u) == 0) { /* one call of the generator makes four words */
            words[0] = position >> 2;
            words[1] = (uint32_t)*minibatch;
            words[2] = words[3] = 0;
            tg_philox4x32(words, (uint32_t)p->seed, family);
        }
        int is_kept = tg_random_unit(words[position & 3u]) >= p->ratio;
        if (y != TG_NULL)
            y[i] = is_kept ? x[i] * p->scale : 0.0f;
        if (mask != TG_NULL)
            mask[i] = (uint8_t)is_kept;
    }
}
