/* Where: y = a ? b : c, by element size. */
#include "tg_elementwise.h"

TG_KERNEL void tg_where_b1(TG_MEM const uint8_t *a, TG_MEM const tg_b1 *b, TG_MEM const tg_b1 *c, TG_MEM tg_b1 *y,
                          TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST_COMPACT(y[iy] = a[ia] ? b[ib] : c[ic];)
}

TG_KERNEL void tg_where_b2(TG_MEM const uint8_t *a, TG_MEM const tg_b2 *b, TG_MEM const tg_b2 *c, TG_MEM tg_b2 *y,
                          TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST_COMPACT(y[iy] = a[ia] ? b[ib] : c[ic];)
}

TG_KERNEL void tg_where_b4(TG_MEM const uint8_t *a, TG_MEM const tg_b4 *b, TG_MEM const tg_b4 *c, TG_MEM tg_b4 *y,
                          TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST(y[iy] = a[ia] ? b[ib] : c[ic];)
}

TG_KERNEL void tg_where_b8(TG_MEM const uint8_t *a, TG_MEM const tg_b8 *b, TG_MEM const tg_b8 *c, TG_MEM tg_b8 *y,
                          TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST_COMPACT(y[iy] = a[ia] ? b[ib] : c[ic];)
}
