/* BatchNormalization with statistics that are constants, of x [o, g, s] per channel g, perhaps with a Relu behind it:
 *
 *   y  = fma(x - mean, scale * spread, bias), or the Relu of that; `spread` is the inverse deviation
 *   dx = (scale * spread) * d, where d is dy, or with the Relu's output y what ReluGrad makes of dy
 *
 * The gradient is one pass over dy, y and x, which also sums d and fma(d, x - mean, dot). */
#include "tg_frozen.h"
#include "tg_normalize.h"

typedef struct {
    int32_t n_o, n_g, n_s;
    int32_t x_by_o, x_by_g, y_by_o, y_by_g;
    int32_t has_relu;
} tg_frozen_norm_args;

TG_KERNEL void tg_frozen_norm(TG_MEM const float *x, TG_MEM const float *scale, TG_MEM const float *bias,
                              TG_MEM const float *mean, TG_MEM const float *spread, TG_MEM float *y,
                              TG_ARG const tg_frozen_norm_args *p, int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_o * p->n_g, core_id, core_count, &start, &stop);
    if (start >= stop)
        return;
    tg_row_at at = tg_row_locate(start, p->n_g, 1);
    for (int row = start; row < stop; row++, tg_row_advance(&at, p->n_g, 1)) {
        TG_MEM const float *from = x + at.o * p->x_by_o + at.g * p->x_by_g;
        TG_MEM float *to = y + at.o * p->y_by_o + at.g * p->y_by_g;
        const float center = mean[at.g], factor = scale[at.g] * spread[at.g], added = bias[at.g];
        if (p->has_relu)
            tg_frozen_row(from, to, p->n_s, center, factor, added, 1);
        else
            tg_frozen_row(from, to, p->n_s, center, factor, added, 0);
    }
}

typedef struct {
    int32_t n_o, n_g;
    int32_t x_by_o, y_by_o;
    int32_t has_relu;
} tg_frozen_norm_flat_args;

/* Where s is 1, as behind a Gemm: the vector runs along the channels. */
TG_KERNEL void tg_frozen_norm_flat(TG_MEM const float *x, TG_MEM const float *scale, TG_MEM const float *bias,
                                   TG_MEM const float *mean, TG_MEM const float *spread, TG_MEM float *y,
                                   TG_ARG const tg_frozen_norm_flat_args *p, int core_id, int core_count)
{
    int g, stop;
    tg_share(p->n_g, core_id, core_count, &g, &stop);
    for (int o = 0; o < p->n_o; o++) {
        TG_MEM const float *from = x + o * p->x_by_o + g;
        TG_MEM float *to = y + o * p->y_by_o + g;
        if (p->has_relu)
            tg_frozen_channels(from, scale + g, bias + g, mean + g, spread + g, to, stop - g, 1);
        else
            tg_frozen_channels(from, scale + g, bias + g, mean + g, spread + g, to, stop - g, 0);
    }
}

typedef struct {
    float sum, dot;
} tg_frozen_sums;

/* A row of what is wanted, element by element, where not all is: x, dx and either sum may be absent. */
TG_INLINE void tg_frozen_row_any(TG_MEM const float *dy, int dy_by, TG_MEM const float *y, int y_by,
                                 TG_MEM const float *x, int x_by, TG_MEM float *dx, int dx_by, int n, float center,
                                 float factor, tg_frozen_sums *sums, int has_relu)
{
    for (int i = 0; i < n; i++) {
        const float d = tg_relu_read(dy + i * dy_by, y + i * y_by, has_relu);
        sums->sum = sums->sum + d;
        if (x != TG_NULL)
            sums->dot = TG_FMA(d, x[i * x_by] - center, sums->dot);
        if (dx != TG_NULL)
            dx[i * dx_by] = factor * d;
    }
}

TG_INLINE tg_frozen_sums tg_frozen_begin(TG_MEM const float *sum, TG_MEM const float *dot, int is_first)
{
    tg_frozen_sums sums = {0.0f, 0.0f};
    if (!is_first && sum != TG_NULL)
        sums.sum = *sum;
    if (!is_first && dot != TG_NULL)
        sums.dot = *dot;
    return sums;
}

TG_INLINE void tg_frozen_end(TG_MEM float *sum, TG_MEM float *dot, tg_frozen_sums sums, int is_last, float inverse)
{
    if (sum != TG_NULL)
        *sum = sums.sum;
    if (dot != TG_NULL)
        *dot = is_last ? sums.dot * inverse : sums.dot;
}

typedef struct {
    int32_t n_o, n_g, n_s;
    int32_t dy_by_o, dy_by_g, y_by_o, y_by_g, x_by_o, x_by_g, dx_by_o, dx_by_g, sum_by_o, dot_by_o;
    int32_t first, last;
} tg_frozen_norm_grad_args;

/* dx [o, g, s], and over s the sums [o, g] of d, and of d * (x - mean) times `spread`. x and mean serve `dot` alone, scale
 * serves dx alone. */
TG_KERNEL void tg_frozen_norm_grad(TG_MEM const float *dy, TG_MEM const float *y, TG_MEM const float *x,
                                   TG_MEM const float *scale, TG_MEM const float *mean, TG_MEM const float *spread,
                                   TG_MEM float *dx, TG_MEM float *sum, TG_MEM float *dot,
                                   TG_ARG const tg_frozen_norm_grad_args *p, int core_id, int core_count)
{
    int at, stop;
    tg_share(p->n_o * p->n_g, core_id, core_count, &at, &stop);
    for (int rows; at < stop; at += rows) {
        const int o = at < p->n_g ? 0 : at / p->n_g, g = at - o * p->n_g;
        TG_MEM const float *in = dy + o * p->dy_by_o + g * p->dy_by_g;
        TG_MEM const float *output = y == TG_NULL ? in : y + o * p->y_by_o + g * p->y_by_g;
        TG_MEM const float *from = dot == TG_NULL ? x : x + o * p->x_by_o + g * p->x_by_g;
        TG_MEM float *to = dx == TG_NULL ? dx : dx + o * p->dx_by_o + g * p->dx_by_g;
        TG_MEM float *sums = sum == TG_NULL ? sum : sum + o * p->sum_by_o + g;
        TG_MEM float *dots = dot == TG_NULL ? dot : dot + o * p->dot_by_o + g;
        const int is_full = dx != TG_NULL && sum != TG_NULL && dot != TG_NULL;
        rows = is_full ? tg_min(stop - at, p->n_g - g) : 1;
        if (is_full && y != TG_NULL) {
            tg_frozen_rows_grad(in, p->dy_by_g, output, p->y_by_g, from, p->x_by_g, scale + g, mean + g, spread + g, to,
                                p->dx_by_g, sums, dots, rows, p->n_s, p->first, p->last, 1);
        } else if (is_full) {
            tg_frozen_rows_grad(in, p->dy_by_g, in, p->dy_by_g, from, p->x_by_g, scale + g, mean + g, spread + g, to,
                                p->dx_by_g, sums, dots, rows, p->n_s, p->first, p->last, 0);
        } else if (sum != TG_NULL || dot != TG_NULL) {
            const float factor = dx == TG_NULL ? 0.0f : scale[g] * spread[g], center = dot == TG_NULL ? 0.0f : mean[g];
            tg_frozen_sums found = tg_frozen_begin(sums, dots, p->first);
            tg_frozen_row_any(in, 1, output, 1, from, 1, to, 1, p->n_s, center, factor, &found, y != TG_NULL);
            tg_frozen_end(sums, dots, found, p->last, spread[g]);
        } else if (y != TG_NULL) {
            tg_frozen_row_dx(in, output, to, p->n_s, scale[g] * spread[g], 1);
        } else {
            tg_frozen_row_dx(in, in, to, p->n_s, scale[g] * spread[g], 0);
        }
    }
}

typedef struct {
    int32_t n_o, n_g;
    int32_t dy_by_o, y_by_o, x_by_o, dx_by_o;
    int32_t first, last;
} tg_frozen_norm_flat_grad_args;

/* The same where s is 1: the sums [g] are over o. */
TG_KERNEL void tg_frozen_norm_flat_grad(TG_MEM const float *dy, TG_MEM const float *y, TG_MEM const float *x,
                                        TG_MEM const float *scale, TG_MEM const float *mean,
                                        TG_MEM const float *spread, TG_MEM float *dx, TG_MEM float *sum,
                                        TG_MEM float *dot, TG_ARG const tg_frozen_norm_flat_grad_args *p, int core_id,
                                        int core_count)
{
    int g, stop;
    tg_share(p->n_g, core_id, core_count, &g, &stop);
    if (dx != TG_NULL && sum != TG_NULL && dot != TG_NULL) {
        if (y != TG_NULL)
            tg_frozen_channels_grad(dy + g, p->dy_by_o, y + g, p->y_by_o, x + g, p->x_by_o, scale + g, mean + g,
                                    spread + g, dx + g, p->dx_by_o, sum + g, dot + g, stop - g, p->n_o, p->first,
                                    p->last, 1);
        else
            tg_frozen_channels_grad(dy + g, p->dy_by_o, dy + g, p->dy_by_o, x + g, p->x_by_o, scale + g, mean + g,
                                    spread + g, dx + g, p->dx_by_o, sum + g, dot + g, stop - g, p->n_o, p->first,
                                    p->last, 0);
        return;
    }
    for (; g < stop; g++) {
        TG_MEM const float *output = y == TG_NULL ? dy + g : y + g, *from = dot == TG_NULL ? x : x + g;
        TG_MEM float *to = dx == TG_NULL ? dx : dx + g;
        TG_MEM float *sums = sum == TG_NULL ? sum : sum + g, *dots = dot == TG_NULL ? dot : dot + g;
        const float factor = dx == TG_NULL ? 0.0f : scale[g] * spread[g], center = dot == TG_NULL ? 0.0f : mean[g];
        tg_frozen_sums found = tg_frozen_begin(sums, dots, p->first);
        tg_frozen_row_any(dy + g, p->dy_by_o, output, y == TG_NULL ? p->dy_by_o : p->y_by_o, from, p->x_by_o, to,
                          p->dx_by_o, p->n_o, center, factor, &found, y != TG_NULL);
        tg_frozen_end(sums, dots, found, p->last, spread[g]);
    }
}

TG_KERNEL void tg_frozen_norm_parameters(TG_MEM const float *sum, TG_MEM const float *dot, TG_MEM float *dscale,
                                         TG_MEM float *dbias, TG_ARG const tg_normalize_parameters_args *p, int core_id,
                                         int core_count)
{
    tg_normalize_parameters(sum, dot, dscale, dbias, p, core_id, core_count);
}
