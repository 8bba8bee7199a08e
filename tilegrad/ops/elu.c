/* Elu: y = x > 0 ? x : alpha (e^x - 1). EluGrad, for alpha >= 0: dx = y > 0 ? dy : dy (y + alpha). */
#include "tg_elementwise.h"
#include "tg_math.h"

TG_KERNEL void tg_elu(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                      int core_count)
{
    const float alpha = p->alpha;
    TG_MAP(y[i] = x[i] > 0.0f ? x[i] : alpha * tg_expm1(x[i]);)
}

TG_KERNEL void tg_elu_grad(TG_MEM const float *dy, TG_MEM const float *y, TG_MEM float *dx,
                           TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    const float alpha = p->alpha;
    TG_MAP(dx[i] = y[i] > 0.0f ? dy[i] : dy[i] * (y[i] + alpha);)
}
