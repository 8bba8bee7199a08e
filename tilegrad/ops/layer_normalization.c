/* LayerNormalization of the rows of x [r, k]: statistics per row, affine per column. Rows are whole in every tile, so
 * one pass over memory does for statistics and result; four rows at a time stay in the nearest cache. */
#include "tg_normalize.h"

typedef struct {
    int32_t n_r, n_k;
    int32_t x_by_r, y_by_r;
    float count, epsilon;
} tg_layer_norm_args;

/* mean and spread (the inverse deviation) of `rows` rows. */
TG_INLINE void tg_layer_statistics(TG_MEM const float *x, int x_by, int rows, TG_MEM float *mean, TG_MEM float *spread,
                                   TG_ARG const tg_layer_norm_args *p)
{
    for (int r = 0; r < rows; r++)
        mean[r] = 0.0f, spread[r] = 0.0f;
    tg_rows_sum(x, x_by, rows, p->n_k, mean, 1);
    for (int r = 0; r < rows; r++)
        mean[r] = mean[r] / p->count;
    tg_rows_squares(x, x_by, mean, 1, rows, p->n_k, spread, 1);
    for (int r = 0; r < rows; r++)
        spread[r] = tg_inverse_deviation(spread[r] / p->count, p->epsilon);
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
    for (int at = start; at < stop; at += 4) {
        int rows = tg_min(4, stop - at);
        tg_layer_statistics(x + at * p->x_by_r, p->x_by_r, rows, mean + at, spread + at, p);
        for (int r = at; r < at + rows; r++) {
            TG_MEM const float *in = x + r * p->x_by_r;
            TG_MEM float *out = y + r * p->y_by_r;
            float center = mean[r], inverse = spread[r];
            if (bias == TG_NULL)
                TG_UNROLLED for (int k = 0; k < p->n_k; k++)
                    out[k] = (in[k] - center) * (scale[k] * inverse);
            else
                TG_UNROLLED for (int k = 0; k < p->n_k; k++)
                    out[k] = TG_FMA(in[k] - center, scale[k] * inverse, bias[k]);
        }
    }
}

typedef struct {
    int32_t n_r, n_k;
    int32_t dy_by_r, x_by_r;
    int32_t first, last;
} tg_layer_norm_parameters_args;

/* dbias [k] sums dy, dscale [k] sums dy * normalised x, over the rows; the vector runs along k. */
TG_KERNEL void tg_layer_norm_parameters(TG_MEM const float *dy, TG_MEM const float *x,
                                        TG_MEM const float *mean, TG_MEM const float *spread,
                                        TG_MEM float *dscale, TG_MEM float *dbias,
                                        TG_ARG const tg_layer_norm_parameters_args *p, int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_k, core_id, core_count, &start, &stop);
    for (int k = start; p->first && k < stop; k++) {
        if (dscale != TG_NULL)
            dscale[k] = 0.0f;
        if (dbias != TG_NULL)
            dbias[k] = 0.0f;
    }
    for (int r = 0; r < p->n_r; r++) {
        TG_MEM const float *dy_row = dy + r * p->dy_by_r, *x_row = x + r * p->x_by_r;
        if (dscale != TG_NULL)
            TG_UNROLLED for (int k = start; k < stop; k++)
                dscale[k] = TG_FMA(dy_row[k], (x_row[k] - mean[r]) * spread[r], dscale[k]);
        if (dbias != TG_NULL)
            TG_UNROLLED for (int k = start; k < stop; k++)
                dbias[k] = dbias[k] + dy_row[k];
    }
}

typedef struct {
    int32_t n_r, n_k;
    int32_t dy_by_r, x_by_r, dx_by_r;
    float count;
} tg_layer_norm_grad_args;

/* dx = inverse * (scale dy - mean(scale dy) - normalised x * mean(scale dy * normalised x)), two rows at a time (a lone
 * last row is its own partner). */
TG_KERNEL void tg_layer_norm_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *scale,
                                  TG_MEM const float *mean, TG_MEM const float *spread, TG_MEM float *dx,
                                  TG_ARG const tg_layer_norm_grad_args *p, int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_r, core_id, core_count, &start, &stop);
    for (int r = start; r < stop; r += 2) {
        int partner = tg_min(r + 1, stop - 1);
        TG_MEM const float *dy0 = dy + r * p->dy_by_r, *dy1 = dy + partner * p->dy_by_r;
        TG_MEM const float *x0 = x + r * p->x_by_r, *x1 = x + partner * p->x_by_r;
        float mean0 = mean[r], mean1 = mean[partner];
        float sum0 = 0.0f, sum1 = 0.0f, dot0 = 0.0f, dot1 = 0.0f;
        TG_UNROLLED for (int k = 0; k < p->n_k; k++) {
            float scaled0 = dy0[k] * scale[k], scaled1 = dy1[k] * scale[k];
            sum0 = sum0 + scaled0;
            sum1 = sum1 + scaled1;
            dot0 = TG_FMA(scaled0, x0[k] - mean0, dot0);
            dot1 = TG_FMA(scaled1, x1[k] - mean1, dot1);
        }
        for (int row = r; row <= partner; row++) {
            TG_MEM const float *in = dy + row * p->dy_by_r, *from = x + row * p->x_by_r;
            TG_MEM float *out = dx + row * p->dx_by_r;
            float inverse = spread[row], center = mean[row];
            float shift = (row == r ? sum0 : sum1) / p->count, tilt = (row == r ? dot0 : dot1) * inverse / p->count;
            float level = inverse * shift, slope = (inverse * inverse) * tilt;
            TG_UNROLLED for (int k = 0; k < p->n_k; k++)
                out[k] = TG_FMA(scale[k] * inverse, in[k], -TG_FMA(from[k] - center, slope, level));
        }
    }
}
