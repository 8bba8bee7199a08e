/* MatMul and FusedMatMul: y = alpha * a b for each batch, or (is_sum) the sum of that over the batches, batch outermost.
 * A batch dimension that an operand does not have has stride 0. */
#include "tg_gemm.h"

typedef struct {
    int32_t n_g0, n_g1, n_g2, n_m, n_n, n_k;
    int32_t a_by_g0, a_by_g1, a_by_g2, b_by_g0, b_by_g1, b_by_g2, y_by_g0, y_by_g1, y_by_g2;
    int32_t a_by_m, a_by_k, b_by_k, b_by_n, y_by_m;
    int32_t is_sum, first, last;
    float alpha;
} tg_matmul_args;

TG_TEMPLATE void tg_matmul(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y,
                              TG_ARG const tg_matmul_args *p, tg_gemm_args g, int core_id, int core_count)
{
    int batches = p->n_g0 * p->n_g1 * p->n_g2, start = 0, stop = batches;
    g.n_m = p->n_m;
    g.n_n = p->n_n;
    g.n_k = p->n_k;
    g.y_by_m = p->y_by_m;
    g.y_by_n = 1;
    g.c_by_m = g.c_by_n = 0;
    g.first = p->first;
    g.last = p->last;
    g.alpha = p->alpha;
    g.beta = 1.0f;
    g.activation = TG_LINEAR;
    if (p->is_sum && batches == 0) {
        g.n_k = 0;
        stop = 1;
    } else if (!p->is_sum && core_count > 1 && batches % core_count == 0) { /* whole batches to each core */
        tg_share(batches, core_id, core_count, &start, &stop);
        core_id = 0;
        core_count = 1;
    }
    for (int batch = start; batch < stop; batch++) {
        int g2 = batch, g1 = 0, g0 = 0;
        if (batch >= p->n_g2 && p->n_g2 > 0) {
            g1 = batch / p->n_g2;
            g2 = batch - g1 * p->n_g2;
            g0 = g1 / p->n_g1;
            g1 -= g0 * p->n_g1;
        }
        if (p->is_sum) {
            g.first = p->first && batch == 0;
            g.last = p->last && batch == stop - 1;
        }
        tg_gemm(a + g0 * p->a_by_g0 + g1 * p->a_by_g1 + g2 * p->a_by_g2,
                b + g0 * p->b_by_g0 + g1 * p->b_by_g1 + g2 * p->b_by_g2, TG_NULL,
                y + g0 * p->y_by_g0 + g1 * p->y_by_g1 + g2 * p->y_by_g2, g, core_id, core_count);
    }
}

TG_KERNEL void tg_matmul_nn(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y,
                            TG_ARG const tg_matmul_args *p, int core_id, int core_count)
{
    tg_gemm_args g = {.a_by_m = p->a_by_m, .a_by_k = 1, .b_by_k = p->b_by_k, .b_by_n = 1};
    tg_matmul(a, b, y, p, g, core_id, core_count);
}

TG_KERNEL void tg_matmul_nt(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y,
                            TG_ARG const tg_matmul_args *p, int core_id, int core_count)
{
    tg_gemm_args g = {.a_by_m = p->a_by_m, .a_by_k = 1, .b_by_k = 1, .b_by_n = p->b_by_n};
    tg_matmul(a, b, y, p, g, core_id, core_count);
}

TG_KERNEL void tg_matmul_tn(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y,
                            TG_ARG const tg_matmul_args *p, int core_id, int core_count)
{
    tg_gemm_args g = {.a_by_m = 1, .a_by_k = p->a_by_k, .b_by_k = p->b_by_k, .b_by_n = 1};
    tg_matmul(a, b, y, p, g, core_id, core_count);
}

TG_KERNEL void tg_matmul_tt(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y,
                            TG_ARG const tg_matmul_args *p, int core_id, int core_count)
{
    tg_gemm_args g = {.a_by_m = 1, .a_by_k = p->a_by_k, .b_by_k = 1, .b_by_n = p->b_by_n};
    tg_matmul(a, b, y, p, g, core_id, core_count);
}
