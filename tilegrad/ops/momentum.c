/* Momentum: g' = fma(weight_decay, w, g), or g without decay; v' = fma(momentum, v, g');
 * w' = fma(-lr, d, w) with d = v', or with Nesterov d = fma(momentum, v', g'). */
#include "tg_elementwise.h"
#include "tg_half.h"

typedef struct {
    int32_t n_i, nesterov;
    float momentum, weight_decay;
} tg_momentum_args;

#define TG_MOMENTUM(KEPT, KEEP)                                                                                        \
    const float step = -*lr, momentum = p->momentum, decay = p->weight_decay;                                          \
    const int has_decay = decay != 0.0f, is_nesterov = p->nesterov;                                                    \
    TG_MAP(float weight = w[i]; float slope = has_decay ? TG_FMA(decay, weight, g[i]) : g[i];                          \
           float velocity = TG_FMA(momentum, KEPT(v[i]), slope);                                                       \
           float direction = is_nesterov ? TG_FMA(momentum, velocity, slope) : velocity; v_out[i] = KEEP(velocity);    \
           w_out[i] = TG_FMA(step, direction, weight);)

TG_KERNEL void tg_momentum(TG_MEM const float *w, TG_MEM const float *g, TG_MEM const float *v, TG_MEM const float *lr,
                           TG_MEM float *w_out, TG_MEM float *v_out, TG_ARG const tg_momentum_args *p, int core_id,
                           int core_count)
{
    TG_MOMENTUM(TG_KEPT_F32, TG_KEEP_F32);
}

TG_KERNEL void tg_momentum_bf16(TG_MEM const float *w, TG_MEM const float *g, TG_MEM const tg_b2 *v,
                                TG_MEM const float *lr, TG_MEM float *w_out, TG_MEM tg_b2 *v_out,
                                TG_ARG const tg_momentum_args *p, int core_id, int core_count)
{
    TG_MOMENTUM(TG_KEPT_BF16, TG_KEEP_BF16);
}

TG_KERNEL void tg_momentum_fp16(TG_MEM const float *w, TG_MEM const float *g, TG_MEM const tg_b2 *v,
                                TG_MEM const float *lr, TG_MEM float *w_out, TG_MEM tg_b2 *v_out,
                                TG_ARG const tg_momentum_args *p, int core_id, int core_count)
{
    TG_MOMENTUM(TG_KEPT_FP16, TG_KEEP_FP16);
}
