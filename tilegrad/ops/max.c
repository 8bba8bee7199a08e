/* Max: y = the larger of a and b; a NaN wins. MaxGrad of (dy, own, other): dy where own is the larger, half of it on
 * a tie, else 0. */
#include "tg_element.h"
#include "tg_elementwise.h"

TG_INLINE float tg_maximum_of(float a, float b) { return a > b || a != a ? a : b; }

TG_KERNEL void tg_maximum(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y, TG_ARG const tg_map_args *p,
                          int core_id, int core_count)
{
    TG_MAP(y[i] = tg_maximum_of(a[i], b[i]);)
}

TG_KERNEL void tg_maximum_broadcast(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y,
                                    TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST(y[iy] = tg_maximum_of(a[ia], b[ib]);)
}

TG_KERNEL void tg_maximum_integer(TG_MEM const uint8_t *a, TG_MEM const uint8_t *b, TG_MEM uint8_t *y,
                                  TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST_COMPACT(int64_t left = TG_INTEGER_A; int64_t right = TG_INTEGER_B;
                         int is_left = tg_compare_integer(left, right, p->type) > 0;
                         tg_store_integer(y, p->type, iy, (uint64_t)(is_left ? left : right));)
}

TG_KERNEL void tg_maximum_grad(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                               TG_ARG const tg_broadcast_args *p, int core_id, int core_count)
{
    TG_BROADCAST(float tie = b[ib] == c[ic] ? 0.5f * a[ia] : 0.0f; y[iy] = b[ib] > c[ic] ? a[ia] : tie;)
}
