/* GlobalMaxPool: the maximum over a plane's positions; a NaN wins. GlobalMaxPoolGrad: dy at the first maximum. */
#include "tg_kernel.h"

typedef struct {
    int32_t n_c, n_p, x_s0, first;
} tg_global_max_pool_args;

typedef struct {
    int32_t n_c, n_p, x_s0, dx_s0;
} tg_global_max_pool_grad_args;

TG_KERNEL void tg_global_max_pool(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_global_max_pool_args *p,
                                  int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_c, core_id, core_count, &start, &stop);
    for (int c = start; c < stop; c++) {
        TG_MEM const float *plane = x + c * p->x_s0;
        float best = p->first ? plane[0] : y[c];
        for (int i = 0; i < p->n_p; i++)
            if (plane[i] > best || plane[i] != plane[i])
                best = plane[i];
        y[c] = best;
    }
}

TG_KERNEL void tg_global_max_pool_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM float *dx,
                                       TG_ARG const tg_global_max_pool_grad_args *p, int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_c, core_id, core_count, &start, &stop);
    for (int c = start; c < stop; c++) {
        TG_MEM const float *plane = x + c * p->x_s0;
        TG_MEM float *out = dx + c * p->dx_s0;
        float best = plane[0];
        int at = 0;
        for (int i = 0; i < p->n_p; i++) {
            if (plane[i] > best || plane[i] != plane[i]) {
                best = plane[i];
                at = i;
            }
            out[i] = 0.0f;
        }
        out[at] = dy[c];
    }
}
