/* Rows of unit stride, sixteen at a time: their largest elements and their sums. */
#include "tg_rows.h"
#include "tg_softmax.h"

TG_KERNEL void tg_softmax(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_softmax_args *p, int core_id,
                          int core_count)
{
    int from, to;
    if (p->x_by_k != 1 || p->y_by_k != 1 || p->n_s != 1) {
        TG_SOFTMAX_ROWS(tg_softmax_row(x + o * p->x_by_o + s, p->x_by_k, y + o * p->y_by_o + s, p->y_by_k, p->n_k);)
        return;
    }
    tg_share(p->n_o, core_id, core_count, &from, &to);
    for (int o = from; o < to; o += 16) {
        const int rows = tg_min(16, to - o);
        const float *in = x + o * p->x_by_o;
        float *out = y + o * p->y_by_o;
        TG_ALIGNED float lanes[16];
        tg_v16 largest = tg_v_set(-TG_INFINITY), sum = tg_v_set(0.0f);
        TG_EACH_COLUMN(in, p->x_by_o, rows, p->n_k, largest = tg_v_max(a, largest);)
        tg_v_store(lanes, largest);
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < p->n_k; i++)
                out[r * p->y_by_o + i] = tg_exp(in[r * p->x_by_o + i] - lanes[r]);
        TG_EACH_COLUMN(out, p->y_by_o, rows, p->n_k, sum = tg_v_add(sum, a);)
        tg_v_store(lanes, sum);
        for (int r = 0; r < rows; r++) {
            const float scale = 1.0f / lanes[r];
            for (int i = 0; i < p->n_k; i++)
                out[r * p->y_by_o + i] = out[r * p->y_by_o + i] * scale;
        }
    }
}

TG_KERNEL void tg_softmax_grad(TG_MEM const float *dy, TG_MEM const float *y, TG_MEM float *dx,
                               TG_ARG const tg_softmax_grad_args *p, int core_id, int core_count)
{
    int from, to;
    if (p->dy_by_k != 1 || p->y_by_k != 1 || p->dx_by_k != 1 || p->n_s != 1) {
        TG_SOFTMAX_ROWS(tg_softmax_grad_row(dy + o * p->dy_by_o + s, p->dy_by_k, y + o * p->y_by_o + s, p->y_by_k,
                                            dx + o * p->dx_by_o + s, p->dx_by_k, p->n_k);)
        return;
    }
    tg_share(p->n_o, core_id, core_count, &from, &to);
    for (int o = from; o < to; o += 16) {
        const int rows = tg_min(16, to - o);
        const float *gradient = dy + o * p->dy_by_o, *in = y + o * p->y_by_o;
        float *out = dx + o * p->dx_by_o;
        TG_ALIGNED float sums[16];
        tg_v16 sum = tg_v_set(0.0f);
        TG_EACH_COLUMN_OF_TWO(gradient, p->dy_by_o, in, p->y_by_o, rows, p->n_k, sum = tg_v_fma(a, b, sum);)
        tg_v_store(sums, sum);
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < p->n_k; i++)
                out[r * p->dx_by_o + i] = in[r * p->y_by_o + i] * (gradient[r * p->dy_by_o + i] - sums[r]);
    }
}
