/* SGDGroup: SGD without decay on two or three tensors of one size. */
#include "tg_elementwise.h"

typedef struct {
    int32_t n_i;
} tg_sgd_group_args;

TG_KERNEL void tg_sgd_group(TG_MEM const float *w0, TG_MEM const float *g0, TG_MEM const float *w1,
                            TG_MEM const float *g1, TG_MEM const float *w2, TG_MEM const float *g2,
                            TG_MEM const float *lr, TG_MEM float *y0, TG_MEM float *y1, TG_MEM float *y2,
                            TG_ARG const tg_sgd_group_args *p, int core_id, int core_count)
{
    const float step = -*lr;
    if (w2 == TG_NULL) {
        TG_MAP(y0[i] = TG_FMA(step, g0[i], w0[i]); y1[i] = TG_FMA(step, g1[i], w1[i]);)
    } else {
        TG_MAP(y0[i] = TG_FMA(step, g0[i], w0[i]); y1[i] = TG_FMA(step, g1[i], w1[i]);
               y2[i] = TG_FMA(step, g2[i], w2[i]);)
    }
}
