/* LearningRate: rate = base * share of t, how many updates came before. Warm-up: (t + 1) / warmup while t < warmup;
 * then, of t - warmup: 1; step: factor ^ floor(t / period); cosine: fma(1 - floor, c c, floor) with
 * c = cos_pi((t / period) / 2), and c = 0 from t = period on. All in float. */
#include "tg_kernel.h"
#include "tg_math.h"

typedef struct {
    int32_t n_i, kind, warmup, period;
    float factor, floor, rest;
} tg_learning_rate_args;

TG_KERNEL void tg_learning_rate(TG_MEM const float *base, TG_MEM const int64_t *step, TG_MEM float *rate,
                                TG_ARG const tg_learning_rate_args *p, int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_i, core_id, core_count, &start, &stop);
    if (start >= stop)
        return;
    int32_t t = *step > 2147483646 ? 2147483646 : (int32_t)*step;
    float share = 1.0f;
    if (t < p->warmup) {
        share = (float)(t + 1) / (float)p->warmup;
    } else if (p->kind == 1) {
        share = tg_pow(p->factor, (float)((t - p->warmup) / p->period));
    } else if (p->kind == 2) {
        int32_t since = t - p->warmup;
        float c = since < p->period ? tg_cos_pi(0.5f * ((float)since / (float)p->period)) : 0.0f;
        share = TG_FMA(p->rest, c * c, p->floor);
    }
    *rate = *base * share;
}
