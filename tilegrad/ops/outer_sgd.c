/* OuterSGD: y = fma(-lr, g, w) with g = fma(u, v, 0): Gemm with one k, then SGD, without the matrix in between. */
#include "tg_kernel.h"

typedef struct {
    int32_t n_m, n_n;
    int32_t w_by_m, y_by_m;
} tg_outer_sgd_args;

TG_KERNEL void tg_outer_sgd(TG_MEM const float *u, TG_MEM const float *v, TG_MEM const float *w, TG_MEM const float *lr,
                            TG_MEM float *y, TG_ARG const tg_outer_sgd_args *p, int core_id, int core_count)
{
    const float step = -*lr;
    int start, stop;
    tg_share(p->n_m, core_id, core_count, &start, &stop);
    for (int m = start; m < stop; m++) {
        TG_MEM const float *from = w + m * p->w_by_m, *column = v;
        TG_MEM float *to = y + m * p->y_by_m;
        const float x = u[m];
        int n = p->n_n;
        for (; n >= 4; n -= 4) { /* all loads before the stores: `to` may be `from` */
            float g0 = TG_FMA(x, column[0], 0.0f), g1 = TG_FMA(x, column[1], 0.0f);
            float g2 = TG_FMA(x, column[2], 0.0f), g3 = TG_FMA(x, column[3], 0.0f);
            float w0 = from[0], w1 = from[1], w2 = from[2], w3 = from[3];
            to[0] = TG_FMA(step, g0, w0);
            to[1] = TG_FMA(step, g1, w1);
            to[2] = TG_FMA(step, g2, w2);
            to[3] = TG_FMA(step, g3, w3);
            column += 4;
            from += 4;
            to += 4;
        }
        for (; n > 0; n--)
            *to++ = TG_FMA(step, TG_FMA(x, *column++, 0.0f), *from++);
    }
}
