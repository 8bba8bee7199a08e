/* OuterSGD: y = fma(-lr, g, w) with g = fma(u, v, 0): Gemm with one k, then SGD, without the matrix in between. */
#include "tg_inner.h"
#include "tg_outer.h"

TG_KERNEL void tg_outer_sgd(TG_MEM const float *u, TG_MEM const float *v, TG_MEM const float *w, TG_MEM const float *lr,
                            TG_MEM float *y, TG_ARG const tg_outer_args *p, int core_id, int core_count)
{
    const float step = -*lr;
#ifdef TG_INNER_OUTER
#undef TG_OUTER_BLOCKS
#define TG_OUTER_BLOCKS(VALUE)                                                                                         \
    tg_inner_outer(u + m, column, w + m * p->w_by_m + n, p->w_by_m, y + m * p->y_by_m + n, p->y_by_m, step, count);
#endif
    TG_OUTER(TG_FMA(step, g, old))
}
