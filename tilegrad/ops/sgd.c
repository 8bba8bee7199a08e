/* SGD: w' = fma(-lr, g', w) with g' = fma(weight_decay, w, g), or g itself without decay. */
#include "tg_elementwise.h"

typedef struct {
    int32_t n_i;
    float weight_decay;
} tg_sgd_args;

TG_KERNEL void tg_sgd(TG_MEM const float *w, TG_MEM const float *g, TG_MEM const float *lr, TG_MEM float *w_out,
                      TG_ARG const tg_sgd_args *p, int core_id, int core_count)
{
    const float step = -*lr, decay = p->weight_decay;
    if (decay == 0.0f) {
        TG_STREAM2(float, w_out, g, w, TG_FMA(step, u, v))
    } else {
        TG_STREAM2(float, w_out, g, w, TG_FMA(step, TG_FMA(decay, v, u), v))
    }
}
