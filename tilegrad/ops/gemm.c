/* Gemm: y = alpha * (a b) + beta * c. Per output: k ascending, one accumulator, then alpha, then the bias, then a Relu if
 * there is one. GemmReluGrad: y = alpha * (a b) where c, the output of a Relu, is above zero. The four variants differ only in which matrix is stored transposed, so each inner loop has its own unit strides. */
#include "tg_gemm.h"
#include "tg_gemm_args.h"

#ifdef TG_INNER_ROW
/* Batches of one are common: a single row needs little of the code that a matrix needs, and a chip that has loops of its
 * own for rows has little room for code. */
TG_APART void tg_gemm_vector_nn(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                                TG_ARG const tg_gemm_args *p, int core_id, int core_count)
{
    tg_gemm_args g = *p;
    g.a_by_k = g.b_by_n = g.y_by_n = 1;
    tg_gemm_rows(a, b, c, y, g, 0, 1, core_id, core_count);
}

TG_APART void tg_gemm_vector_nt(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                                TG_ARG const tg_gemm_args *p, int core_id, int core_count)
{
    tg_gemm_args g = *p;
    g.a_by_k = g.b_by_k = g.y_by_n = 1;
    tg_gemm_rows(a, b, c, y, g, 0, 1, core_id, core_count);
}
#endif

TG_KERNEL void tg_gemm_nn(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                          TG_ARG const tg_gemm_args *p, int core_id, int core_count)
{
#ifdef TG_INNER_ROW
    if (p->n_m == 1) {
        tg_gemm_vector_nn(a, b, c, y, p, core_id, core_count);
        return;
    }
#endif
    tg_gemm_args g = *p;
    g.a_by_k = g.b_by_n = g.y_by_n = 1;
    tg_gemm(a, b, c, y, g, core_id, core_count);
}

TG_KERNEL void tg_gemm_nt(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                          TG_ARG const tg_gemm_args *p, int core_id, int core_count)
{
#ifdef TG_INNER_ROW
    if (p->n_m == 1) {
        tg_gemm_vector_nt(a, b, c, y, p, core_id, core_count);
        return;
    }
#endif
    tg_gemm_args g = *p;
    g.a_by_k = g.b_by_k = g.y_by_n = 1;
    tg_gemm(a, b, c, y, g, core_id, core_count);
}

TG_KERNEL void tg_gemm_tn(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                          TG_ARG const tg_gemm_args *p, int core_id, int core_count)
{
    tg_gemm_args g = *p;
    g.a_by_m = g.b_by_n = g.y_by_n = 1;
    tg_gemm(a, b, c, y, g, core_id, core_count);
}

TG_KERNEL void tg_gemm_tt(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                          TG_ARG const tg_gemm_args *p, int core_id, int core_count)
{
    tg_gemm_args g = *p;
    g.a_by_m = g.b_by_k = g.y_by_n = 1;
    tg_gemm(a, b, c, y, g, core_id, core_count);
}
