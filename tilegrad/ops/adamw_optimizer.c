/* AdamW as ONNX Runtime and Hugging Face have it, update t = step + 1: m' = fma(1 - beta1, g - m, m);
 * v' = fma(1 - beta2, g g, beta2 v); size = lr sqrt(1 - beta2^t) / (1 - beta1^t), or lr without correction;
 * w1 = fma(-size, m' / (sqrt(v') + epsilon), w); w' = fma(-(lr weight_decay), w1, w1).
 * 1 - beta^t is -expm1(t log(beta)). */
#include "tg_elementwise.h"
#include "tg_half.h"
#include "tg_math.h"

typedef struct {
    int32_t n_i, corrects;
    float beta1, rest_of_beta1, log_of_beta1, beta2, rest_of_beta2, log_of_beta2, epsilon, weight_decay;
} tg_adamw_optimizer_args;

#define TG_ADAMW_OPTIMIZER(KEPT, KEEP)                                                                                 \
    const float t = (float)(*step + 1);                                                                                \
    const float first = -tg_expm1(t * p->log_of_beta1);                                                                \
    const float second = TG_SQRT(-tg_expm1(t * p->log_of_beta2));                                                      \
    const float size = -(p->corrects ? *lr * second / first : *lr), decay = -(*lr * p->weight_decay);                  \
    const float rest1 = p->rest_of_beta1, rest2 = p->rest_of_beta2, beta2 = p->beta2, epsilon = p->epsilon;            \
    TG_MAP(float mean = TG_FMA(rest1, g[i] - KEPT(m[i]), KEPT(m[i]));                                                  \
           float square = TG_FMA(rest2, g[i] * g[i], beta2 * KEPT(v[i]));                                              \
           float moved = TG_FMA(size, mean / (TG_SQRT(square) + epsilon), w[i]); m_out[i] = KEEP(mean);                \
           v_out[i] = KEEP(square); w_out[i] = TG_FMA(decay, moved, moved);)

TG_KERNEL void tg_adamw_optimizer(TG_MEM const float *w, TG_MEM const float *g, TG_MEM const float *m,
                                  TG_MEM const float *v, TG_MEM const float *lr, TG_MEM const int64_t *step,
                                  TG_MEM float *w_out, TG_MEM float *m_out, TG_MEM float *v_out,
                                  TG_ARG const tg_adamw_optimizer_args *p, int core_id, int core_count)
{
    TG_ADAMW_OPTIMIZER(TG_KEPT_F32, TG_KEEP_F32);
}

TG_KERNEL void tg_adamw_optimizer_bf16(TG_MEM const float *w, TG_MEM const float *g, TG_MEM const tg_b2 *m,
                                       TG_MEM const tg_b2 *v, TG_MEM const float *lr, TG_MEM const int64_t *step,
                                       TG_MEM float *w_out, TG_MEM tg_b2 *m_out, TG_MEM tg_b2 *v_out,
                                       TG_ARG const tg_adamw_optimizer_args *p, int core_id, int core_count)
{
    TG_ADAMW_OPTIMIZER(TG_KEPT_BF16, TG_KEEP_BF16);
}

TG_KERNEL void tg_adamw_optimizer_fp16(TG_MEM const float *w, TG_MEM const float *g, TG_MEM const tg_b2 *m,
                                       TG_MEM const tg_b2 *v, TG_MEM const float *lr, TG_MEM const int64_t *step,
                                       TG_MEM float *w_out, TG_MEM tg_b2 *m_out, TG_MEM tg_b2 *v_out,
                                       TG_ARG const tg_adamw_optimizer_args *p, int core_id, int core_count)
{
    TG_ADAMW_OPTIMIZER(TG_KEPT_FP16, TG_KEEP_FP16);
}
