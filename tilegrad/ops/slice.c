/* Slice: a strided copy. SliceGrad: every element takes the gradient of where it went, or 0. */
#include "tg_copy.h"
#include "tg_pad.h"

TG_KERNEL void tg_slice_b1(TG_MEM const tg_b1 *restrict x, TG_MEM tg_b1 *restrict y,
                           TG_ARG const tg_copy_args *p, int core_id, int core_count)
{
    TG_COPY(tg_b1)
}

TG_KERNEL void tg_slice_b2(TG_MEM const tg_b2 *restrict x, TG_MEM tg_b2 *restrict y,
                           TG_ARG const tg_copy_args *p, int core_id, int core_count)
{
    TG_COPY(tg_b2)
}

TG_KERNEL void tg_slice_b4(TG_MEM const tg_b4 *restrict x, TG_MEM tg_b4 *restrict y,
                           TG_ARG const tg_copy_args *p, int core_id, int core_count)
{
    TG_COPY(tg_b4)
}

TG_KERNEL void tg_slice_b8(TG_MEM const tg_b8 *restrict x, TG_MEM tg_b8 *restrict y,
                           TG_ARG const tg_copy_args *p, int core_id, int core_count)
{
    TG_COPY(tg_b8)
}

TG_KERNEL void tg_slice_grad(TG_MEM const tg_b4 *restrict x, TG_MEM tg_b4 *restrict y, TG_ARG const tg_pad_args *p,
                             int core_id, int core_count)
{
    TG_PAD(tg_b4, p->value_low)
}
