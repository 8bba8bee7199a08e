/* The gradient of a BatchNormalization with constant statistics, of x [o, g, s] per channel g, where gradients a and b of
 * two branches meet behind a Relu:
 *
 *   d  = y > 0 ? a + b : 0, where y is the Relu's output; `kept` is d, if others read it
 *   dx = (scale * spread) * d, where `spread` is the inverse deviation
 *
 * One pass over a, b, y and x, which also sums d and fma(d, x - mean, dot), as ops/frozen_batch_normalization.c does. */
#include "tg_normalize.h"
#include "tg_relu.h"

typedef struct {
    int32_t n_o, n_g, n_s;
    int32_t a_by_o, a_by_g, b_by_o, b_by_g, y_by_o, y_by_g, x_by_o, x_by_g;
    int32_t dx_by_o, dx_by_g, kept_by_o, kept_by_g, sum_by_o, dot_by_o;
    int32_t first, last;
} tg_frozen_add_relu_grad_args;

typedef struct {
    float sum, dot;
} tg_frozen_add_sums;

/* A row of n elements. Loads come before stores, since dx and `kept` may lie on any operand. `keeps` is to be known at
 * compile time; without it, `kept` is not written. */
TG_TEMPLATE tg_frozen_add_sums tg_frozen_add_row(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *y,
                                                 TG_MEM const float *x, TG_MEM float *dx, TG_MEM float *kept, int n,
                                                 float center, float factor, tg_frozen_add_sums sums, int keeps)
{
#define TG_ADD_LOAD(i) const float d##i = tg_relu_grad_of(a[i] + b[i], y[i]), x##i = x[i] - center;
#define TG_ADD_SUM(i)                                                                                                  \
    sums.sum = sums.sum + d##i;                                                                                        \
    sums.dot = TG_FMA(d##i, x##i, sums.dot);                                                                           \
    const float dx##i = factor * d##i;
#define TG_ADD_STORE(i)                                                                                                \
    dx[i] = dx##i;                                                                                                     \
    if (keeps)                                                                                                         \
        kept[i] = d##i;
    for (; n >= 4; n -= 4, a += 4, b += 4, y += 4, x += 4, dx += 4, kept += keeps ? 4 : 0) {
        TG_ROW4(TG_ADD_LOAD)
        TG_ROW4(TG_ADD_SUM)
        TG_ROW4(TG_ADD_STORE)
    }
    for (; n > 0; n--, a++, b++, y++, x++, dx++, kept += keeps ? 1 : 0) {
        TG_ADD_LOAD(0)
        TG_ADD_SUM(0)
        TG_ADD_STORE(0)
    }
    return sums;
}

/* dx [o, g, s], and over s the sums [o, g] of d, and of d * (x - mean) times `spread`. */
TG_KERNEL void tg_frozen_add_relu_grad(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *y,
                                       TG_MEM const float *x, TG_MEM const float *scale, TG_MEM const float *mean,
                                       TG_MEM const float *spread, TG_MEM float *dx, TG_MEM float *sum,
                                       TG_MEM float *dot, TG_MEM float *kept,
                                       TG_ARG const tg_frozen_add_relu_grad_args *p, int core_id, int core_count)
{
    int at, stop;
    tg_share(p->n_o * p->n_g, core_id, core_count, &at, &stop);
    for (; at < stop; at++) {
        const int o = at < p->n_g ? 0 : at / p->n_g, g = at - o * p->n_g;
        TG_MEM const float *of_a = a + o * p->a_by_o + g * p->a_by_g, *of_b = b + o * p->b_by_o + g * p->b_by_g;
        TG_MEM const float *of_y = y + o * p->y_by_o + g * p->y_by_g, *of_x = x + o * p->x_by_o + g * p->x_by_g;
        TG_MEM float *to = dx + o * p->dx_by_o + g * p->dx_by_g;
        TG_MEM float *sums = sum + o * p->sum_by_o + g, *dots = dot + o * p->dot_by_o + g;
        const float inverse = spread[g], factor = scale[g] * inverse, center = mean[g];
        tg_frozen_add_sums found = {0.0f, 0.0f};
        if (!p->first) {
            found.sum = *sums;
            found.dot = *dots;
        }
        if (kept != TG_NULL)
            found = tg_frozen_add_row(of_a, of_b, of_y, of_x, to, kept + o * p->kept_by_o + g * p->kept_by_g, p->n_s,
                                      center, factor, found, 1);
        else
            found = tg_frozen_add_row(of_a, of_b, of_y, of_x, to, to, p->n_s, center, factor, found, 0);
        *sums = found.sum;
        *dots = p->last ? found.dot * inverse : found.dot;
    }
}

TG_KERNEL void tg_frozen_add_relu_grad_parameters(TG_MEM const float *sum, TG_MEM const float *dot,
                                                  TG_MEM float *dscale, TG_MEM float *dbias,
                                                  TG_ARG const tg_normalize_parameters_args *p, int core_id,
                                                  int core_count)
{
    tg_normalize_parameters(sum, dot, dscale, dbias, p, core_id, core_count);
}
