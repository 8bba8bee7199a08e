/* SquaredRelu: y = max(x, 0)^2. SquaredReluGrad: dx = 2 max(x, 0) dy. */
#include "tg_elementwise.h"

TG_KERNEL void tg_squared_relu(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                               int core_count)
{
    TG_MAP(float r = x[i] <= 0.0f ? 0.0f : x[i]; y[i] = r * r;)
}

TG_KERNEL void tg_squared_relu_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM float *dx,
                                    TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(float r = x[i] <= 0.0f ? 0.0f : x[i]; dx[i] = (2.0f * r) * dy[i];)
}
