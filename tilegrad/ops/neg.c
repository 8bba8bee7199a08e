/* Neg: y = -x, the sign bit flipped. */
#include "tg_elementwise.h"

TG_KERNEL void tg_neg(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id, int core_count)
{
    TG_MAP(y[i] = -x[i];)
}
