/* Copy: y = x, by element size. */
#include "tg_elementwise.h"

TG_KERNEL void tg_copy_b1(TG_MEM const tg_b1 *x, TG_MEM tg_b1 *y, TG_ARG const tg_map_args *p, int core_id,
                          int core_count)
{
    TG_STREAM1(tg_b1, y, x, v)
}

TG_KERNEL void tg_copy_b2(TG_MEM const tg_b2 *x, TG_MEM tg_b2 *y, TG_ARG const tg_map_args *p, int core_id,
                          int core_count)
{
    TG_STREAM1(tg_b2, y, x, v)
}

TG_KERNEL void tg_copy_b4(TG_MEM const tg_b4 *x, TG_MEM tg_b4 *y, TG_ARG const tg_map_args *p, int core_id,
                          int core_count)
{
    TG_STREAM1(tg_b4, y, x, v)
}

TG_KERNEL void tg_copy_b8(TG_MEM const tg_b8 *x, TG_MEM tg_b8 *y, TG_ARG const tg_map_args *p, int core_id,
                          int core_count)
{
    TG_STREAM1(tg_b8, y, x, v)
}
