/* Sixteen rows at a time. */
#include "tg_normalize.h"
#include "tg_rows.h"

TG_SHARED void tg_layer_statistics(const float *x, int x_by, int rows, float *mean, float *spread,
                                   const tg_layer_norm_args *p)
{
    for (int r = 0; r < rows; r += 16, x += 16 * x_by) {
        const int count = tg_min(16, rows - r);
        const uint32_t exist = tg_v_first(count);
        tg_v16 sum = tg_v_set(0.0f), squares = tg_v_set(0.0f);
        TG_EACH_COLUMN(x, x_by, count, p->n_k, sum = tg_v_add(sum, a);)
        tg_v_store_some(mean + r, exist, sum);
        for (int l = r; l < r + count; l++)
            mean[l] = mean[l] / p->count;
        const tg_v16 center = tg_v_load_some(mean + r, exist);
        TG_EACH_COLUMN(x, x_by, count, p->n_k, {
            const tg_v16 distance = tg_v_sub(a, center);
            squares = tg_v_fma(distance, distance, squares);
        })
        tg_v_store_some(spread + r, exist, squares);
        for (int l = r; l < r + count; l++)
            spread[l] = tg_inverse_deviation(spread[l] / p->count, p->epsilon);
    }
}

TG_KERNEL void tg_layer_norm_statistics(TG_MEM const float *x, TG_MEM float *mean, TG_MEM float *spread,
                                        TG_ARG const tg_layer_norm_args *p, int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_r, core_id, core_count, &start, &stop);
    tg_layer_statistics(x + start * p->x_by_r, p->x_by_r, stop - start, mean + start, spread + start, p);
}

TG_KERNEL void tg_layer_norm(TG_MEM const float *x, TG_MEM const float *scale, TG_MEM const float *bias,
                             TG_MEM float *mean, TG_MEM float *spread, TG_MEM float *y,
                             TG_ARG const tg_layer_norm_args *p, int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_r, core_id, core_count, &start, &stop);
    tg_layer_statistics(x + start * p->x_by_r, p->x_by_r, stop - start, mean + start, spread + start, p);
    for (int r = start; r < stop; r++) {
        const float *in = x + r * p->x_by_r;
        const float center = mean[r], inverse = spread[r];
        float *out = y + r * p->y_by_r;
        for (int k = 0; bias == TG_NULL && k < p->n_k; k++)
            out[k] = (in[k] - center) * (scale[k] * inverse);
        for (int k = 0; bias != TG_NULL && k < p->n_k; k++)
            out[k] = TG_FMA(in[k] - center, scale[k] * inverse, bias[k]);
    }
}

TG_KERNEL void tg_layer_norm_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *scale,
                                  TG_MEM const float *mean, TG_MEM const float *spread, TG_MEM float *dx,
                                  TG_ARG const tg_layer_norm_grad_args *p, int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_r, core_id, core_count, &start, &stop);
    for (int r = start; r < stop; r += 16) {
        const int rows = tg_min(16, stop - r);
        const tg_v16 centers = tg_v_load_some(mean + r, tg_v_first(rows));
        tg_v16 sum = tg_v_set(0.0f), dot = tg_v_set(0.0f);
        TG_ALIGNED float sums[16], dots[16];
        TG_EACH_COLUMN_OF_TWO(dy + r * p->dy_by_r, p->dy_by_r, x + r * p->x_by_r, p->x_by_r, rows, p->n_k, {
            const tg_v16 scaled = tg_v_mul(a, tg_v_set(scale[k]));
            sum = tg_v_add(sum, scaled);
            dot = tg_v_fma(scaled, tg_v_sub(b, centers), dot);
        })
        tg_v_store(sums, sum);
        tg_v_store(dots, dot);
        for (int l = 0; l < rows; l++) {
            const float *in = dy + (r + l) * p->dy_by_r, *from = x + (r + l) * p->x_by_r;
            const float inverse = spread[r + l], center = mean[r + l];
            const float shift = sums[l] / p->count, tilt = dots[l] * inverse / p->count;
            const float level = inverse * shift, slope = (inverse * inverse) * tilt;
            float *out = dx + (r + l) * p->dx_by_r;
            for (int k = 0; k < p->n_k; k++)
                out[k] = TG_FMA(scale[k] * inverse, in[k], -TG_FMA(from[k] - center, slope, level));
        }
    }
}
