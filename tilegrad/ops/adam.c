/* Adam, update t = step + 1: g' = fma(weight_decay, w, g) unless decoupled or without decay;
 * m' = fma(1 - beta1, g' - m, m); v' = fma(1 - beta2, g' g', beta2 v);
 * w' = fma(-lr / (1 - beta1^t), m' / (sqrt(v') / sqrt(1 - beta2^t) + epsilon), w); a decoupled decay first makes w
 * (1 - lr weight_decay) w. 1 - beta^t is -expm1(t log(beta)). */
#include "tg_elementwise.h"
#include "tg_half.h"
#include "tg_math.h"

typedef struct {
    int32_t n_i, decoupled;
    float beta1, rest_of_beta1, log_of_beta1, beta2, rest_of_beta2, log_of_beta2, epsilon, weight_decay;
} tg_adam_args;

#define TG_ADAM(KEPT, KEEP)                                                                                            \
    const float t = (float)(*step + 1);                                                                                \
    const float size = -(*lr / -tg_expm1(t * p->log_of_beta1));                                                        \
    const float correction = TG_SQRT(-tg_expm1(t * p->log_of_beta2));                                                  \
    const float rest1 = p->rest_of_beta1, rest2 = p->rest_of_beta2, beta2 = p->beta2, epsilon = p->epsilon;            \
    const float coupled = p->decoupled ? 0.0f : p->weight_decay;                                                       \
    const float kept = p->decoupled ? 1.0f - *lr * p->weight_decay : 1.0f;                                             \
    TG_MAP(float slope = coupled != 0.0f ? TG_FMA(coupled, w[i], g[i]) : g[i];                                         \
           float mean = TG_FMA(rest1, slope - KEPT(m[i]), KEPT(m[i]));                                                 \
           float square = TG_FMA(rest2, slope * slope, beta2 * KEPT(v[i]));                                            \
           float scale = TG_SQRT(square) / correction + epsilon; float weight = w[i] * kept; m_out[i] = KEEP(mean);    \
           v_out[i] = KEEP(square); w_out[i] = TG_FMA(size, mean / scale, weight);)

TG_KERNEL void tg_adam(TG_MEM const float *w, TG_MEM const float *g, TG_MEM const float *m, TG_MEM const float *v,
                       TG_MEM const float *lr, TG_MEM const int64_t *step, TG_MEM float *w_out, TG_MEM float *m_out,
                       TG_MEM float *v_out, TG_ARG const tg_adam_args *p, int core_id, int core_count)
{
    TG_ADAM(TG_KEPT_F32, TG_KEEP_F32);
}

TG_KERNEL
void tg_adam_bf16(TG_MEM const float *w, TG_MEM const float *g, TG_MEM const tg_b2 *m, TG_MEM const tg_b2 *v,
                  TG_MEM const float *lr, TG_MEM const int64_t *step, TG_MEM float *w_out, TG_MEM tg_b2 *m_out,
                  TG_MEM tg_b2 *v_out, TG_ARG const tg_adam_args *p, int core_id, int core_count)
{
    TG_ADAM(TG_KEPT_BF16, TG_KEEP_BF16);
}

TG_KERNEL
void tg_adam_fp16(TG_MEM const float *w, TG_MEM const float *g, TG_MEM const tg_b2 *m, TG_MEM const tg_b2 *v,
                  TG_MEM const float *lr, TG_MEM const int64_t *step, TG_MEM float *w_out, TG_MEM tg_b2 *m_out,
                  TG_MEM tg_b2 *v_out, TG_ARG const tg_adam_args *p, int core_id, int core_count)
{
    TG_ADAM(TG_KEPT_FP16, TG_KEEP_FP16);
}
