/* Comparisons: y = 1 where they hold, else 0; nothing holds of a NaN. */
#include "tg_element.h"
#include "tg_elementwise.h"

TG_KERNEL void tg_equal(TG_MEM const float *a, TG_MEM const float *b, TG_MEM uint8_t *y,
                        TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST_COMPACT(y[iy] = a[ia] == b[ib];)
}

TG_KERNEL void tg_equal_integer(TG_MEM const uint8_t *a, TG_MEM const uint8_t *b, TG_MEM uint8_t *y,
                                TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST_COMPACT(y[iy] = tg_compare_integer(TG_INTEGER_A, TG_INTEGER_B, p->type) == 0;)
}

TG_KERNEL void tg_less(TG_MEM const float *a, TG_MEM const float *b, TG_MEM uint8_t *y,
                       TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST_COMPACT(y[iy] = a[ia] < b[ib];)
}

TG_KERNEL void tg_less_integer(TG_MEM const uint8_t *a, TG_MEM const uint8_t *b, TG_MEM uint8_t *y,
                               TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST_COMPACT(y[iy] = tg_compare_integer(TG_INTEGER_A, TG_INTEGER_B, p->type) < 0;)
}

TG_KERNEL void tg_less_or_equal(TG_MEM const float *a, TG_MEM const float *b, TG_MEM uint8_t *y,
                                TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST_COMPACT(y[iy] = a[ia] <= b[ib];)
}

TG_KERNEL void tg_less_or_equal_integer(TG_MEM const uint8_t *a, TG_MEM const uint8_t *b, TG_MEM uint8_t *y,
                                        TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST_COMPACT(y[iy] = tg_compare_integer(TG_INTEGER_A, TG_INTEGER_B, p->type) <= 0;)
}
