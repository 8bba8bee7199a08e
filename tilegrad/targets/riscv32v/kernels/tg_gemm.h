/* Matrix product with RISC-V vectors, for Gemm, MatMul and 1x1 convolutions: y(m,n) = sum over k of a(m,k) b(k,n).
 *
 * A vector holds outputs beside each other, each with its own accumulator that takes k in ascending order: the bits are
 * those of the portable header, whose place this takes. Four rows share what is loaded of b. */
#ifndef TG_GEMM_H
#define TG_GEMM_H
#include <riscv_vector.h>
#include "tg_block.h"
#include "tg_gemm_args.h"

#if __clang_major__ < 16
#define TG_RVV(name) name
#else
#define TG_RVV(name) __riscv_##name
#endif
enum { TG_GEMM_LANES = 32, TG_GEMM_FEWEST_LANES = 4 };

/* `rows` (4 or 1) times `lanes` outputs. */
TG_TEMPLATE void tg_gemm_strip(const float *a, const float *b, float *y, const tg_gemm_args *g, int lanes, int rows,
                               int b_is_dense)
{
#define TG_STRIP_BEGIN(i)                                                                                              \
    vfloat32m4_t s##i = TG_RVV(vfmv_v_f_f32m4)(0.0f, vl);                                                              \
    if (i < rows && !g->first)                                                                                         \
        s##i = TG_RVV(vlse32_v_f32m4)(y + i * g->y_by_m, 4 * g->y_by_n, vl);
#define TG_STRIP_FMA(i)                                                                                                \
    if (i < rows)                                                                                                      \
        s##i = TG_RVV(vfmacc_vf_f32m4)(s##i, p[i * a_by_m], v, vl);
#define TG_STRIP_END(i)                                                                                                \
    if (i < rows)                                                                                                      \
        TG_RVV(vsse32_v_f32m4)(y + i * g->y_by_m, 4 * g->y_by_n, s##i, vl);
    const int a_by_m = g->a_by_m, a_by_k = g->a_by_k, b_by_k = g->b_by_k, b_by_n = g->b_by_n;
    for (size_t vl; lanes > 0; lanes -= (int)vl, b += (int)vl * b_by_n, y += (int)vl * g->y_by_n) {
        vl = TG_RVV(vsetvl_e32m4)((size_t)lanes);
        const float *p = a, *q = b;
        TG_ROW4(TG_STRIP_BEGIN)
        for (int k = g->n_k; k > 0; k--, p += a_by_k, q += b_by_k) {
            vfloat32m4_t v = b_is_dense ? TG_RVV(vle32_v_f32m4)(q, vl) : TG_RVV(vlse32_v_f32m4)(q, 4 * b_by_n, vl);
            TG_ROW4(TG_STRIP_FMA)
        }
        TG_ROW4(TG_STRIP_END)
    }
}

/* The forms that are used, each once in the machine code. */
#define TG_STRIP_FORM(NAME, ROWS, B_IS_DENSE)                                                                          \
    TG_APART void tg_gemm_strip_##NAME(const float *a, const float *b, float *y, const tg_gemm_args *g, int lanes)     \
    {                                                                                                                  \
        tg_gemm_strip(a, b, y, g, lanes, ROWS, B_IS_DENSE);                                                            \
    }
TG_STRIP_FORM(four_dense, 4, 1)
TG_STRIP_FORM(four, 4, 0)
TG_STRIP_FORM(one_dense, 1, 1)
TG_STRIP_FORM(one, 1, 0)

/* This core's share of the whole tile: strips of four rows and as many lanes as let all cores work. Where there are few
 * columns, lanes are rows: the transposed product. */
TG_APART void tg_gemm_shared(const float *a, const float *b, const float *c, float *y, const tg_gemm_args *args,
                             int core_id, int core_count)
{
    tg_gemm_args g = *args;
    if (g.n_n < TG_GEMM_LANES && g.n_n < g.n_m) {
        const float *other = a;
        a = b;
        b = other;
        g.n_m = args->n_n, g.n_n = args->n_m;
        g.a_by_m = args->b_by_n, g.a_by_k = args->b_by_k, g.b_by_k = args->a_by_k, g.b_by_n = args->a_by_m;
        g.c_by_m = args->c_by_n, g.c_by_n = args->c_by_m, g.y_by_m = args->y_by_n, g.y_by_n = args->y_by_m;
    }
    int width = TG_GEMM_LANES, start, stop;
    const int fours = (g.n_m + 3) / 4;
    while (width > TG_GEMM_FEWEST_LANES && fours * ((g.n_n + width - 1) / width) < core_count)
        width /= 2;
    const int strips = (g.n_n + width - 1) / width, is_dense = g.b_by_n == 1;
    tg_share(fours * strips, core_id, core_count, &start, &stop);
    for (int unit = start, count; unit < stop; unit += count) {
        int m = unit / strips, n = unit - m * strips, rows;
        count = tg_min(strips - n, stop - unit);
        m *= 4;
        n *= width;
        rows = tg_min(4, g.n_m - m);
        const int n_stop = tg_min(n + count * width, g.n_n), lanes = n_stop - n;
        const float *row = a + m * g.a_by_m, *column = b + n * g.b_by_n;
        float *out = y + m * g.y_by_m + n * g.y_by_n;
        if (rows == 4 && is_dense)
            tg_gemm_strip_four_dense(row, column, out, &g, lanes);
        else if (rows == 4)
            tg_gemm_strip_four(row, column, out, &g, lanes);
        else
            for (int i = 0; i < rows; i++, row += g.a_by_m, out += g.y_by_m) {
                if (is_dense)
                    tg_gemm_strip_one_dense(row, column, out, &g, lanes);
                else
                    tg_gemm_strip_one(row, column, out, &g, lanes);
            }
        tg_gemm_finish(c, y, g, m, m + rows, n, n_stop);
    }
}

TG_TEMPLATE void tg_gemm(const float *a, const float *b, const float *c, float *y, tg_gemm_args g, int core_id,
                         int core_count)
{
    tg_gemm_shared(a, b, c, y, &g, core_id, core_count);
}

#endif
