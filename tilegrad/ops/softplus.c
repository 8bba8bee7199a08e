/* Softplus: y = log(1 + e^x). SoftplusGrad: dx = dy (1 - e^-y), which is dy sigmoid(x). */
#include "tg_elementwise.h"
#include "tg_math.h"

TG_KERNEL void tg_softplus_map(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                               int core_count)
{
    TG_MAP(y[i] = tg_softplus(x[i]);)
}

TG_KERNEL void tg_softplus_grad(TG_MEM const float *dy, TG_MEM const float *y, TG_MEM float *dx,
                                TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(dx[i] = dy[i] * -tg_expm1(-y[i]);)
}
