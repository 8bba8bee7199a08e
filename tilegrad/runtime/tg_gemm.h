/* Matrix product in registers, for Gemm, MatMul and 1x1 convolutions: y(m,n) = sum over k of a(m,k) b(k,n).
 *
 * Every output has one accumulator and takes k in ascending order, so any tile, block shape and core count gives the
 * same bits. Blocks of 4x4 outputs; what is left over (and so every matrix-vector product) runs eight outputs at a time;
 * outer products (n_k == 1) stream. Literal strides in the caller's `tg_gemm_args` select the code. */
#ifndef TG_GEMM_H
#define TG_GEMM_H
#include "tg_block.h"
#include "tg_gemm_args.h"
#include "tg_inner.h"

/* What the loops inside need of that. */
typedef struct {
    int a_by_m, a_by_k, b_by_k, b_by_n, y_by_m, y_by_n, n_k, first;
} tg_gemm_steps;

/* `count` blocks side by side. An operand `runs` if it lies along k: then each of its four rows has a pointer, else its
 * four elements are `*_by_*` apart and one pointer steps from k to k. Four k a turn. */
TG_TEMPLATE void tg_gemm_4x4(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y, const tg_gemm_steps *g,
                             int count, int a_runs, int b_runs, int a_by_m, int b_by_n, int y_by_n)
{
#define TG_GEMM_ZERO(i, j) float s##i##j = 0.0f;
#define TG_GEMM_LOAD(i, j) s##i##j = y[i * y_by_m + j * y_by_n];
#define TG_GEMM_FMA(i, j) s##i##j = TG_FMA(a##i, b##j, s##i##j);
#define TG_GEMM_STORE(i, j) y[i * y_by_m + j * y_by_n] = s##i##j;
#define TG_GEMM_POINT_A(i) TG_MEM const float *p##i = a + i * a_by_m;
#define TG_GEMM_POINT_B(j) TG_MEM const float *q##j = b + j * b_by_n;
#define TG_GEMM_LOAD_A(i) const float a##i = a_runs ? p##i[at] : p0[i * a_by_m];
#define TG_GEMM_LOAD_B(j) const float b##j = b_runs ? q##j[at] : q0[j * b_by_n];
#define TG_GEMM_NEXT(i)                                                                                                \
    p##i += a_runs ? steps : 0;                                                                                        \
    q##i += b_runs ? steps : 0;
#define TG_GEMM_STEP(AT)                                                                                               \
    {                                                                                                                  \
        const int at = AT;                                                                                             \
        TG_ROW4(TG_GEMM_LOAD_A)                                                                                        \
        TG_ROW4(TG_GEMM_LOAD_B)                                                                                        \
        TG_BLOCK(TG_GEMM_FMA)                                                                                          \
        p0 += a_runs ? 0 : a_by_k;                                                                                     \
        q0 += b_runs ? 0 : b_by_k;                                                                                     \
    }
    const int a_by_k = g->a_by_k, b_by_k = g->b_by_k, y_by_m = g->y_by_m;
    for (; count > 0; count--, b += 4 * b_by_n, y += 4 * y_by_n) {
        TG_BLOCK(TG_GEMM_ZERO)
        TG_ROW4(TG_GEMM_POINT_A)
        TG_ROW4(TG_GEMM_POINT_B)
        if (!g->first) {
            TG_BLOCK(TG_GEMM_LOAD)
        }
        int k = g->n_k;
        for (const int steps = 4; k >= steps; k -= steps) {
            TG_GEMM_STEP(0)
            TG_GEMM_STEP(1)
            TG_GEMM_STEP(2)
            TG_GEMM_STEP(3)
            TG_ROW4(TG_GEMM_NEXT)
        }
        for (const int steps = 1; k > 0; k -= steps) {
            TG_GEMM_STEP(0)
            TG_ROW4(TG_GEMM_NEXT)
        }
        TG_BLOCK(TG_GEMM_STORE)
    }
}

/* `count` outputs (8, 4 or 1 at a time) of one row: x(k) times the columns of b. `runs` as above. */
TG_TEMPLATE void tg_gemv(TG_MEM const float *x, TG_MEM const float *b, TG_MEM float *y, const tg_gemm_steps *g,
                         int count, int x_runs, int b_runs, int b_by_n)
{
#define TG_GEMV_ZERO(j) float s##j = 0.0f;
#define TG_GEMV_LOAD(j) s##j = y[j * y_by_n];
#define TG_GEMV_STORE(j) y[j * y_by_n] = s##j;
#define TG_GEMV_POINT(j) TG_MEM const float *q##j = b + j * b_by_n;
#define TG_GEMV_ALONG(j)                                                                                               \
    s##j = TG_FMA(x0, q##j[0], s##j);                                                                                  \
    s##j = TG_FMA(x1, q##j[1], s##j);                                                                                  \
    s##j = TG_FMA(x2, q##j[2], s##j);                                                                                  \
    s##j = TG_FMA(x3, q##j[3], s##j);                                                                                  \
    q##j += 4;
#define TG_GEMV_ACROSS(j) s##j = TG_FMA(value, q0[j * b_by_n], s##j);
#define TG_GEMV_ONE(j) s##j = TG_FMA(value, b_runs ? q##j[0] : q0[j * b_by_n], s##j);
#define TG_GEMV_NEXT(j) q##j += b_runs;
#define TG_GEMV_STEP(ROW, VALUE)                                                                                       \
    {                                                                                                                  \
        const float value = VALUE;                                                                                     \
        ROW(TG_GEMV_ACROSS)                                                                                            \
        q0 += b_by_k;                                                                                                  \
    }
#define TG_GEMV_OUTPUTS(ROW, WIDTH)                                                                                    \
    for (; count >= WIDTH; count -= WIDTH, b += WIDTH * b_by_n, y += WIDTH * y_by_n) {                                 \
        TG_MEM const float *p = x;                                                                                     \
        ROW(TG_GEMV_POINT)                                                                                             \
        ROW(TG_GEMV_ZERO)                                                                                              \
        if (!g->first) {                                                                                               \
            ROW(TG_GEMV_LOAD)                                                                                          \
        }                                                                                                              \
        int k = g->n_k;                                                                                                \
        for (; k >= 4; k -= 4) {                                                                                       \
            const float x0 = p[0], x1 = p[x_by_k], x2 = p[2 * x_by_k], x3 = p[3 * x_by_k];                             \
            if (b_runs) {                                                                                              \
                ROW(TG_GEMV_ALONG)                                                                                     \
            } else {                                                                                                   \
                TG_GEMV_STEP(ROW, x0)                                                                                  \
                TG_GEMV_STEP(ROW, x1)                                                                                  \
                TG_GEMV_STEP(ROW, x2)                                                                                  \
                TG_GEMV_STEP(ROW, x3)                                                                                  \
            }                                                                                                          \
            p += 4 * x_by_k;                                                                                           \
        }                                                                                                              \
        for (; k > 0; k--) {                                                                                           \
            const float value = *p;                                                                                    \
            ROW(TG_GEMV_ONE)                                                                                           \
            ROW(TG_GEMV_NEXT)                                                                                          \
            q0 += b_runs ? 0 : b_by_k;                                                                                 \
            p += x_by_k;                                                                                               \
        }                                                                                                              \
        ROW(TG_GEMV_STORE)                                                                                             \
    }
#define TG_GEMV_ROW1(F) F(0)
    const int x_by_k = x_runs ? 1 : g->a_by_k, b_by_k = g->b_by_k, y_by_n = g->y_by_n;
#ifdef TG_INNER_ROW /* the chip's own four, of one k or more */
    if (x_runs && (b_runs || TG_LITERALLY(b_by_n == 1))) {
        for (; g->n_k > 0 && count >= 4; count -= 4, b += 4 * b_by_n, y += 4 * y_by_n) {
            if (b_runs)
                tg_inner_row(x, b, b_by_n, y, y_by_n, g->n_k, g->first);
            else
                tg_inner_row_across(x, b, b_by_k, y, y_by_n, g->n_k, g->first);
        }
        TG_GEMV_OUTPUTS(TG_GEMV_ROW1, 1)
        return;
    }
#endif
    TG_GEMV_OUTPUTS(TG_ROW8, 8)
    TG_GEMV_OUTPUTS(TG_ROW4, 4)
    TG_GEMV_OUTPUTS(TG_GEMV_ROW1, 1)
}

#ifdef TG_INNER_GEMM /* the chip's own blocks, of one k or more */
#define TG_GEMM_BLOCKS(NAME, A_RUNS, B_RUNS, A_BY_M, B_BY_N, Y_BY_N)                                                   \
    tg_inner_steps s = {A_BY_M, g->a_by_k, g->b_by_k, B_BY_N, g->y_by_m, g->n_k, g->first};                            \
    for (; g->n_k > 0 && count > 0; count--, b += 4 * (B_BY_N), y += 4)                                                \
        tg_inner_gemm_##NAME(a, b, y, &s);                                                                             \
    for (; g->first && count > 0; count--, y += 4)                                                                     \
        for (int i = 0; i < 16; i++)                                                                                   \
            y[i / 4 * g->y_by_m + i % 4] = 0.0f;
#else
#define TG_GEMM_BLOCKS(NAME, A_RUNS, B_RUNS, A_BY_M, B_BY_N, Y_BY_N)                                                   \
    tg_gemm_4x4(a, b, y, g, count, A_RUNS, B_RUNS, A_BY_M, B_BY_N, Y_BY_N);
#endif
#define TG_GEMM_BLOCKS_ANY(NAME, A_RUNS, B_RUNS, A_BY_M, B_BY_N, Y_BY_N)                                               \
    tg_gemm_4x4(a, b, y, g, count, A_RUNS, B_RUNS, A_BY_M, B_BY_N, Y_BY_N);

/* The forms that are used, each once in the machine code. The last takes any strides. */
#define TG_GEMM_FORM(NAME, BLOCKS, A_RUNS, B_RUNS, A_BY_M, B_BY_N, Y_BY_N)                                              \
    TG_APART void tg_gemm_blocks_##NAME(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y,                 \
                                        const tg_gemm_steps *g, int count)                                              \
    {                                                                                                                  \
        BLOCKS(NAME, A_RUNS, B_RUNS, A_BY_M, B_BY_N, Y_BY_N)                                                           \
    }                                                                                                                  \
    TG_APART void tg_gemm_row_##NAME(TG_MEM const float *x, TG_MEM const float *b, TG_MEM float *y,                    \
                                     const tg_gemm_steps *g, int count)                                                 \
    {                                                                                                                  \
        tg_gemv(x, b, y, g, count, A_RUNS, B_RUNS, B_BY_N);                                                            \
    }
TG_GEMM_FORM(nn, TG_GEMM_BLOCKS, 1, 0, g->a_by_m, 1, 1)
TG_GEMM_FORM(nt, TG_GEMM_BLOCKS, 1, 1, g->a_by_m, g->b_by_n, 1)
TG_GEMM_FORM(tn, TG_GEMM_BLOCKS, 0, 0, 1, 1, 1)
TG_GEMM_FORM(tt, TG_GEMM_BLOCKS, 0, 1, 1, g->b_by_n, 1)
TG_GEMM_FORM(any, TG_GEMM_BLOCKS_ANY, 0, 0, g->a_by_m, g->b_by_n, g->y_by_n)

/* Calls the form that the literal strides of `G` say; `A_FITS` and `Y_FITS` whether those that it takes for 1 are. */
#define TG_GEMM_CALL(WHAT, G, A_FITS, Y_FITS, ...)                                                                     \
    do {                                                                                                               \
        if ((Y_FITS) && TG_LITERALLY(G.a_by_k == 1) && TG_LITERALLY(G.b_by_n == 1))                                    \
            tg_gemm_##WHAT##_nn(__VA_ARGS__);                                                                          \
        else if ((Y_FITS) && TG_LITERALLY(G.a_by_k == 1) && TG_LITERALLY(G.b_by_k == 1))                               \
            tg_gemm_##WHAT##_nt(__VA_ARGS__);                                                                          \
        else if ((A_FITS) && (Y_FITS) && TG_LITERALLY(G.b_by_n == 1))                                                  \
            tg_gemm_##WHAT##_tn(__VA_ARGS__);                                                                          \
        else if ((A_FITS) && (Y_FITS) && TG_LITERALLY(G.b_by_k == 1))                                                  \
            tg_gemm_##WHAT##_tt(__VA_ARGS__);                                                                          \
        else                                                                                                           \
            tg_gemm_##WHAT##_any(__VA_ARGS__);                                                                         \
    } while (0)

/* Outputs of a row that one core takes at a time: as many as let all cores work. */
TG_INLINE int tg_gemm_group(int outputs, int core_count)
{
    return outputs > 4 * core_count ? 8 : outputs > 2 * core_count ? 4 : 1;
}

TG_TEMPLATE tg_gemm_steps tg_gemm_steps_of(tg_gemm_args g)
{
    tg_gemm_steps s = {g.a_by_m, g.a_by_k, g.b_by_k, g.b_by_n, g.y_by_m, g.y_by_n, g.n_k, g.first};
    return s;
}

/* This core's share of the rows from `m_first` on, fewer than four: groups of outputs. */
TG_TEMPLATE void tg_gemm_rows(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                              tg_gemm_args g, int m_first, int rows, int core_id, int core_count)
{
    int start, stop, width = tg_gemm_group(rows * g.n_n, core_count);
    int groups = width == 8 ? (g.n_n + 7) / 8 : width == 4 ? (g.n_n + 3) / 4 : g.n_n;
    tg_share(rows * groups, core_id, core_count, &start, &stop);
    for (int unit = start, count; unit < stop; unit += count) {
        int m = rows == 1 ? 0 : unit / groups, n = unit - m * groups, n_stop;
        count = tg_min(groups - n, stop - unit);
        m += m_first;
        n *= width;
        n_stop = tg_min(n + count * width, g.n_n);
        tg_gemm_steps s = tg_gemm_steps_of(g);
        TG_GEMM_CALL(row, g, 1, 1, a + m * g.a_by_m, b + n * g.b_by_n, y + m * g.y_by_m + n * g.y_by_n, &s, n_stop - n);
        tg_gemm_finish(c, y, g, m, m + 1, n, n_stop);
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
    if (m_blocks * n_blocks > 0) {
        tg_share(m_blocks * n_blocks, core_id, core_count, &start, &stop);
        for (int block = start, count; block < stop; block += count) {
            int m = block / n_blocks, n = block - m * n_blocks;
            count = tg_min(n_blocks - n, stop - block);
            m *= 4;
            n *= 4;
            tg_gemm_steps s = tg_gemm_steps_of(g);
            TG_GEMM_CALL(blocks, g, TG_LITERALLY(g.a_by_m == 1), TG_LITERALLY(g.y_by_n == 1), a + m * g.a_by_m,
                         b + n * g.b_by_n, y + m * g.y_by_m + n * g.y_by_n, &s, count);
            tg_gemm_finish(c, y, g, m, m + 4, n, n + 4 * count);
        }
    }
    int rows = g.n_m - m_whole, columns = g.n_n - n_whole;
    if (rows > 0)
        tg_gemm_rows(a, b, c, y, g, m_whole, rows, core_id, core_count);
    if (columns > 0 && m_whole > 0) { /* right of the blocks: rows of the transposed product */
        tg_gemm_args t = g;
        t.a_by_k = g.b_by_k;
        t.b_by_k = g.a_by_k;
        t.b_by_n = g.a_by_m;
        t.y_by_n = g.y_by_m;
        int width = tg_gemm_group(columns * m_whole, core_count), groups = (m_whole + width - 1) / width;
        tg_share(columns * groups, core_id, core_count, &start, &stop);
        for (int unit = start, count; unit < stop; unit += count) {
            int n = columns == 1 ? 0 : unit / groups, m = unit - n * groups, m_stop;
            count = tg_min(groups - m, stop - unit);
            n += n_whole;
            m *= width;
            m_stop = tg_min(m + count * width, m_whole);
            tg_gemm_steps s = tg_gemm_steps_of(t);
            TG_GEMM_CALL(row, t, 1, 1, b + n * g.b_by_n, a + m * g.a_by_m, y + m * g.y_by_m + n * g.y_by_n, &s,
                         m_stop - m);
            tg_gemm_finish(c, y, g, m, m_stop, n, n + 1);
        }
    }
}

#endif
