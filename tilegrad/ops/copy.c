/* Copy: y = x, by element size; floats are copied as floats, so that no object is seen under two types. */
#include "tg_elementwise.h"

TG_KERNEL void tg_copy_f32(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_map_args *p, int core_id,
                           int core_count)
{
    TG_MAP(y[i] = x[i];)
}

TG_KERNEL void tg_copy_b1(TG_MEM const uint8_t *x, TG_MEM uint8_t *y, TG_ARG const tg_map_args *p, int core_id,
                          int core_count)
{
    TG_MAP(y[i] = x[i];)
}

TG_KERNEL void tg_copy_b2(TG_MEM const uint16_t *x, TG_MEM uint16_t *y, TG_ARG const tg_map_args *p, int core_id,
                          int core_count)
{
    TG_MAP(y[i] = x[i];)
}

TG_KERNEL void tg_copy_b4(TG_MEM const uint32_t *x, TG_MEM uint32_t *y, TG_ARG const tg_map_args *p, int core_id,
                          int core_count)
{
    TG_MAP(y[i] = x[i];)
}

TG_KERNEL void tg_copy_b8(TG_MEM const uint64_t *x, TG_MEM uint64_t *y, TG_ARG const tg_map_args *p, int core_id,
                          int core_count)
{
    TG_MAP(y[i] = x[i];)
}
