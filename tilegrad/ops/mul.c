/* Mul: y = a * b in float with one rounding; integers wrap around. */
#include "tg_element.h"
#include "tg_elementwise.h"

TG_KERNEL void tg_mul(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y, TG_ARG const tg_map_args *p,
                    int core_id, int core_count)
{
    TG_STREAM2(float, y, a, b, u * v)
}

TG_KERNEL void tg_mul_broadcast(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y,
                              TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST(y[iy] = a[ia] * b[ib];)
}

TG_KERNEL void tg_mul_integer(TG_MEM const uint8_t *a, TG_MEM const uint8_t *b, TG_MEM uint8_t *y,
                            TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST_COMPACT(tg_store_integer(y, p->type, iy, (uint64_t)TG_INTEGER_A * (uint64_t)TG_INTEGER_B);)
}
