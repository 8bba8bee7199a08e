/* Outer products that never exist as a matrix: y(m,n) = VALUE, an expression of `g` = fma(u(m), v(n), 0), as Gemm with
 * one k computes it, and of `old` = w(m,n). Blocks of 4x4 elements, which the cores share; each is read before it is
 * written, so y may be w. */
#ifndef TG_OUTER_H
#define TG_OUTER_H
#include "tg_block.h"

typedef struct {
    int32_t n_m, n_n;
    int32_t w_by_m, y_by_m;
} tg_outer_args;

#define TG_OUTER_ONE(U, V, W, Y, VALUE)                                                                                \
    {                                                                                                                  \
        const float g = TG_FMA((U), (V), 0.0f), old = (W);                                                             \
        (void)old;                                                                                                     \
        Y = (VALUE);                                                                                                   \
    }
#define TG_OUTER_U(i) const float u##i = u[m + i];
#define TG_OUTER_FROM(i) TG_MEM const float *w##i = w + (m + i) * p->w_by_m + n;
#define TG_OUTER_TO(i) TG_MEM float *y##i = y + (m + i) * p->y_by_m + n;
#define TG_OUTER_V(j) const float v##j = column[j];
#define TG_OUTER_ROW(i, VALUE)                                                                                         \
    {                                                                                                                  \
        float o0, o1, o2, o3;                                                                                          \
        TG_OUTER_ONE(u##i, v0, w##i[0], o0, VALUE)                                                                     \
        TG_OUTER_ONE(u##i, v1, w##i[1], o1, VALUE)                                                                     \
        TG_OUTER_ONE(u##i, v2, w##i[2], o2, VALUE)                                                                     \
        TG_OUTER_ONE(u##i, v3, w##i[3], o3, VALUE)                                                                     \
        y##i[0] = o0;                                                                                                  \
        y##i[1] = o1;                                                                                                  \
        y##i[2] = o2;                                                                                                  \
        y##i[3] = o3;                                                                                                  \
        w##i += 4;                                                                                                     \
        y##i += 4;                                                                                                     \
    }
#define TG_OUTER_BLOCKS(VALUE)                                                                                         \
    TG_ROW4(TG_OUTER_U)                                                                                                \
    TG_ROW4(TG_OUTER_FROM)                                                                                             \
    TG_ROW4(TG_OUTER_TO)                                                                                               \
    for (int quad = 0; quad < count; quad++, column += 4) {                                                            \
        TG_ROW4(TG_OUTER_V)                                                                                            \
        TG_OUTER_ROW(0, VALUE)                                                                                         \
        TG_OUTER_ROW(1, VALUE)                                                                                         \
        TG_OUTER_ROW(2, VALUE)                                                                                         \
        TG_OUTER_ROW(3, VALUE)                                                                                         \
    }
#define TG_OUTER(VALUE)                                                                                                \
    int quads = p->n_n / 4, m_whole = p->n_m - p->n_m % 4, start, stop;                                                \
    tg_share(m_whole / 4 * quads, core_id, core_count, &start, &stop);                                                 \
    for (int block = start, count; block < stop; block += count) {                                                     \
        int m = block / quads, n = block - m * quads;                                                                  \
        count = tg_min(quads - n, stop - block);                                                                       \
        m *= 4;                                                                                                        \
        n *= 4;                                                                                                        \
        TG_MEM const float *column = v + n;                                                                            \
        TG_OUTER_BLOCKS(VALUE)                                                                                         \
    }                                                                                                                  \
    if (m_whole < p->n_m) { /* rows below the blocks, shared by columns */                                             \
        tg_share(p->n_n, core_id, core_count, &start, &stop);                                                          \
        for (int m = m_whole; m < p->n_m; m++)                                                                         \
            TG_UNROLLED for (int n = start; n < stop; n++)                                                             \
                TG_OUTER_ONE(u[m], v[n], w[m * p->w_by_m + n], y[m * p->y_by_m + n], VALUE)                            \
    }                                                                                                                  \
    if (4 * quads < p->n_n) { /* columns right of them, shared by rows */                                              \
        tg_share(m_whole, core_id, core_count, &start, &stop);                                                         \
        for (int m = start; m < stop; m++)                                                                             \
            for (int n = 4 * quads; n < p->n_n; n++)                                                                   \
                TG_OUTER_ONE(u[m], v[n], w[m * p->w_by_m + n], y[m * p->y_by_m + n], VALUE)                            \
    }

#endif
