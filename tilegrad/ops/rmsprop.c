/* RMSprop: g' = fma(weight_decay, w, g), or g without decay; v' = fma(1 - alpha, g' g', alpha v);
 * w' = fma(-lr, g' / (sqrt(v') + epsilon), w). */
#include "tg_elementwise.h"
#include "tg_half.h"

typedef struct {
    int32_t n_i;
    float alpha, rest_of_alpha, epsilon, weight_decay;
} tg_rmsprop_args;

#define TG_RMSPROP(KEPT, KEEP)                                                                                         \
    const float step = -*lr, alpha = p->alpha, rest = p->rest_of_alpha, epsilon = p->epsilon, decay = p->weight_decay; \
    const int has_decay = decay != 0.0f;                                                                               \
    TG_MAP(float weight = w[i]; float slope = has_decay ? TG_FMA(decay, weight, g[i]) : g[i];                          \
           float square = TG_FMA(rest, slope * slope, alpha * KEPT(v[i])); v_out[i] = KEEP(square);                    \
           w_out[i] = TG_FMA(step, slope / (TG_SQRT(square) + epsilon), weight);)

TG_KERNEL void tg_rmsprop(TG_MEM const float *w, TG_MEM const float *g, TG_MEM const float *v, TG_MEM const float *lr,
                          TG_MEM float *w_out, TG_MEM float *v_out, TG_ARG const tg_rmsprop_args *p, int core_id,
                          int core_count)
{
    TG_RMSPROP(TG_KEPT_F32, TG_KEEP_F32);
}

TG_KERNEL
void tg_rmsprop_bf16(TG_MEM const float *w, TG_MEM const float *g, TG_MEM const tg_b2 *v, TG_MEM const float *lr,
                     TG_MEM float *w_out, TG_MEM tg_b2 *v_out, TG_ARG const tg_rmsprop_args *p, int core_id,
                     int core_count)
{
    TG_RMSPROP(TG_KEPT_BF16, TG_KEEP_BF16);
}

TG_KERNEL void tg_rmsprop_fp16(TG_MEM const float *w, TG_MEM const float *g, TG_MEM const tg_b2 *v,
                               TG_MEM const float *lr, TG_MEM float *w_out, TG_MEM tg_b2 *v_out,
                               TG_ARG const tg_rmsprop_args *p, int core_id, int core_count)
{
    TG_RMSPROP(TG_KEPT_FP16, TG_KEEP_FP16);
}
