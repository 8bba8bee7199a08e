/* OuterAccumulate: y = overwrite ? g : w + g with g = fma(u, v, 0): Gemm with one k, then InPlaceAccumulatorV2, without
 * the matrix in between. */
#include "tg_outer.h"

TG_KERNEL void tg_outer_accumulate(TG_MEM const float *u, TG_MEM const float *v, TG_MEM const float *w,
                                   TG_MEM const uint8_t *overwrite, TG_MEM float *y, TG_ARG const tg_outer_args *p,
                                   int core_id, int core_count)
{
    if (overwrite != TG_NULL && *overwrite) {
        TG_OUTER(g)
    } else {
        TG_OUTER(old + g)
    }
}
