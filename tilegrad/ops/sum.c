/* Sum and Mean, one operand after the other: y = (a + b) / alpha, where alpha is 1 but in a Mean's last addition. */
#include "tg_elementwise.h"

TG_KERNEL void tg_sum(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y, TG_ARG const tg_map_args *p,
                      int core_id, int core_count)
{
    const float count = p->alpha;
    TG_MAP(y[i] = (a[i] + b[i]) / count;)
}

TG_KERNEL void tg_sum_broadcast(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y,
                                TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    const float count = p->alpha;
    TG_BROADCAST(y[iy] = (a[ia] + b[ib]) / count;)
}

TG_KERNEL void tg_sum_of_one(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                             int core_count)
{
    TG_MAP(y[i] = x[i];)
}
