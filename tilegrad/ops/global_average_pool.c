/* GlobalAveragePool: the sum over a plane's positions divided by their number. GlobalAveragePoolGrad: dy divided by it,
 * at every position. */
#include "tg_kernel.h"

typedef struct {
    int32_t n_c, n_p, of_p, x_s0, first, last;
} tg_global_average_pool_args;

typedef struct {
    int32_t n_c, n_p, of_p, dx_s0;
} tg_global_average_pool_grad_args;

TG_KERNEL void tg_global_average_pool(TG_MEM const float *x, TG_MEM float *y,
                                      TG_ARG const tg_global_average_pool_args *p, int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_c, core_id, core_count, &start, &stop);
    for (int c = start; c < stop; c++) {
        TG_MEM const float *plane = x + c * p->x_s0;
        float sum = p->first ? 0.0f : y[c];
        for (int i = 0; i < p->n_p; i++)
            sum += plane[i];
        y[c] = p->last ? sum / (float)p->of_p : sum;
    }
}

TG_KERNEL void tg_global_average_pool_grad(TG_MEM const float *dy, TG_MEM float *dx,
                                           TG_ARG const tg_global_average_pool_grad_args *p, int core_id,
                                           int core_count)
{
    int start, stop;
    tg_share(p->n_c, core_id, core_count, &start, &stop);
    for (int c = start; c < stop; c++) {
        TG_MEM float *plane = dx + c * p->dx_s0;
        float share = dy[c] / (float)p->of_p;
        for (int i = 0; i < p->n_p; i++)
            plane[i] = share;
    }
}
