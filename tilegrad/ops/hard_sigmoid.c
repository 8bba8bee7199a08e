/* HardSigmoid: y = max(0, min(1, alpha x + beta)). HardSigmoidGrad: dx = 0 < y < 1 ? alpha dy : 0. */
#include "tg_elementwise.h"

TG_INLINE float tg_clamp_unit(float x)
{
    x = x < 0.0f ? 0.0f : x;
    return x > 1.0f ? 1.0f : x;
}

TG_KERNEL void tg_hard_sigmoid(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                               int core_count)
{
    const float alpha = p->alpha, beta = p->beta;
    TG_MAP(y[i] = tg_clamp_unit(TG_FMA(alpha, x[i], beta));)
}

TG_KERNEL void tg_hard_sigmoid_grad(TG_MEM const float *dy, TG_MEM const float *y, TG_MEM float *dx,
                                    TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    const float alpha = p->alpha;
    TG_MAP(dx[i] = y[i] > 0.0f && y[i] < 1.0f ? alpha * dy[i] : 0.0f;)
}
