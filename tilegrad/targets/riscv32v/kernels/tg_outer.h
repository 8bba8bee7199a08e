/* Outer products that never exist as a matrix: y(m,n) = VALUE, an expression of `g` = fma(u(m), v(n), 0), as Gemm with
 * one k computes it, and of `old` = w(m,n). Plain loops over a row, which become vectors. y may be w: an element is read
 * before it is written, and no other one depends on it. */
#ifndef TG_OUTER_H
#define TG_OUTER_H
#include "tg_block.h"

typedef struct {
    int32_t n_m, n_n;
    int32_t w_by_m, y_by_m;
} tg_outer_args;

#define TG_OUTER(VALUE)                                                                                                \
    int m_start = 0, m_stop = p->n_m, n_start = 0, n_stop = p->n_n;                                                    \
    if (p->n_m >= core_count)                                                                                          \
        tg_share(p->n_m, core_id, core_count, &m_start, &m_stop);                                                      \
    else                                                                                                               \
        tg_share(p->n_n, core_id, core_count, &n_start, &n_stop);                                                      \
    for (int m = m_start; m < m_stop; m++) {                                                                           \
        const float factor = u[m];                                                                                     \
        const float *from = w + m * p->w_by_m;                                                                         \
        float *to = y + m * p->y_by_m;                                                                                 \
        _Pragma("clang loop vectorize(assume_safety)") for (int n = n_start; n < n_stop; n++)                          \
        {                                                                                                              \
            const float g = TG_FMA(factor, v[n], 0.0f), old = from[n];                                                 \
            (void)old;                                                                                                 \
            to[n] = (VALUE);                                                                                           \
        }                                                                                                              \
    }

#endif
