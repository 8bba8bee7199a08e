/* Pow: y = a^b. PowGrad of (dy, x, e): dy e x^(e - 1). PowExponentGrad: dy x^e log(x), 0 where x is 0 and e is not
 * negative. Integer powers wrap around; a negative exponent truncates. */
#include "tg_element.h"
#include "tg_elementwise.h"
#include "tg_math.h"

/* One exponent for all: the usual squares and cubes get loops of their own. */
TG_KERNEL void tg_pow_scalar(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y, TG_ARG const tg_map_args *p,
                             int core_id, int core_count)
{
    const float exponent = *b;
    if (exponent == 2.0f) {
        TG_MAP(y[i] = a[i] * a[i];)
    } else if (exponent == 3.0f) {
        TG_MAP(y[i] = a[i] * a[i] * a[i];)
    } else {
        TG_MAP(y[i] = tg_pow(a[i], exponent);)
    }
}

TG_KERNEL void tg_pow_broadcast(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y,
                                TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST_COMPACT(y[iy] = tg_pow(a[ia], b[ib]);)
}

TG_INLINE uint64_t tg_pow_integer(int64_t base, int64_t exponent)
{
    if (exponent < 0)
        return base == 1 || base == -1 ? (exponent & 1 ? (uint64_t)base : 1u) : 0u;
    uint64_t square = (uint64_t)base, result = 1;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1)
            result *= square;
        square *= square;
    }
    return result;
}

/* `type` is the base's and the result's; `alpha` holds the code of the exponent's. */
TG_INLINE void tg_pow_mixed_of(TG_MEM const uint8_t *a, TG_MEM const uint8_t *b, TG_MEM uint8_t *y, int ia, int ib,
                               int iy, int type, int exponent_type)
{
    if (type == TG_F32)
        ((TG_MEM float *)y)[iy] = tg_pow(tg_load_float(a, type, ia), tg_load_float(b, exponent_type, ib));
    else if (exponent_type == TG_F32)
        tg_store_float(y, type, iy, tg_pow(tg_load_float(a, type, ia), tg_load_float(b, exponent_type, ib)));
    else
        tg_store_integer(y, type, iy,
                         tg_pow_integer(tg_load_integer(a, type, ia), tg_load_integer(b, exponent_type, ib)));
}

TG_KERNEL void tg_pow_mixed(TG_MEM const uint8_t *a, TG_MEM const uint8_t *b, TG_MEM uint8_t *y,
                            TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    const int type = p->type, exponent_type = (int)p->alpha;
    TG_BROADCAST_COMPACT(tg_pow_mixed_of(a, b, y, ia, ib, iy, type, exponent_type);)
}

TG_INLINE float tg_pow_slope(float x, float e) { return e == 0.0f ? 0.0f : e * tg_pow(x, e - 1.0f); }

TG_INLINE float tg_pow_exponent_slope(float x, float e)
{
    return x == 0.0f && e >= 0.0f ? 0.0f : tg_pow(x, e) * tg_log(x);
}

TG_KERNEL void tg_pow_grad(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                           TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST_COMPACT(y[iy] = a[ia] * tg_pow_slope(b[ib], c[ic]);)
}

TG_KERNEL void tg_pow_exponent_grad(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c,
                                    TG_MEM float *y, TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST_COMPACT(y[iy] = a[ia] * tg_pow_exponent_slope(b[ib], c[ic]);)
}
