/* HardSwish: y = x max(0, min(1, x / 6 + 1/2)). HardSwishGrad: dx = dy times 0, x / 3 + 1/2 or 1;
 * 0 and 1 where x is -3 and 3, as PyTorch has it: a value that is kept in two bytes is that often. */
#include "tg_elementwise.h"

TG_INLINE float tg_hard_gate(float x)
{
    float gate = TG_FMA(x, 0.166666667f, 0.5f);
    gate = gate < 0.0f ? 0.0f : gate;
    return gate > 1.0f ? 1.0f : gate;
}

TG_INLINE float tg_hard_swish_slope(float x)
{
    float slope = x >= 3.0f ? 1.0f : TG_FMA(x, 0.333333333f, 0.5f);
    return x <= -3.0f ? 0.0f : slope;
}

TG_KERNEL void tg_hard_swish(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                             int core_count)
{
    TG_MAP(y[i] = x[i] * tg_hard_gate(x[i]);)
}

TG_KERNEL void tg_hard_swish_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM float *dx,
                                  TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(dx[i] = dy[i] * tg_hard_swish_slope(x[i]);)
}
