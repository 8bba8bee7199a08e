/* PRelu: y = x < 0 ? slope x : x. PReluGrad: dx = x > 0 ? dy : slope dy. PReluSlopeGrad: x < 0 ? x dy : 0. */
#include "tg_elementwise.h"

TG_KERNEL void tg_p_relu(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y,
                         TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST(y[iy] = a[ia] < 0.0f ? b[ib] * a[ia] : a[ia];)
}

TG_KERNEL void tg_p_relu_grad(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                              TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST(y[iy] = c[ic] > 0.0f ? a[ia] : b[ib] * a[ia];)
}

TG_KERNEL void tg_p_relu_slope_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM float *dslope,
                                    TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(dslope[i] = x[i] < 0.0f ? x[i] * dy[i] : 0.0f;)
}
