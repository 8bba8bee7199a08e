/* And, Or, Xor, Not of bools, bytes that are 0 or 1. */
#include "tg_elementwise.h"

TG_KERNEL void tg_and(TG_MEM const uint8_t *a, TG_MEM const uint8_t *b, TG_MEM uint8_t *y,
                      TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST_COMPACT(y[iy] = a[ia] & b[ib];)
}

TG_KERNEL void tg_or(TG_MEM const uint8_t *a, TG_MEM const uint8_t *b, TG_MEM uint8_t *y,
                     TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST_COMPACT(y[iy] = a[ia] | b[ib];)
}

TG_KERNEL void tg_xor(TG_MEM const uint8_t *a, TG_MEM const uint8_t *b, TG_MEM uint8_t *y,
                      TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST_COMPACT(y[iy] = a[ia] ^ b[ib];)
}

TG_KERNEL void tg_not(TG_MEM const uint8_t *x, TG_MEM uint8_t *y, TG_ARG const tg_map_args *p, int core_id,
                      int core_count)
{
    TG_MAP(y[i] = x[i] ^ 1;)
}
