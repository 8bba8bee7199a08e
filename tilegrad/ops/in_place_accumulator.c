/* InPlaceAccumulatorV2: updated = overwrite ? gradient : buffer + gradient, one rounded add. */
#include "tg_elementwise.h"

TG_KERNEL void tg_accumulate(TG_MEM const float *buffer, TG_MEM const float *gradient, TG_MEM const uint8_t *overwrite,
                             TG_MEM float *updated, TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    if (overwrite != TG_NULL && *overwrite) {
        TG_STREAM(updated[i] = gradient[i];)
    } else {
        TG_STREAM(updated[i] = buffer[i] + gradient[i];)
    }
}

TG_KERNEL void tg_accumulator_flag(TG_MEM uint8_t *flag, TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_STREAM(flag[i] = 1;)
}
