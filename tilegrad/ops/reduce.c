/* Reductions over the middle axis of x [o, r, i] into y [o, i]: per output one accumulator, r ascending. Independent
 * outputs are interleaved (a whole row of them, or four rows) so that no accumulator waits for itself. */
#include "tg_kernel.h"

typedef struct {
    int32_t n_o, n_r, n_i;
    int32_t x_by_o, x_by_r, y_by_o;
    int32_t first, last;
    float count;
} tg_reduce_args;

/* STEP(acc, v): the next accumulator. FINISH(acc): the result, on the last tile. */
#define TG_REDUCE(TYPE, START, STEP, FINISH)                                                                           \
    int at, stop;                                                                                                      \
    tg_share(p->n_o * p->n_i, core_id, core_count, &at, &stop);                                                        \
    while (at < stop) {                                                                                                \
        int o = at / p->n_i, i = at - o * p->n_i, n = tg_min(stop - at, p->n_i - i);                                   \
        TG_MEM const TYPE *in = x + o * p->x_by_o + i;                                                                 \
        TG_MEM TYPE *out = y + o * p->y_by_o + i;                                                                      \
        if (p->n_i == 1 && stop - at >= 4) {                                                                           \
            TG_MEM const TYPE *in1 = in + p->x_by_o, *in2 = in1 + p->x_by_o, *in3 = in2 + p->x_by_o;                   \
            TG_MEM TYPE *out1 = out + p->y_by_o, *out2 = out1 + p->y_by_o, *out3 = out2 + p->y_by_o;                   \
            TYPE acc0 = p->first ? START : *out, acc1 = p->first ? START : *out1;                                      \
            TYPE acc2 = p->first ? START : *out2, acc3 = p->first ? START : *out3;                                     \
            for (int r = 0; r < p->n_r; r++) {                                                                         \
                int j = r * p->x_by_r;                                                                                 \
                acc0 = STEP(acc0, in[j]);                                                                              \
                acc1 = STEP(acc1, in1[j]);                                                                             \
                acc2 = STEP(acc2, in2[j]);                                                                             \
                acc3 = STEP(acc3, in3[j]);                                                                             \
            }                                                                                                          \
            *out = p->last ? FINISH(acc0) : acc0;                                                                      \
            *out1 = p->last ? FINISH(acc1) : acc1;                                                                     \
            *out2 = p->last ? FINISH(acc2) : acc2;                                                                     \
            *out3 = p->last ? FINISH(acc3) : acc3;                                                                     \
            at += 4;                                                                                                   \
            continue;                                                                                                  \
        }                                                                                                              \
        for (int j = 0; p->first && j < n; j++)                                                                        \
            out[j] = START;                                                                                            \
        for (int r = 0; r < p->n_r; r++)                                                                               \
            for (int j = 0; j < n; j++)                                                                                \
                out[j] = STEP(out[j], in[r * p->x_by_r + j]);                                                          \
        for (int j = 0; p->last && j < n; j++)                                                                         \
            out[j] = FINISH(out[j]);                                                                                   \
        at += n;                                                                                                       \
    }

#define TG_SAME(acc) (acc)
#define TG_ADD(acc, v) ((acc) + (v))
#define TG_ADD_ABS(acc, v) ((acc) + ((v) < 0.0f ? -(v) : (v)))
#define TG_ADD_SQUARE(acc, v) TG_FMA((v), (v), (acc))
#define TG_TIMES(acc, v) ((acc) * (v))
#define TG_OVER_COUNT(acc) ((acc) / p->count)
#define TG_ROOT(acc) TG_SQRT(acc)
#define TG_LARGER(acc, v) ((v) > (acc) || (v) != (v) ? (v) : (acc)) /* a NaN stays */
#define TG_SMALLER(acc, v) ((v) < (acc) || (v) != (v) ? (v) : (acc))
/* Integers wrap, as in NumPy. */
#define TG_ADD_I32(acc, v) ((int32_t)((uint32_t)(acc) + (uint32_t)(v)))
#define TG_ADD_I64(acc, v) ((int64_t)((uint64_t)(acc) + (uint64_t)(v)))
#define TG_LARGER_INTEGER(acc, v) ((v) > (acc) ? (v) : (acc))
#define TG_SMALLER_INTEGER(acc, v) ((v) < (acc) ? (v) : (acc))

TG_KERNEL void tg_reduce_sum(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_reduce_args *p,
                             int core_id, int core_count)
{
    TG_REDUCE(float, 0.0f, TG_ADD, TG_SAME)
}

TG_KERNEL void tg_reduce_mean(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_reduce_args *p,
                              int core_id, int core_count)
{
    TG_REDUCE(float, 0.0f, TG_ADD, TG_OVER_COUNT)
}

TG_KERNEL void tg_reduce_root(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_reduce_args *p,
                              int core_id, int core_count)
{
    TG_REDUCE(float, 0.0f, TG_ADD, TG_ROOT)
}

TG_KERNEL void tg_reduce_l1(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_reduce_args *p,
                            int core_id, int core_count)
{
    TG_REDUCE(float, 0.0f, TG_ADD_ABS, TG_SAME)
}

TG_KERNEL void tg_reduce_l2(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_reduce_args *p,
                            int core_id, int core_count)
{
    TG_REDUCE(float, 0.0f, TG_ADD_SQUARE, TG_ROOT)
}

TG_KERNEL void tg_reduce_sum_square(TG_MEM const float *x, TG_MEM float *y,
                                    TG_ARG const tg_reduce_args *p, int core_id, int core_count)
{
    TG_REDUCE(float, 0.0f, TG_ADD_SQUARE, TG_SAME)
}

TG_KERNEL void tg_reduce_prod(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_reduce_args *p,
                              int core_id, int core_count)
{
    TG_REDUCE(float, 1.0f, TG_TIMES, TG_SAME)
}

TG_KERNEL void tg_reduce_max(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_reduce_args *p,
                             int core_id, int core_count)
{
    TG_REDUCE(float, -TG_INFINITY, TG_LARGER, TG_SAME)
}

TG_KERNEL void tg_reduce_min(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_reduce_args *p,
                             int core_id, int core_count)
{
    TG_REDUCE(float, TG_INFINITY, TG_SMALLER, TG_SAME)
}

TG_KERNEL void tg_reduce_sum_i32(TG_MEM const int32_t *x, TG_MEM int32_t *y,
                                 TG_ARG const tg_reduce_args *p, int core_id, int core_count)
{
    TG_REDUCE(int32_t, 0, TG_ADD_I32, TG_SAME)
}

TG_KERNEL void tg_reduce_sum_i64(TG_MEM const int64_t *x, TG_MEM int64_t *y,
                                 TG_ARG const tg_reduce_args *p, int core_id, int core_count)
{
    TG_REDUCE(int64_t, 0, TG_ADD_I64, TG_SAME)
}

TG_KERNEL void tg_reduce_max_i32(TG_MEM const int32_t *x, TG_MEM int32_t *y,
                                 TG_ARG const tg_reduce_args *p, int core_id, int core_count)
{
    TG_REDUCE(int32_t, -2147483647 - 1, TG_LARGER_INTEGER, TG_SAME)
}

TG_KERNEL void tg_reduce_min_i32(TG_MEM const int32_t *x, TG_MEM int32_t *y,
                                 TG_ARG const tg_reduce_args *p, int core_id, int core_count)
{
    TG_REDUCE(int32_t, 2147483647, TG_SMALLER_INTEGER, TG_SAME)
}

TG_KERNEL void tg_reduce_max_bool(TG_MEM const uint8_t *x, TG_MEM uint8_t *y,
                                  TG_ARG const tg_reduce_args *p, int core_id, int core_count)
{
    TG_REDUCE(uint8_t, 0, TG_LARGER_INTEGER, TG_SAME)
}

TG_KERNEL void tg_reduce_min_bool(TG_MEM const uint8_t *x, TG_MEM uint8_t *y,
                                  TG_ARG const tg_reduce_args *p, int core_id, int core_count)
{
    TG_REDUCE(uint8_t, 1, TG_SMALLER_INTEGER, TG_SAME)
}

typedef struct {
    int32_t n_o, n_r, n_i;
    int32_t dy_by_o, x_by_o, x_by_r, y_by_o, dx_by_o, dx_by_r;
} tg_reduce_extremum_grad_args;

/* dx = dy / (how many elements equal the extremum y) at those elements, 0 elsewhere. */
TG_KERNEL void tg_reduce_extremum_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *y,
                                       TG_MEM float *dx, TG_ARG const tg_reduce_extremum_grad_args *p, int core_id,
                                       int core_count)
{
    int start, stop;
    tg_share(p->n_o * p->n_i, core_id, core_count, &start, &stop);
    for (int at = start; at < stop; at++) {
        int o = at / p->n_i, i = at - o * p->n_i, ties = 0;
        TG_MEM const float *in = x + o * p->x_by_o + i;
        TG_MEM float *out = dx + o * p->dx_by_o + i;
        float extremum = y[o * p->y_by_o + i], gradient = dy[o * p->dy_by_o + i];
        for (int r = 0; r < p->n_r; r++)
            ties += in[r * p->x_by_r] == extremum;
        gradient = ties > 1 ? gradient / (float)ties : gradient;
        for (int r = 0; r < p->n_r; r++)
            out[r * p->dx_by_r] = in[r * p->x_by_r] == extremum ? gradient : 0.0f;
    }
}
