/* InPlaceAccumulatorV2: updated = overwrite ? gradient : buffer + gradient, one rounded add. */
#include "tg_elementwise.h"

TG_KERNEL void tg_accumulate(TG_MEM const float *buffer, TG_MEM const float *gradient, TG_MEM const uint8_t *overwrite,
                             TG_MEM float *updated, TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    if (overwrite != TG_NULL && *overwrite) {
        TG_STREAM1(float, updated, gradient, v)
    } else {
        TG_STREAM2(float, updated, buffer, gradient, u + v)
    }
}

TG_KERNEL void tg_accumulator_flag(TG_MEM uint8_t *flag, TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(flag[i] = 1;)
}
