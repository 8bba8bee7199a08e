/* RMSprop: g' = fma(weight_decay, w, g), or g without decay; v' = fma(1 - alpha, g' g', alpha v);
 * w' = fma(-lr, g' / (sqrt(v') + epsilon), w). */
#include "tg_elementwise.h"

typedef struct {
    int32_t n_i;
    float alpha, rest_of_alpha, epsilon, weight_decay;
} tg_rmsprop_args;

TG_KERNEL void tg_rmsprop(TG_MEM const float *w, TG_MEM const float *g, TG_MEM const float *v, TG_MEM const float *lr,
                          TG_MEM float *w_out, TG_MEM float *v_out, TG_ARG const tg_rmsprop_args *p, int core_id,
                          int core_count)
{
    const float step = -*lr, alpha = p->alpha, rest = p->rest_of_alpha, epsilon = p->epsilon, decay = p->weight_decay;
    const int has_decay = decay != 0.0f;
    TG_MAP(float weight = w[i]; float slope = has_decay ? TG_FMA(decay, weight, g[i]) : g[i];
           float square = TG_FMA(rest, slope * slope, alpha * v[i]); v_out[i] = square;
           w_out[i] = TG_FMA(step, slope / (TG_SQRT(square) + epsilon), weight);)
}
