/* Exp. */
#include "tg_elementwise.h"
#include "tg_math.h"

TG_KERNEL void tg_exp_map(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                          int core_count)
{
    TG_MAP(y[i] = tg_exp(x[i]);)
}
