/* Matrix product in registers, for Gemm, MatMul and 1x1 convolutions: y(m,n) = sum over k of a(m,k) b(k,n).
 *
 * Every output has one accumulator and takes k in ascending order, so any tile, block shape and core count gives the
 * same bits. Blocks of 4x4 outputs; what is left over (and so every matrix-vector product) runs eight outputs at a time;
 * outer products (n_k == 1) stream. Literal strides in the caller's `tg_gemm_args` are propagated by inlining. */
#ifndef TG_GEMM_H
#define TG_GEMM_H
#include "tg_block.h"

/* Strides in elements. `c` (may be null) is added after the last k: y = alpha * sum + beta * c. */
typedef struct {
    int32_t n_m, n_n, n_k;
    int32_t a_by_m, a_by_k, b_by_k, b_by_n, c_by_m, c_by_n, y_by_m, y_by_n;
    int32_t first, last;
    float alpha, beta;
} tg_gemm_args;

TG_TEMPLATE void tg_gemm_4x4(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y, tg_gemm_args g)
{
#define TG_GEMM_ZERO(i, j) float s##i##j = 0.0f;
#define TG_GEMM_LOAD(i, j) s##i##j = y[i * g.y_by_m + j * g.y_by_n];
#define TG_GEMM_STEP(i, j) s##i##j = TG_FMA(a##i, b##j, s##i##j);
#define TG_GEMM_STORE(i, j) y[i * g.y_by_m + j * g.y_by_n] = s##i##j;
#define TG_GEMM_LOAD_A(i) float a##i = a[i * g.a_by_m];
#define TG_GEMM_LOAD_B(j) float b##j = b[j * g.b_by_n];
    TG_BLOCK(TG_GEMM_ZERO)
    if (!g.first) {
        TG_BLOCK(TG_GEMM_LOAD)
    }
    for (int k = 0; k < g.n_k; k++) {
        TG_ROW4(TG_GEMM_LOAD_A)
        TG_ROW4(TG_GEMM_LOAD_B)
        TG_BLOCK(TG_GEMM_STEP)
        a += g.a_by_k;
        b += g.b_by_k;
    }
    TG_BLOCK(TG_GEMM_STORE)
}

/* Outputs n_start to n_stop of the one row `a` points to. */
TG_TEMPLATE void tg_gemm_row(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y, tg_gemm_args g,
                             int n_start, int n_stop)
{
#define TG_GEMV_ZERO(j) float s##j = 0.0f;
#define TG_GEMV_LOAD(j) s##j = out[j * g.y_by_n];
#define TG_GEMV_STEP(j) s##j = TG_FMA(x, column[j * g.b_by_n], s##j);
#define TG_GEMV_STORE(j) out[j * g.y_by_n] = s##j;
#define TG_GEMV_WIDE(ROW)                                                                                              \
    TG_MEM const float *row = a, *column = b + n * g.b_by_n;                                                           \
    TG_MEM float *out = y + n * g.y_by_n;                                                                              \
    ROW(TG_GEMV_ZERO)                                                                                                  \
    if (!g.first) {                                                                                                    \
        ROW(TG_GEMV_LOAD)                                                                                              \
    }                                                                                                                  \
    for (int k = 0; k < g.n_k; k++) {                                                                                  \
        float x = *row;                                                                                                \
        ROW(TG_GEMV_STEP)                                                                                              \
        row += g.a_by_k;                                                                                               \
        column += g.b_by_k;                                                                                            \
    }                                                                                                                  \
    ROW(TG_GEMV_STORE)
#define TG_GEMV_POINT(j) TG_MEM const float *c##j = b + (n + j) * g.b_by_n;
#define TG_GEMV_STEP4(j)                                                                                               \
    s##j = TG_FMA(x0, c##j[0], s##j);                                                                                  \
    s##j = TG_FMA(x1, c##j[1], s##j);                                                                                  \
    s##j = TG_FMA(x2, c##j[2], s##j);                                                                                  \
    s##j = TG_FMA(x3, c##j[3], s##j);                                                                                  \
    c##j += 4;
#define TG_GEMV_STEP1(j) s##j = TG_FMA(x0, *c##j++, s##j);
    int n = n_start;
    if (g.b_by_k == 1) /* each column lies along k: walk eight of them, four elements at a time */
        for (; n + 8 <= n_stop; n += 8) {
            TG_MEM const float *row = a;
            TG_MEM float *out = y + n * g.y_by_n;
            int k = 0;
            TG_ROW8(TG_GEMV_POINT)
            TG_ROW8(TG_GEMV_ZERO)
            if (!g.first) {
                TG_ROW8(TG_GEMV_LOAD)
            }
            for (; k + 4 <= g.n_k; k += 4) {
                float x0 = row[0], x1 = row[g.a_by_k], x2 = row[2 * g.a_by_k], x3 = row[3 * g.a_by_k];
                TG_ROW8(TG_GEMV_STEP4)
                row += 4 * g.a_by_k;
            }
            for (; k < g.n_k; k++) {
                float x0 = *row;
                TG_ROW8(TG_GEMV_STEP1)
                row += g.a_by_k;
            }
            TG_ROW8(TG_GEMV_STORE)
        }
    else
        for (; n + 8 <= n_stop; n += 8) {
            TG_GEMV_WIDE(TG_ROW8)
        }
    for (; n + 4 <= n_stop; n += 4) {
        TG_GEMV_WIDE(TG_ROW4)
    }
    for (; n < n_stop; n++) {
#define TG_GEMV_ROW1(F) F(0)
        TG_GEMV_WIDE(TG_GEMV_ROW1)
    }
}

/* Scale and bias, once the last k is in. */
TG_TEMPLATE void tg_gemm_finish(TG_MEM const float *c, TG_MEM float *y, tg_gemm_args g, int m_start, int m_stop,
                                int n_start, int n_stop)
{
    if (!g.last || (g.alpha == 1.0f && c == TG_NULL))
        return;
    for (int m = m_start; m < m_stop; m++)
        for (int n = n_start; n < n_stop; n++) {
            TG_MEM float *out = y + m * g.y_by_m + n * g.y_by_n;
            float sum = g.alpha == 1.0f ? *out : g.alpha * *out;
            if (c != TG_NULL) {
                float bias = c[m * g.c_by_m + n * g.c_by_n];
                sum = g.beta == 1.0f ? sum + bias : TG_FMA(g.beta, bias, sum);
            }
            *out = sum;
        }
}

/* This core's share of the whole tile. */
TG_TEMPLATE void tg_gemm(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                         tg_gemm_args g, int core_id, int core_count)
{
    int start, stop;
    if (g.n_k == 1 && g.n_m > 1 && g.n_n > 1) { /* outer product: nothing to keep in registers */
        tg_share(g.n_m, core_id, core_count, &start, &stop);
        for (int m = start; m < stop; m++) {
            TG_MEM float *row = y + m * g.y_by_m;
            float x = a[m * g.a_by_m];
            if (g.first)
                for (int n = 0; n < g.n_n; n++)
                    row[n * g.y_by_n] = TG_FMA(x, b[n * g.b_by_n], 0.0f);
            else
                for (int n = 0; n < g.n_n; n++)
                    row[n * g.y_by_n] = TG_FMA(x, b[n * g.b_by_n], row[n * g.y_by_n]);
        }
        tg_gemm_finish(c, y, g, start, stop, 0, g.n_n);
        return;
    }
    int m_blocks = g.n_m / 4, n_blocks = g.n_n / 4, m_whole = 4 * m_blocks, n_whole = 4 * n_blocks;
    tg_share(m_blocks * n_blocks, core_id, core_count, &start, &stop);
    for (int block = start; block < stop; block++) {
        int m = block / n_blocks, n = 4 * (block - m * n_blocks);
        m *= 4;
        tg_gemm_4x4(a + m * g.a_by_m, b + n * g.b_by_n, y + m * g.y_by_m + n * g.y_by_n, g);
        tg_gemm_finish(c, y, g, m, m + 4, n, n + 4);
    }
    int groups = (g.n_n + 7) / 8; /* rows below the blocks, in groups of eight columns */
    tg_share((g.n_m - m_whole) * groups, core_id, core_count, &start, &stop);
    for (int unit = start; unit < stop; unit++) {
        int m = unit / groups, n = 8 * (unit - m * groups), n_stop = tg_min(n + 8, g.n_n);
        m += m_whole;
        tg_gemm_row(a + m * g.a_by_m, b, y + m * g.y_by_m, g, n, n_stop);
        tg_gemm_finish(c, y, g, m, m + 1, n, n_stop);
    }
    tg_gemm_args t = g; /* columns right of the blocks are rows of the transposed product */
    t.a_by_k = g.b_by_k;
    t.b_by_k = g.a_by_k;
    t.b_by_n = g.a_by_m;
    t.y_by_n = g.y_by_m;
    groups = (m_whole + 7) / 8;
    tg_share((g.n_n - n_whole) * groups, core_id, core_count, &start, &stop);
    for (int unit = start; unit < stop; unit++) {
        int n = unit / groups, m = 8 * (unit - n * groups), m_stop = tg_min(m + 8, m_whole);
        n += n_whole;
        tg_gemm_row(b + n * g.b_by_n, a, y + n * g.y_by_n, t, m, m_stop);
        tg_gemm_finish(c, y, g, m, m_stop, n, n + 1);
    }
}

#endif
