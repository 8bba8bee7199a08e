/* Div: y = a / b, IEEE in float. Integers truncate; a division by zero gives 0, and the lowest over -1 wraps around. */
#include "tg_element.h"
#include "tg_elementwise.h"

TG_KERNEL void tg_div(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y, TG_ARG const tg_map_args *p,
                      int core_id, int core_count)
{
    TG_MAP(y[i] = a[i] / b[i];)
}

TG_KERNEL void tg_div_broadcast(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y,
                                TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST(y[iy] = a[ia] / b[ib];)
}

TG_INLINE uint64_t tg_divide_integer(int64_t a, int64_t b, int type)
{
    if (b == 0)
        return 0;
    if (type == TG_U64)
        return (uint64_t)a / (uint64_t)b;
    return b == -1 ? 0 - (uint64_t)a : (uint64_t)(a / b);
}

TG_KERNEL void tg_div_integer(TG_MEM const uint8_t *a, TG_MEM const uint8_t *b, TG_MEM uint8_t *y,
                              TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST_COMPACT(tg_store_integer(y, p->type, iy, tg_divide_integer(TG_INTEGER_A, TG_INTEGER_B, p->type));)
}
