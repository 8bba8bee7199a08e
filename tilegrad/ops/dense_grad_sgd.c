/* DenseGradSGD: dx(n) = sum over m of u(m) w(m,n), with `relu` where v(n) is above zero, and y(m,n) = fma(-lr, fma(u(m), v(n), 0), w(m,n)). The cores share the
 * columns, eight at a time; each element is read before it is written, so y may be w. */
#include "tg_block.h"
#include "tg_inner.h"
#include "tg_relu.h"

typedef struct {
    int32_t n_m, n_n;
    int32_t w_by_m, y_by_m;
    int32_t first, last, relu;
} tg_dense_grad_args;

#define TG_DENSE_SUM(j) float s##j = p->first ? 0.0f : dx[n + j];
#define TG_DENSE_V(j) const float v##j = v[n + j];
#define TG_DENSE_OLD(j) const float w##j = from[j];
#define TG_DENSE_ADD(j) s##j = TG_FMA(row, w##j, s##j);
#define TG_DENSE_STEP(j) const float o##j = TG_FMA(step, TG_FMA(row, v##j, 0.0f), w##j);
#define TG_DENSE_STORE(j) to[j] = o##j;
#define TG_DENSE_END(j) dx[n + j] = s##j;
#define TG_DENSE_RELU(j) dx[n + j] = tg_relu_read(dx + n + j, v + n + j, 1);

/* The columns from n on: `LOW(F)` and `HIGH(F)` are F for the first and the last of them. In two parts, so that all stays
 * in registers. */
#define TG_DENSE_PART(PART)                                                                                            \
    PART(TG_DENSE_OLD)                                                                                                 \
    PART(TG_DENSE_ADD)                                                                                                 \
    PART(TG_DENSE_STEP)                                                                                                \
    PART(TG_DENSE_STORE)
#define TG_DENSE_ROW(LOW, HIGH, M)                                                                                     \
    {                                                                                                                  \
        const float row = u[M];                                                                                        \
        TG_DENSE_PART(LOW)                                                                                             \
        TG_DENSE_PART(HIGH)                                                                                            \
        from += p->w_by_m;                                                                                             \
        to += p->y_by_m;                                                                                               \
    }
#define TG_DENSE_COLUMNS(LOW, HIGH)                                                                                    \
    {                                                                                                                  \
        TG_MEM const float *from = w + n;                                                                              \
        TG_MEM float *to = y + n;                                                                                      \
        LOW(TG_DENSE_SUM)                                                                                              \
        HIGH(TG_DENSE_SUM)                                                                                             \
        LOW(TG_DENSE_V)                                                                                                \
        HIGH(TG_DENSE_V)                                                                                               \
        for (int m = 0; m < p->n_m; m++) {                                                                             \
            TG_DENSE_ROW(LOW, HIGH, m)                                                                                 \
        }                                                                                                              \
        LOW(TG_DENSE_END)                                                                                              \
        HIGH(TG_DENSE_END)                                                                                             \
        if (has_relu) { /* from memory: the loop above needs the registers */                                          \
            LOW(TG_DENSE_RELU)                                                                                         \
            HIGH(TG_DENSE_RELU)                                                                                        \
        }                                                                                                              \
    }
#define TG_DENSE_HIGH(F) F(4) F(5) F(6) F(7)
#define TG_DENSE_ONE(F) F(0)
#define TG_DENSE_NONE(F)

TG_KERNEL void tg_dense_grad_sgd(TG_MEM const float *u, TG_MEM const float *v, TG_MEM const float *w,
                                 TG_MEM const float *lr, TG_MEM float *y, TG_MEM float *dx,
                                 TG_ARG const tg_dense_grad_args *p, int core_id, int core_count)
{
    const float step = -*lr;
    const int has_relu = p->relu && p->last;
    int blocks = p->n_n / 8, start, stop;
    tg_share(blocks, core_id, core_count, &start, &stop);
#ifdef TG_INNER_DENSE
    for (int n = 8 * start; n < 8 * stop && p->n_m > 0; n += 8) {
        tg_inner_dense(u, v + n, w + n, p->w_by_m, y + n, p->y_by_m, dx + n, step, p->first, p->n_m);
        for (int j = 0; has_relu && j < 8; j++)
            TG_DENSE_RELU(j)
    }
#else
    for (int n = 8 * start; n < 8 * stop; n += 8)
        TG_DENSE_COLUMNS(TG_ROW4, TG_DENSE_HIGH)
#endif
    tg_share(p->n_n - 8 * blocks, core_id, core_count, &start, &stop);
    for (int n = 8 * blocks + start; n < 8 * blocks + stop; n++)
        TG_DENSE_COLUMNS(TG_DENSE_ONE, TG_DENSE_NONE)
}
