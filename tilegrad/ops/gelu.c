/* Gelu: y = x cdf(x), cdf(x) = (1 + erf(x / sqrt(2))) / 2; its tanh form has cdf(x) = (1 + tanh(u)) / 2 with
 * u = sqrt(2 / pi) (x + 0.044715 x^3). GeluGrad: dx = dy (cdf(x) + x cdf'(x)). */
#include "tg_elementwise.h"
#include "tg_math.h"

TG_INLINE float tg_gelu_cdf(float x) { return 0.5f * (1.0f + tg_erf(0.707106781f * x)); }

TG_INLINE float tg_gelu_tanh_of(float x)
{
    return tg_tanh(0.797884561f * TG_FMA(0.044715f * (x * x), x, x));
}

TG_INLINE float tg_gelu_slope(float x)
{
    float density = 0.39894228f * tg_exp(-0.5f * (x * x));
    return TG_FMA(x, density, tg_gelu_cdf(x));
}

TG_INLINE float tg_gelu_tanh_slope(float x)
{
    float t = tg_gelu_tanh_of(x);
    float du = 0.797884561f * TG_FMA(0.134145f, x * x, 1.0f);
    return 0.5f * TG_FMA(x * TG_FMA(-t, t, 1.0f), du, 1.0f + t);
}

TG_KERNEL void tg_gelu(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(y[i] = x[i] * tg_gelu_cdf(x[i]);)
}

TG_KERNEL void tg_gelu_tanh(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                            int core_count)
{
    TG_MAP(y[i] = 0.5f * x[i] * (1.0f + tg_gelu_tanh_of(x[i]));)
}

TG_KERNEL void tg_gelu_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM float *dx,
                            TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(dx[i] = dy[i] * tg_gelu_slope(x[i]);)
}

TG_KERNEL void tg_gelu_grad_tanh(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM float *dx,
                                 TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(dx[i] = dy[i] * tg_gelu_tanh_slope(x[i]);)
}
