/* Clip: y = min(max(x, low), high); a NaN passes. ClipGrad: dx = low < y < high ? dy : 0. */
#include "tg_element.h"
#include "tg_elementwise.h"

typedef struct {
    int32_t n_i, has_low, has_high;
    float low, high;
} tg_clip_args;

typedef struct {
    int32_t n_i, has_low, has_high, low, high, type;
} tg_clip_integer_args;

TG_KERNEL void tg_clip(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_clip_args *p, int core_id,
                       int core_count)
{
    const float low = p->has_low ? p->low : -TG_INFINITY, high = p->has_high ? p->high : TG_INFINITY;
    TG_MAP(float raised = x[i] < low ? low : x[i]; y[i] = raised > high ? high : raised;)
}

TG_KERNEL void tg_clip_grad(TG_MEM const float *dy, TG_MEM const float *y, TG_MEM float *dx,
                            TG_ARG const tg_clip_args *p, int core_id, int core_count)
{
    const float low = p->has_low ? p->low : -TG_INFINITY, high = p->has_high ? p->high : TG_INFINITY;
    TG_MAP(dx[i] = y[i] > low && y[i] < high ? dy[i] : 0.0f;)
}

TG_KERNEL void tg_clip_integer(TG_MEM const uint8_t *x, TG_MEM uint8_t *y, TG_ARG const tg_clip_integer_args *p,
                               int core_id, int core_count)
{
    const int type = p->type;
    TG_MAP(int64_t value = tg_load_integer(x, type, i);
           if (p->has_low && tg_compare_integer(value, p->low, type) < 0) value = p->low;
           if (p->has_high && tg_compare_integer(value, p->high, type) > 0) value = p->high;
           tg_store_integer(y, type, i, (uint64_t)value);)
}
