/* OuterSGD: y = fma(-lr, g, w) with g = fma(u, v, 0): Gemm with one k, then SGD, without the matrix in between. */
#include "tg_outer.h"

TG_KERNEL void tg_outer_sgd(TG_MEM const float *u, TG_MEM const float *v, TG_MEM const float *w, TG_MEM const float *lr,
                            TG_MEM float *y, TG_ARG const tg_outer_args *p, int core_id, int core_count)
{
    const float step = -*lr;
    TG_OUTER(TG_FMA(step, g, old))
}
