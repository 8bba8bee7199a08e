/* The end of every loss: partial results, one per row or block, added in order from +0, then divided. */
#ifndef TG_LOSS_H
#define TG_LOSS_H
#include "tg_kernel.h"

typedef struct {
    int32_t n_i;
    int32_t first, last;
    float count; /* the divisor where no weights are given */
} tg_loss_total_args;

/* loss = sum(part) / sum(weight), or / count without weights. One output element: one core has all of it. `total` is
 * the sum of weights between tiles. */
TG_INLINE void tg_loss_sum(TG_MEM const float *part, TG_MEM const float *weight, TG_MEM float *loss,
                           TG_MEM float *total, TG_ARG const tg_loss_total_args *p, int core_id)
{
    if (core_id != 0)
        return;
    float sum = p->first ? 0.0f : *loss, divisor = p->count;
    for (int i = 0; i < p->n_i; i++)
        sum = sum + part[i];
    if (weight != TG_NULL) {
        divisor = p->first ? 0.0f : *total;
        for (int i = 0; i < p->n_i; i++)
            divisor = divisor + weight[i];
        *total = divisor;
    }
    *loss = p->last ? sum / divisor : sum;
}

#endif
