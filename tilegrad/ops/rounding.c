/* Floor, Ceil, Round (half to even), Sign. Adding and taking away 2^23 rounds to an integer, half to even. */
#include "tg_elementwise.h"
#include "tg_math.h"

TG_INLINE float tg_round_of(float x)
{
    float a = tg_abs(x);
    return a < 8388608.0f ? tg_copysign((a + 8388608.0f) - 8388608.0f, x) : x;
}

TG_INLINE float tg_floor_of(float x)
{
    float nearest = tg_round_of(x);
    return nearest > x ? nearest - 1.0f : nearest;
}

TG_KERNEL void tg_floor(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                        int core_count)
{
    TG_MAP(y[i] = tg_floor_of(x[i]);)
}

TG_KERNEL void tg_ceil(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(y[i] = -tg_floor_of(-x[i]);)
}

TG_KERNEL void tg_round(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                        int core_count)
{
    TG_MAP(y[i] = tg_round_of(x[i]);)
}

TG_KERNEL void tg_sign(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(float above = x[i] > 0.0f ? 1.0f : x[i]; y[i] = x[i] < 0.0f ? -1.0f : above;)
}
