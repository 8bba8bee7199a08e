/* Abs: the sign bit cleared. AbsGrad: dx = dy sign(x), 0 at 0. */
#include "tg_elementwise.h"
#include "tg_math.h"

TG_KERNEL void tg_abs_map(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                          int core_count)
{
    TG_MAP(y[i] = tg_abs(x[i]);)
}

TG_KERNEL void tg_abs_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM float *dx,
                           TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(dx[i] = x[i] > 0.0f ? dy[i] : (x[i] < 0.0f ? -dy[i] : 0.0f);)
}
