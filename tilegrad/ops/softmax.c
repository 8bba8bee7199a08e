/* Softmax and LogSoftmax along the middle axis of x [o, k, s], and their gradients from the output. Rows (o, s) in
 * parallel. Rows of unit stride get their own loops. */
#include "tg_softmax.h"

typedef struct {
    int32_t n_o, n_k, n_s;
    int32_t x_by_o, x_by_k, y_by_o, y_by_k;
} tg_softmax_args;

typedef struct {
    int32_t n_o, n_k, n_s;
    int32_t dy_by_o, dy_by_k, y_by_o, y_by_k, dx_by_o, dx_by_k;
} tg_softmax_grad_args;

/* The statement is run for each row of this core's share. */
#define TG_SOFTMAX_ROWS(STATEMENT)                                                                                     \
    int start, stop;                                                                                                   \
    tg_share(p->n_o * p->n_s, core_id, core_count, &start, &stop);                                                     \
    for (int row = start; row < stop; row++) {                                                                         \
        int o = row / p->n_s, s = row - o * p->n_s;                                                                    \
        STATEMENT                                                                                                      \
    }

#define TG_SOFTMAX_FORWARD(ROW)                                                                                        \
    if (p->x_by_k == 1 && p->y_by_k == 1) {                                                                            \
        TG_SOFTMAX_ROWS(ROW(x + o * p->x_by_o + s, 1, y + o * p->y_by_o + s, 1, p->n_k);)                              \
    } else {                                                                                                           \
        TG_SOFTMAX_ROWS(ROW(x + o * p->x_by_o + s, p->x_by_k, y + o * p->y_by_o + s, p->y_by_k, p->n_k);)              \
    }

TG_KERNEL void tg_softmax(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_softmax_args *p, int core_id,
                          int core_count)
{
    TG_SOFTMAX_FORWARD(tg_softmax_row)
}

TG_KERNEL void tg_log_softmax(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_softmax_args *p, int core_id,
                              int core_count)
{
    TG_SOFTMAX_FORWARD(tg_log_softmax_row)
}

/* dx = y * (dy - sum(dy * y)) */
TG_INLINE void tg_softmax_grad_row(TG_MEM const float *dy, int dy_by, TG_MEM const float *y, int y_by, TG_MEM float *dx,
                                   int dx_by, int n)
{
    float sum = 0.0f;
    for (int i = 0; i < n; i++)
        sum = TG_FMA(dy[i * dy_by], y[i * y_by], sum);
    for (int i = 0; i < n; i++)
        dx[i * dx_by] = y[i * y_by] * (dy[i * dy_by] - sum);
}

/* dx = dy - exp(y) * sum(dy) */
TG_INLINE void tg_log_softmax_grad_row(TG_MEM const float *dy, int dy_by, TG_MEM const float *y, int y_by,
                                       TG_MEM float *dx, int dx_by, int n)
{
    float sum = 0.0f;
    for (int i = 0; i < n; i++)
        sum = sum + dy[i * dy_by];
    for (int i = 0; i < n; i++)
        dx[i * dx_by] = TG_FMA(-tg_exp(y[i * y_by]), sum, dy[i * dy_by]);
}

#define TG_SOFTMAX_BACKWARD(ROW)                                                                                       \
    if (p->dy_by_k == 1 && p->y_by_k == 1 && p->dx_by_k == 1) {                                                        \
        TG_SOFTMAX_ROWS(ROW(dy + o * p->dy_by_o + s, 1, y + o * p->y_by_o + s, 1, dx + o * p->dx_by_o + s, 1, p->n_k);) \
    } else {                                                                                                           \
        TG_SOFTMAX_ROWS(ROW(dy + o * p->dy_by_o + s, p->dy_by_k, y + o * p->y_by_o + s, p->y_by_k,                     \
                            dx + o * p->dx_by_o + s, p->dx_by_k, p->n_k);)                                             \
    }

TG_KERNEL void tg_softmax_grad(TG_MEM const float *dy, TG_MEM const float *y, TG_MEM float *dx,
                               TG_ARG const tg_softmax_grad_args *p, int core_id, int core_count)
{
    TG_SOFTMAX_BACKWARD(tg_softmax_grad_row)
}

TG_KERNEL void tg_log_softmax_grad(TG_MEM const float *dy, TG_MEM const float *y, TG_MEM float *dx,
                                   TG_ARG const tg_softmax_grad_args *p, int core_id, int core_count)
{
    TG_SOFTMAX_BACKWARD(tg_log_softmax_grad_row)
}
