/* DenseSGD: y(m,n) = fma(-lr, fma(u(m), v(n), 0), w(m,n)), c(m) = fma(-lr, u(m), b(m)), and dx(n) = sum over m of
 * u(m) w(m,n), with `relu` where v(n) is above zero. Little code rather than fast code: cores share rows, or, where there
 * is a dx, columns. Each element is read before it is written, so y may be w, and c may be b. */
#include "tg_kernel.h"
#include "tg_relu.h"

typedef struct {
    int32_t n_m, n_n;
    int32_t w_by_m, y_by_m;
    int32_t first, last, relu;
} tg_dense_sgd_args;

TG_KERNEL void tg_dense_sgd(TG_MEM const float *u, TG_MEM const float *v, TG_MEM const float *w, TG_MEM const float *b,
                            TG_MEM const float *lr, TG_MEM float *y, TG_MEM float *c, TG_MEM float *dx,
                            TG_ARG const tg_dense_sgd_args *p, int core_id, int core_count)
{
    const float step = -*lr;
    int start, stop;
    tg_share(p->n_m, core_id, core_count, &start, &stop);
    for (int m = start; m < stop; m++) {
        const float row = u[m];
        if (b != TG_NULL)
            c[m] = TG_FMA(step, row, b[m]);
        if (dx == TG_NULL) {
            TG_MEM const float *from = w + m * p->w_by_m;
            TG_MEM float *to = y + m * p->y_by_m;
            TG_UNROLLED for (int n = 0; n < p->n_n; n++)
                to[n] = TG_FMA(step, TG_FMA(row, v[n], 0.0f), from[n]);
        }
    }
    if (dx == TG_NULL)
        return;
    tg_share(p->n_n, core_id, core_count, &start, &stop);
    for (int n = start; n < stop; n++) {
        const float column = v[n];
        TG_MEM const float *from = w + n;
        TG_MEM float *to = y + n;
        float sum = p->first ? 0.0f : dx[n];
        for (int m = 0; m < p->n_m; m++, from += p->w_by_m, to += p->y_by_m) {
            const float row = u[m], old = *from;
            sum = TG_FMA(row, old, sum);
            *to = TG_FMA(step, TG_FMA(row, column, 0.0f), old);
        }
        dx[n] = p->relu && p->last ? tg_relu_grad_of(sum, column) : sum;
    }
}
