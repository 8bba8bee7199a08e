/* Sqrt: IEEE. SqrtGrad: dx = dy / (2 y). */
#include "tg_elementwise.h"

TG_KERNEL void tg_sqrt(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                       int core_count)
{
    TG_MAP(y[i] = TG_SQRT(x[i]);)
}

TG_KERNEL void tg_sqrt_grad(TG_MEM const float *dy, TG_MEM const float *y, TG_MEM float *dx,
                            TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(dx[i] = dy[i] / (2.0f * y[i]);)
}
