/* FrozenReluGrad: d = dy where fma(x - mean, scale * spread, bias), as ops/frozen_batch_normalization.c has it, is above 0,
 * else 0. */
#include "tg_normalize.h"
#include "tg_relu.h"

typedef struct {
    int32_t n_o, n_g, n_s;
    int32_t dy_by_o, dy_by_g, x_by_o, x_by_g, d_by_o, d_by_g;
} tg_frozen_relu_grad_args;

TG_KERNEL void tg_frozen_relu_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *scale,
                                   TG_MEM const float *bias, TG_MEM const float *mean, TG_MEM const float *spread,
                                   TG_MEM float *d, TG_ARG const tg_frozen_relu_grad_args *p, int core_id,
                                   int core_count)
{
    int start, stop;
    tg_share(p->n_o * p->n_g, core_id, core_count, &start, &stop);
    for (int row = start; row < stop; row++) {
        const int o = row / p->n_g, g = row - o * p->n_g;
        TG_MEM const float *gradient = dy + o * p->dy_by_o + g * p->dy_by_g;
        TG_MEM const float *from = x + o * p->x_by_o + g * p->x_by_g;
        TG_MEM float *to = d + o * p->d_by_o + g * p->d_by_g;
        const float center = mean[g], factor = scale[g] * spread[g], added = bias[g];
        for (int i = 0; i < p->n_s; i++)
            to[i] = tg_relu_grad_of(gradient[i], TG_FMA(from[i] - center, factor, added));
    }
}
