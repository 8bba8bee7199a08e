/* Store16: a float in two bytes, rounded to nearest even. Load16: the float that they are, exactly. */
#include "tg_elementwise.h"
#include "tg_half.h"

TG_KERNEL void tg_store_bf16(TG_MEM const float *x, TG_MEM tg_b2 *y, TG_ARG const tg_map_args *p, int core_id,
                             int core_count)
{
    TG_MAP(y[i] = tg_to_bf16(x[i]);)
}

TG_KERNEL void tg_store_fp16(TG_MEM const float *x, TG_MEM tg_b2 *y, TG_ARG const tg_map_args *p, int core_id,
                             int core_count)
{
    TG_MAP(y[i] = tg_to_fp16(x[i]);)
}

TG_KERNEL void tg_load_bf16(TG_MEM const tg_b2 *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                            int core_count)
{
    TG_MAP(y[i] = tg_from_bf16(x[i]);)
}

TG_KERNEL void tg_load_fp16(TG_MEM const tg_b2 *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                            int core_count)
{
    TG_MAP(y[i] = tg_from_fp16(x[i]);)
}
