/* DenseGradSGD: dx(n) = sum over m of u(m) w(m,n), and y(m,n) = fma(-lr, fma(u(m), v(n), 0), w(m,n)). The cores share the
 * columns, eight at a time; each element is read before it is written, so y may be w. */
#include "tg_block.h"

typedef struct {
    int32_t n_m, n_n;
    int32_t w_by_m, y_by_m;
    int32_t first;
} tg_dense_grad_args;

#define TG_DENSE_SUM(j) float s##j = p->first ? 0.0f : dx[n + j];
#define TG_DENSE_V(j) const float v##j = v[n + j];
#define TG_DENSE_OLD(j) const float w##j = from[j];
#define TG_DENSE_ADD(j) s##j = TG_FMA(row, w##j, s##j);
#define TG_DENSE_STEP(j) const float o##j = TG_FMA(step, TG_FMA(row, v##j, 0.0f), w##j);
#define TG_DENSE_STORE(j) to[j] = o##j;
#define TG_DENSE_END(j) dx[n + j] = s##j;

/* `ROW(F)` is F for each of the columns from n on. */
#define TG_DENSE_COLUMNS(ROW)                                                                                          \
    {                                                                                                                  \
        TG_MEM const float *from = w + n;                                                                              \
        TG_MEM float *to = y + n;                                                                                      \
        ROW(TG_DENSE_SUM)                                                                                              \
        ROW(TG_DENSE_V)                                                                                                \
        for (int m = 0; m < p->n_m; m++) {                                                                             \
            const float row = u[m];                                                                                    \
            ROW(TG_DENSE_OLD)                                                                                          \
            ROW(TG_DENSE_ADD)                                                                                          \
            ROW(TG_DENSE_STEP)                                                                                         \
            ROW(TG_DENSE_STORE)                                                                                        \
            from += p->w_by_m;                                                                                         \
            to += p->y_by_m;                                                                                           \
        }                                                                                                              \
        ROW(TG_DENSE_END)                                                                                              \
    }
#define TG_DENSE_ONE(F) F(0)

TG_KERNEL void tg_dense_grad_sgd(TG_MEM const float *u, TG_MEM const float *v, TG_MEM const float *w,
                                 TG_MEM const float *lr, TG_MEM float *y, TG_MEM float *dx,
                                 TG_ARG const tg_dense_grad_args *p, int core_id, int core_count)
{
    const float step = -*lr;
    int blocks = p->n_n / 8, start, stop;
    tg_share(blocks, core_id, core_count, &start, &stop);
    for (int n = 8 * start; n < 8 * stop; n += 8)
        TG_DENSE_COLUMNS(TG_ROW8)
    tg_share(p->n_n - 8 * blocks, core_id, core_count, &start, &stop);
    for (int n = 8 * blocks + start; n < 8 * blocks + stop; n++)
        TG_DENSE_COLUMNS(TG_DENSE_ONE)
}
