/* Relu: y = x > 0 ? x : 0 (a NaN passes). ReluGrad: dx = y > 0 ? dy : 0. */
#include "tg_elementwise.h"

TG_KERNEL void tg_relu(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_STREAM(y[i] = x[i] <= 0.0f ? 0.0f : x[i];)
}

TG_KERNEL void tg_relu_grad(TG_MEM const float *dy, TG_MEM const float *y, TG_MEM float *dx,
                            TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_STREAM(dx[i] = y[i] > 0.0f ? dy[i] : 0.0f;)
}
