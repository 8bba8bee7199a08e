/* Momentum: g' = fma(weight_decay, w, g), or g without decay; v' = fma(momentum, v, g');
 * w' = fma(-lr, d, w) with d = v', or with Nesterov d = fma(momentum, v', g'). */
#include "tg_elementwise.h"

typedef struct {
    int32_t n_i, nesterov;
    float momentum, weight_decay;
} tg_momentum_args;

TG_KERNEL void tg_momentum(TG_MEM const float *w, TG_MEM const float *g, TG_MEM const float *v, TG_MEM const float *lr,
                           TG_MEM float *w_out, TG_MEM float *v_out, TG_ARG const tg_momentum_args *p, int core_id,
                           int core_count)
{
    const float step = -*lr, momentum = p->momentum, decay = p->weight_decay;
    const int has_decay = decay != 0.0f, is_nesterov = p->nesterov;
    TG_MAP(float weight = w[i]; float slope = has_decay ? TG_FMA(decay, weight, g[i]) : g[i];
           float velocity = TG_FMA(momentum, v[i], slope);
           float direction = is_nesterov ? TG_FMA(momentum, velocity, slope) : velocity; v_out[i] = velocity;
           w_out[i] = TG_FMA(step, direction, weight);)
}
