/* Transpose: a strided copy, neighbouring dimensions that stay together merged. */
#include "tg_copy.h"

TG_KERNEL void tg_transpose_b1(TG_MEM const tg_b1 *restrict x, TG_MEM tg_b1 *restrict y,
                               TG_ARG const tg_copy_args *p, int core_id, int core_count)
{
    TG_COPY(tg_b1)
}

TG_KERNEL void tg_transpose_b2(TG_MEM const tg_b2 *restrict x, TG_MEM tg_b2 *restrict y,
                               TG_ARG const tg_copy_args *p, int core_id, int core_count)
{
    TG_COPY(tg_b2)
}

TG_KERNEL void tg_transpose_b4(TG_MEM const tg_b4 *restrict x, TG_MEM tg_b4 *restrict y,
                               TG_ARG const tg_copy_args *p, int core_id, int core_count)
{
    TG_COPY(tg_b4)
}

TG_KERNEL void tg_transpose_b8(TG_MEM const tg_b8 *restrict x, TG_MEM tg_b8 *restrict y,
                               TG_ARG const tg_copy_args *p, int core_id, int core_count)
{
    TG_COPY(tg_b8)
}
