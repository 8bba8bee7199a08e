/* Cast: floats truncate towards zero and saturate, NaN becomes 0; integers keep their low bits; a bool is "not 0". */
#include "tg_element.h"

typedef struct {
    int32_t n_i, from_type, to_type;
} tg_cast_args;

TG_INLINE void tg_cast_of(TG_MEM const uint8_t *x, TG_MEM uint8_t *y, int i, int from_type, int to_type)
{
    if (to_type == TG_F32)
        ((TG_MEM float *)y)[i] = tg_load_float(x, from_type, i);
    else if (to_type == TG_BOOL)
        y[i] = tg_load_float(x, from_type, i) != 0.0f;
    else if (from_type == TG_F32)
        tg_store_float(y, to_type, i, ((TG_MEM const float *)x)[i]);
    else
        tg_store_integer(y, to_type, i, (uint64_t)tg_load_integer(x, from_type, i));
}

TG_KERNEL void tg_cast(TG_MEM const uint8_t *x, TG_MEM uint8_t *y, TG_ARG const tg_cast_args *p, int core_id,
                       int core_count)
{
    const int from_type = p->from_type, to_type = p->to_type;
    TG_MAP(tg_cast_of(x, y, i, from_type, to_type);)
}
