/* Sixteen channels at a time. */
#include "tg_elementwise.h"
#include "tg_normalize.h"
#include "tg_rows.h"

TG_KERNEL void tg_batch_norm_dots(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *mean,
                                  TG_MEM const float *spread, TG_MEM float *sum, TG_MEM float *dot,
                                  TG_ARG const tg_normalize_dots_args *p, int core_id, int core_count)
{
    int at, stop;
    if (p->n_d != 1 || p->sum_by_g != 1 || p->dot_by_g != 1 || p->mean_by_g != 1) {
        tg_normalize_dots(dy, x, mean, spread, sum, dot, p, core_id, core_count);
        return;
    }
    tg_share(p->n_o * p->n_g, core_id, core_count, &at, &stop);
    for (int rows; at < stop; at += rows) {
        const int o = at / p->n_g, g = at - o * p->n_g;
        rows = tg_min(16, tg_min(stop - at, p->n_g - g));
        const uint32_t exist = tg_v_first(rows);
        const tg_v16 centers = tg_v_load_some(mean + o * p->mean_by_o + g, exist);
        float *sums = sum + o * p->sum_by_o + g, *dots = dot + o * p->dot_by_o + g;
        tg_v16 total = p->first ? tg_v_set(0.0f) : tg_v_load_some(sums, exist);
        tg_v16 product = p->first ? tg_v_set(0.0f) : tg_v_load_some(dots, exist);
        TG_EACH_COLUMN_OF_TWO(dy + o * p->dy_by_o + g * p->dy_by_g, p->dy_by_g, x + o * p->x_by_o + g * p->x_by_g,
                              p->x_by_g, rows, p->n_s, {
                                  total = tg_v_add(total, a);
                                  product = tg_v_fma(a, tg_v_sub(b, centers), product);
                              })
        tg_v_store_some(sums, exist, total);
        tg_v_store_some(dots, exist, product);
        for (int r = 0; p->last && r < rows; r++)
            dots[r] = dots[r] * spread[o * p->spread_by_o + (g + r) * p->spread_by_g];
    }
}
