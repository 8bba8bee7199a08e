/* Sigmoid: y = 1 / (1 + e^-x). SigmoidGrad: dx = dy (1 - y) y. */
#include "tg_elementwise.h"
#include "tg_math.h"

TG_KERNEL void tg_sigmoid_map(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                              int core_count)
{
    TG_MAP(y[i] = tg_sigmoid(x[i]);)
}

TG_KERNEL void tg_sigmoid_grad(TG_MEM const float *dy, TG_MEM const float *y, TG_MEM float *dx,
                               TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(dx[i] = dy[i] * (1.0f - y[i]) * y[i];)
}
