/* Reciprocal: y = 1 / x. ReciprocalGrad: dx = -dy y^2. */
#include "tg_elementwise.h"

TG_KERNEL void tg_reciprocal(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                             int core_count)
{
    TG_MAP(y[i] = 1.0f / x[i];)
}

TG_KERNEL void tg_reciprocal_grad(TG_MEM const float *dy, TG_MEM const float *y, TG_MEM float *dx,
                                  TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(dx[i] = -dy[i] * (y[i] * y[i]);)
}
