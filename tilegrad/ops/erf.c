/* Erf. ErfGrad: dx = dy 2 / sqrt(pi) e^-(x^2). */
#include "tg_elementwise.h"
#include "tg_math.h"

TG_KERNEL void tg_erf_map(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                          int core_count)
{
    TG_MAP(y[i] = tg_erf(x[i]);)
}

TG_KERNEL void tg_erf_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM float *dx,
                           TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(dx[i] = dy[i] * (1.12837917f * tg_exp(-(x[i] * x[i])));)
}
