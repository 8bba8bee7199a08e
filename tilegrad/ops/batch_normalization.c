/* BatchNormalization: x [o, g, 1, s] with a statistic per channel g. The loops are in tg_normalize.h. */
#include "tg_elementwise.h"
#include "tg_normalize.h"

/* From variances; `alpha` is epsilon. */
TG_KERNEL void tg_batch_norm_inverse(TG_MEM const float *variance, TG_MEM float *spread, TG_ARG const tg_map_args *p,
                                     int core_id, int core_count)
{
    TG_MAP(spread[i] = tg_inverse_deviation(variance[i], p->alpha);)
}

TG_KERNEL void tg_batch_norm(TG_MEM const float *x, TG_MEM const float *scale, TG_MEM const float *bias,
                             TG_MEM const float *mean, TG_MEM const float *spread, TG_MEM float *y,
                             TG_ARG const tg_normalize_args *p, int core_id, int core_count)
{
    tg_normalize(x, scale, bias, mean, spread, y, p, core_id, core_count);
}

TG_KERNEL void tg_batch_norm_partial(TG_MEM const float *x, TG_MEM const float *mean, TG_MEM float *total,
                                     TG_ARG const tg_row_statistics_args *p, int core_id, int core_count)
{
    tg_row_statistics(x, mean, total, p, core_id, core_count);
}

typedef struct {
    int32_t n_o, n_g;
    int32_t part_by_o;
    int32_t is_variance;
    float count, running_count, momentum, complement, epsilon;
} tg_batch_norm_statistic_args;

/* From the samples' sums: the batch's mean, or its inverse deviation, and the running statistic
 * momentum * running + (1 - momentum) * batch, whose variance has its own divisor. */
TG_KERNEL void tg_batch_norm_statistic(TG_MEM const float *part, TG_MEM const float *running, TG_MEM float *updated,
                                       TG_MEM float *saved, TG_ARG const tg_batch_norm_statistic_args *p, int core_id,
                                       int core_count)
{
    int start, stop;
    tg_share(p->n_g, core_id, core_count, &start, &stop);
    for (int g = start; g < stop; g++) {
        float total = 0.0f;
        for (int o = 0; o < p->n_o; o++)
            total = total + part[o * p->part_by_o + g];
        float batch = total / p->count;
        saved[g] = p->is_variance ? tg_inverse_deviation(batch, p->epsilon) : batch;
        if (updated != TG_NULL)
            updated[g] = TG_FMA(p->momentum, running[g], p->complement * (total / p->running_count));
    }
}

TG_KERNEL void tg_batch_norm_dots(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *mean,
                                  TG_MEM const float *spread, TG_MEM float *sum, TG_MEM float *dot,
                                  TG_ARG const tg_normalize_dots_args *p, int core_id, int core_count)
{
    tg_normalize_dots(dy, x, mean, spread, sum, dot, p, core_id, core_count);
}

typedef struct {
    int32_t n_o, n_g;
    int32_t dy_by_o, x_by_o;
    int32_t first, last;
} tg_batch_norm_flat_dots_args;

/* The same sums where s is 1: over o, the vector along the channels. */
TG_KERNEL void tg_batch_norm_flat_dots(TG_MEM const float *dy, TG_MEM const float *x,
                                       TG_MEM const float *mean, TG_MEM const float *spread,
                                       TG_MEM float *sum, TG_MEM float *dot,
                                       TG_ARG const tg_batch_norm_flat_dots_args *p, int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_g, core_id, core_count, &start, &stop);
    for (int g = start; p->first && g < stop; g++)
        sum[g] = 0.0f;
    for (int o = 0; o < p->n_o; o++)
        for (int g = start; g < stop; g++)
            sum[g] = sum[g] + dy[o * p->dy_by_o + g];
    if (dot == TG_NULL)
        return;
    for (int g = start; p->first && g < stop; g++)
        dot[g] = 0.0f;
    for (int o = 0; o < p->n_o; o++)
        for (int g = start; g < stop; g++)
            dot[g] = TG_FMA(dy[o * p->dy_by_o + g], x[o * p->x_by_o + g] - mean[g], dot[g]);
    for (int g = start; p->last && g < stop; g++)
        dot[g] = dot[g] * spread[g];
}

TG_KERNEL void tg_batch_norm_parameters(TG_MEM const float *sum, TG_MEM const float *dot, TG_MEM float *dscale,
                                        TG_MEM float *dbias, TG_ARG const tg_normalize_parameters_args *p, int core_id,
                                        int core_count)
{
    tg_normalize_parameters(sum, dot, dscale, dbias, p, core_id, core_count);
}

TG_KERNEL void tg_batch_norm_moments(TG_MEM const float *sum, TG_MEM const float *dot, TG_MEM const float *scale,
                                     TG_MEM float *shift, TG_MEM float *tilt,
                                     TG_ARG const tg_normalize_moments_args *p, int core_id, int core_count)
{
    tg_normalize_moments(sum, dot, scale, shift, tilt, p, core_id, core_count);
}

TG_KERNEL void tg_batch_norm_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *scale,
                                  TG_MEM const float *mean, TG_MEM const float *spread, TG_MEM const float *shift,
                                  TG_MEM const float *tilt, TG_MEM float *dx, TG_ARG const tg_normalize_grad_args *p,
                                  int core_id, int core_count)
{
    tg_normalize_grad(dy, x, scale, mean, spread, shift, tilt, dx, p, core_id, core_count);
}
