/* Matrix product for the KV3 core, for Gemm, MatMul and 1x1 convolutions: y(m,n) = sum over k of a(m,k) b(k,n).
 *
 * A core has 64 registers of 64 bits and multiplies and adds four floats an instruction. So a block is four rows of eight
 * outputs, which lie beside each other in fours: 16 registers for the sums, four for what is loaded of b, two for each
 * row's a. Every output has one accumulator that takes k in ascending order: the bits are those of the portable header,
 * whose place this takes. Where there is no such core, a four is four floats, and its multiply-add is four. */
#ifndef TG_GEMM_H
#define TG_GEMM_H
#include "tg_block.h"
#include "tg_gemm_args.h"

#ifdef __kvx__
typedef float tg_four __attribute__((vector_size(16)));
#define TG_FOUR(...) {__VA_ARGS__}
#define TG_FOUR_AT(V, i) (V)[i]
#define TG_FOUR_FMA(A, B, S) __builtin_kvx_ffmawq((A), (B), (S), ".rn")
#else
typedef struct {
    float at[4];
} tg_four;
#define TG_FOUR(...) {{__VA_ARGS__}}
#define TG_FOUR_AT(V, i) (V).at[i]
TG_INLINE tg_four tg_four_fma(tg_four a, tg_four b, tg_four s)
{
    for (int i = 0; i < 4; i++)
        s.at[i] = TG_FMA(a.at[i], b.at[i], s.at[i]);
    return s;
}
#define TG_FOUR_FMA(A, B, S) tg_four_fma((A), (B), (S))
#endif

enum { TG_GEMM_WIDEST = 32, TG_GEMM_NARROWEST = 4 };

TG_TEMPLATE tg_four tg_four_load(TG_MEM const float *p, int step)
{
    tg_four v = TG_FOUR(p[0], p[step], p[2 * step], p[3 * step]);
    if (TG_LITERALLY(step == 1))
        __builtin_memcpy(&v, p, sizeof v); /* one load; nobody says that floats are aligned for it */
    return v;
}

TG_TEMPLATE void tg_four_store(TG_MEM float *p, int step, tg_four v)
{
    if (TG_LITERALLY(step == 1))
        __builtin_memcpy(p, &v, sizeof v);
    else
        for (int i = 0; i < 4; i++)
            p[i * step] = TG_FOUR_AT(v, i);
}

TG_TEMPLATE tg_four tg_four_of(float x)
{
    tg_four v = TG_FOUR(x, x, x, x);
    return v;
}

/* `rows` (4, 2 or 1) times `columns` outputs, `fours` (2 or 1) fours at a time; a step of 1 is literal. */
TG_TEMPLATE int tg_gemm_fours(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y, const tg_gemm_args *g,
                              int columns, int rows, int fours, int b_by_n, int y_by_n)
{
#define TG_FOURS_BEGIN(i)                                                                                              \
    tg_four s##i##0 = tg_four_of(0.0f), s##i##1 = s##i##0;                                                             \
    if (i < rows && !g->first) {                                                                                       \
        s##i##0 = tg_four_load(out + i * g->y_by_m, y_by_n);                                                           \
        if (fours == 2)                                                                                                \
            s##i##1 = tg_four_load(out + i * g->y_by_m + 4 * y_by_n, y_by_n);                                          \
    }
#define TG_FOURS_FMA(i)                                                                                                \
    if (i < rows) {                                                                                                    \
        const tg_four x = tg_four_of(p[i * a_by_m]);                                                                   \
        s##i##0 = TG_FOUR_FMA(x, b0, s##i##0);                                                                         \
        if (fours == 2)                                                                                                \
            s##i##1 = TG_FOUR_FMA(x, b1, s##i##1);                                                                     \
    }
#define TG_FOURS_END(i)                                                                                                \
    if (i < rows) {                                                                                                    \
        tg_four_store(out + i * g->y_by_m, y_by_n, s##i##0);                                                           \
        if (fours == 2)                                                                                                \
            tg_four_store(out + i * g->y_by_m + 4 * y_by_n, y_by_n, s##i##1);                                          \
    }
    const int a_by_m = g->a_by_m, a_by_k = g->a_by_k, b_by_k = g->b_by_k, width = 4 * fours;
    int done = 0;
    for (; columns - done >= width; done += width) {
        TG_MEM const float *p = a, *q = b + done * b_by_n;
        TG_MEM float *out = y + done * y_by_n;
        TG_ROW4(TG_FOURS_BEGIN)
        for (int k = g->n_k; k > 0; k--, p += a_by_k, q += b_by_k) {
            const tg_four b0 = tg_four_load(q, b_by_n), b1 = fours == 2 ? tg_four_load(q + 4 * b_by_n, b_by_n) : b0;
            TG_ROW4(TG_FOURS_FMA)
        }
        TG_ROW4(TG_FOURS_END)
    }
    return done;
}

/* What is left beside the fours, output by output. */
TG_APART void tg_gemm_left(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y, const tg_gemm_args *g,
                           int rows, int columns)
{
    for (int m = 0; m < rows; m++)
        for (int n = 0; n < columns; n++) {
            TG_MEM const float *p = a + m * g->a_by_m, *q = b + n * g->b_by_n;
            TG_MEM float *out = y + m * g->y_by_m + n * g->y_by_n;
            float sum = g->first ? 0.0f : *out;
            for (int k = g->n_k; k > 0; k--, p += g->a_by_k, q += g->b_by_k)
                sum = TG_FMA(*p, *q, sum);
            *out = sum;
        }
}

/* The forms that are used, each once in the machine code. */
#define TG_GEMM_STRIP(NAME, ROWS, B_BY_N, Y_BY_N)                                                                      \
    TG_APART void tg_gemm_strip_##NAME(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y,                  \
                                       const tg_gemm_args *g, int columns)                                             \
    {                                                                                                                  \
        int done = tg_gemm_fours(a, b, y, g, columns, ROWS, 2, B_BY_N, Y_BY_N);                                        \
        columns -= done, b += done * (B_BY_N), y += done * (Y_BY_N);                                                   \
        done = tg_gemm_fours(a, b, y, g, columns, ROWS, 1, B_BY_N, Y_BY_N);                                            \
        tg_gemm_left(a, b + done * (B_BY_N), y + done * (Y_BY_N), g, ROWS, columns - done);                            \
    }
TG_GEMM_STRIP(4_dense, 4, 1, 1)
TG_GEMM_STRIP(2_dense, 2, 1, 1)
TG_GEMM_STRIP(1_dense, 1, 1, 1)
TG_GEMM_STRIP(4_any, 4, g->b_by_n, g->y_by_n)
TG_GEMM_STRIP(2_any, 2, g->b_by_n, g->y_by_n)
TG_GEMM_STRIP(1_any, 1, g->b_by_n, g->y_by_n)

/* `rows` (up to four) times `columns` outputs. */
TG_APART void tg_gemm_strip(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y, const tg_gemm_args *g,
                            int rows, int columns)
{
    const int is_dense = g->b_by_n == 1 && g->y_by_n == 1;
    for (int count; rows > 0; rows -= count, a += count * g->a_by_m, y += count * g->y_by_m) {
        count = rows >= 4 ? 4 : rows >= 2 ? 2 : 1;
        if (is_dense && count == 4)
            tg_gemm_strip_4_dense(a, b, y, g, columns);
        else if (is_dense && count == 2)
            tg_gemm_strip_2_dense(a, b, y, g, columns);
        else if (is_dense)
            tg_gemm_strip_1_dense(a, b, y, g, columns);
        else if (count == 4)
            tg_gemm_strip_4_any(a, b, y, g, columns);
        else if (count == 2)
            tg_gemm_strip_2_any(a, b, y, g, columns);
        else
            tg_gemm_strip_1_any(a, b, y, g, columns);
    }
}

/* This core's share of the whole tile: strips of four rows and as many columns as let all cores work. Where there are
 * fewer columns than a four has, and more rows, it is the transposed product. */
TG_APART void tg_gemm_shared(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                             const tg_gemm_args *args, int core_id, int core_count)
{
    tg_gemm_args g = *args;
    if (g.n_n < 4 && g.n_n < g.n_m) {
        TG_MEM const float *other = a;
        a = b;
        b = other;
        g.n_m = args->n_n, g.n_n = args->n_m;
        g.a_by_m = args->b_by_n, g.a_by_k = args->b_by_k, g.b_by_k = args->a_by_k, g.b_by_n = args->a_by_m;
        g.c_by_m = args->c_by_n, g.c_by_n = args->c_by_m, g.y_by_m = args->y_by_n, g.y_by_n = args->y_by_m;
    }
    const int fours = (g.n_m + 3) / 4;
    int width = TG_GEMM_WIDEST, start, stop;
    while (width > TG_GEMM_NARROWEST && fours * ((g.n_n + width - 1) / width) < core_count)
        width /= 2;
    const int strips = (g.n_n + width - 1) / width;
    tg_share(fours * strips, core_id, core_count, &start, &stop);
    for (int unit = start, count; unit < stop; unit += count) {
        int m = unit / strips, n = unit - m * strips;
        count = tg_min(strips - n, stop - unit);
        m *= 4;
        n *= width;
        const int rows = tg_min(4, g.n_m - m), n_stop = tg_min(n + count * width, g.n_n);
        tg_gemm_strip(a + m * g.a_by_m, b + n * g.b_by_n, y + m * g.y_by_m + n * g.y_by_n, &g, rows, n_stop - n);
        tg_gemm_finish(c, y, g, m, m + rows, n, n_stop);
    }
}

TG_TEMPLATE void tg_gemm(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                         tg_gemm_args g, int core_id, int core_count)
{
    tg_gemm_shared(a, b, c, y, &g, core_id, core_count);
}

#endif
