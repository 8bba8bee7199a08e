/* SquaredNorm and ClipScale: the norm of all gradients, and what they are multiplied with to be no longer than a limit.
 * The sum's order is fixed: blocks of 64 elements in flat order, each from +0 by fma; then the blocks' sums in order,
 * added to the sum of the tensors before. scale = max_norm / (sqrt(sum) + 1e-6), and 1 where that is 1 or more. */
#include "tg_kernel.h"

typedef struct {
    int32_t n_b, n_j;
    int32_t x_by_b, x_n0;
} tg_squared_norm_args;

TG_KERNEL void tg_squared_norm(TG_MEM const float *x, TG_MEM float *part, TG_ARG const tg_squared_norm_args *p,
                               int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_b, core_id, core_count, &start, &stop);
    for (int b = start; b < stop; b++) {
        TG_MEM const float *in = x + b * p->x_by_b;
        int n = tg_min(p->n_j, p->x_n0 - b * p->x_by_b);
        float sum = 0.0f;
        for (int j = 0; j < n; j++)
            sum = TG_FMA(in[j], in[j], sum);
        part[b] = sum;
    }
}

typedef struct {
    int32_t n_i;
    int32_t first;
} tg_squared_norm_total_args;

TG_KERNEL void tg_squared_norm_total(TG_MEM const float *part, TG_MEM const float *before, TG_MEM float *total,
                                     TG_ARG const tg_squared_norm_total_args *p, int core_id, int core_count)
{
    (void)core_count;
    if (core_id != 0)
        return;
    float sum = p->first ? *before : *total;
    for (int i = 0; i < p->n_i; i++)
        sum = sum + part[i];
    *total = sum;
}

typedef struct {
    int32_t n_i;
    float max_norm;
} tg_clip_scale_args;

TG_KERNEL void tg_clip_scale(TG_MEM const float *total, TG_MEM float *scale, TG_ARG const tg_clip_scale_args *p,
                             int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_i, core_id, core_count, &start, &stop);
    for (int i = start; i < stop; i++) {
        float found = p->max_norm / (TG_SQRT(*total) + 1e-6f);
        *scale = found >= 1.0f ? 1.0f : found; /* a NaN stays one */
    }
}
