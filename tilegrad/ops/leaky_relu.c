/* LeakyRelu: y = x >= 0 ? x : alpha x. LeakyReluGrad: dx = y > 0 ? dy : alpha dy. */
#include "tg_elementwise.h"

TG_KERNEL void tg_leaky_relu(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                             int core_count)
{
    const float alpha = p->alpha;
    TG_MAP(y[i] = x[i] < 0.0f ? alpha * x[i] : x[i];)
}

TG_KERNEL void tg_leaky_relu_grad(TG_MEM const float *dy, TG_MEM const float *y, TG_MEM float *dx,
                                  TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    const float alpha = p->alpha;
    TG_MAP(dx[i] = y[i] > 0.0f ? dy[i] : alpha * dy[i];)
}
