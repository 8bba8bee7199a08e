/* OuterSGD: y = fma(-lr, g, w) with g = fma(u, v, 0): Gemm with one k, then SGD, without the matrix in between. Blocks of
 * 4x4 elements, which the cores share; each is read before it is written, so `y` may be `w`. */
#include "tg_block.h"

typedef struct {
    int32_t n_m, n_n;
    int32_t w_by_m, y_by_m;
} tg_outer_sgd_args;

#define TG_OUTER(U, V, W) TG_FMA(step, TG_FMA((U), (V), 0.0f), (W))

TG_TEMPLATE void tg_outer_one(TG_MEM const float *u, TG_MEM const float *v, TG_MEM const float *w, float step,
                              TG_MEM float *y, TG_ARG const tg_outer_sgd_args *p, int m, int n)
{
    y[m * p->y_by_m + n] = TG_OUTER(u[m], v[n], w[m * p->w_by_m + n]);
}

TG_KERNEL void tg_outer_sgd(TG_MEM const float *u, TG_MEM const float *v, TG_MEM const float *w, TG_MEM const float *lr,
                            TG_MEM float *y, TG_ARG const tg_outer_sgd_args *p, int core_id, int core_count)
{
#define TG_OUTER_U(i) const float u##i = u[m + i];
#define TG_OUTER_FROM(i) TG_MEM const float *w##i = w + (m + i) * p->w_by_m + n;
#define TG_OUTER_TO(i) TG_MEM float *y##i = y + (m + i) * p->y_by_m + n;
#define TG_OUTER_V(j) const float v##j = column[j];
#define TG_OUTER_ROW(i)                                                                                                \
    {                                                                                                                  \
        const float o0 = TG_OUTER(u##i, v0, w##i[0]), o1 = TG_OUTER(u##i, v1, w##i[1]);                                \
        const float o2 = TG_OUTER(u##i, v2, w##i[2]), o3 = TG_OUTER(u##i, v3, w##i[3]);                                \
        y##i[0] = o0;                                                                                                  \
        y##i[1] = o1;                                                                                                  \
        y##i[2] = o2;                                                                                                  \
        y##i[3] = o3;                                                                                                  \
        w##i += 4;                                                                                                     \
        y##i += 4;                                                                                                     \
    }
    const float step = -*lr;
    int quads = p->n_n / 4, m_whole = p->n_m - p->n_m % 4, start, stop;
    tg_share(m_whole / 4 * quads, core_id, core_count, &start, &stop);
    for (int block = start, count; block < stop; block += count) {
        int m = block / quads, n = block - m * quads;
        count = tg_min(quads - n, stop - block);
        m *= 4;
        n *= 4;
        TG_MEM const float *column = v + n;
        TG_ROW4(TG_OUTER_U)
        TG_ROW4(TG_OUTER_FROM)
        TG_ROW4(TG_OUTER_TO)
        for (int quad = 0; quad < count; quad++, column += 4) {
            TG_ROW4(TG_OUTER_V)
            TG_ROW4(TG_OUTER_ROW)
        }
    }
    if (m_whole < p->n_m) { /* rows below the blocks, shared by columns */
        tg_share(p->n_n, core_id, core_count, &start, &stop);
        for (int m = m_whole; m < p->n_m; m++)
            TG_UNROLLED for (int n = start; n < stop; n++)
                tg_outer_one(u, v, w, step, y, p, m, n);
    }
    if (4 * quads < p->n_n) { /* columns right of them, shared by rows */
        tg_share(m_whole, core_id, core_count, &start, &stop);
        for (int m = start; m < stop; m++)
            for (int n = 4 * quads; n < p->n_n; n++)
                tg_outer_one(u, v, w, step, y, p, m, n);
    }
}
