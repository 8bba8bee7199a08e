/* Gemm: y = alpha * (a b) + beta * c. Per output: k ascending, one accumulator, then alpha, then the bias. The four
 * variants differ only in which matrix is stored transposed, so each inner loop has its own unit strides. */
#include "tg_kernel.h"

typedef struct {
    int32_t n_m, n_n, n_k;
    int32_t a_by_m, a_by_k, b_by_k, b_by_n, c_by_m, c_by_n, y_by_m;
    int32_t first, last;
    float alpha, beta;
} tg_gemm_args;

/* After the last k: scale and add the bias. */
TG_INLINE float tg_gemm_finish(float sum, TG_MEM const float *c, TG_ARG const tg_gemm_args *p, int m, int n)
{
    if (!p->last)
        return sum;
    if (p->alpha != 1.0f)
        sum = p->alpha * sum;
    if (c == TG_NULL)
        return sum;
    float bias = c[m * p->c_by_m + n * p->c_by_n];
    return p->beta == 1.0f ? sum + bias : TG_FMA(p->beta, bias, sum);
}

TG_INLINE void tg_gemm_any(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                           TG_ARG const tg_gemm_args *p, int a_by_m, int a_by_k, int b_by_k, int b_by_n, int core_id,
                           int core_count)
{
    int start, stop;
    tg_share(p->n_m * p->n_n, core_id, core_count, &start, &stop);
    for (int i = start; i < stop; i++) {
        int m = i / p->n_n, n = i - m * p->n_n;
        TG_MEM const float *row = a + m * a_by_m, *column = b + n * b_by_n;
        TG_MEM float *out = y + m * p->y_by_m + n;
        float sum = p->first ? 0.0f : *out;
        for (int k = 0; k < p->n_k; k++)
            sum = TG_FMA(row[k * a_by_k], column[k * b_by_k], sum);
        *out = tg_gemm_finish(sum, c, p, m, n);
    }
}

TG_KERNEL void tg_gemm_nn(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                          TG_ARG const tg_gemm_args *p, int core_id, int core_count)
{
    tg_gemm_any(a, b, c, y, p, p->a_by_m, 1, p->b_by_k, 1, core_id, core_count);
}

TG_KERNEL void tg_gemm_nt(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                          TG_ARG const tg_gemm_args *p, int core_id, int core_count)
{
    tg_gemm_any(a, b, c, y, p, p->a_by_m, 1, 1, p->b_by_n, core_id, core_count);
}

TG_KERNEL void tg_gemm_tn(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                          TG_ARG const tg_gemm_args *p, int core_id, int core_count)
{
    tg_gemm_any(a, b, c, y, p, 1, p->a_by_k, p->b_by_k, 1, core_id, core_count);
}

TG_KERNEL void tg_gemm_tt(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                          TG_ARG const tg_gemm_args *p, int core_id, int core_count)
{
    tg_gemm_any(a, b, c, y, p, 1, p->a_by_k, 1, p->b_by_n, core_id, core_count);
}
