/* Matrices that change rows and columns, in blocks of sixteen by sixteen. */
#include "tg_copy.h"
#include "tg_vector.h"

TG_KERNEL void tg_transpose_b4(TG_MEM const tg_b4 *restrict x, TG_MEM tg_b4 *restrict y,
                               TG_ARG const tg_copy_args *p, int core_id, int core_count)
{
    const int blocks = (p->n_d6 + 15) / 16;
    int unit, end;
    if (p->x_by_d6 != 1 || p->y_by_d7 != 1 || p->n_d6 < 8 || p->n_d7 < 8) {
        TG_COPY(tg_b4)
        return;
    }
    tg_share(p->n_d0 * p->n_d1 * p->n_d2 * p->n_d3 * p->n_d4 * p->n_d5 * blocks, core_id, core_count, &unit, &end);
    for (; unit < end; unit++) {
        int rest = unit / blocks, row = (unit - rest * blocks) * 16, rows = tg_min(16, p->n_d6 - row);
        int ix = row, iy = row * p->y_by_d6;
        TG_COPY_START(5) TG_COPY_START(4) TG_COPY_START(3) TG_COPY_START(2) TG_COPY_START(1) TG_COPY_START(0)
        for (int column = 0; column < p->n_d7; column += 16) {
            const int columns = tg_min(16, p->n_d7 - column);
            const float *source = (const float *)x + ix + column * p->x_by_d7;
            float *target = (float *)y + iy + column;
            tg_v16 v[16];
            TG_UNROLL for (int i = 0; i < 16; i++)
                v[i] = tg_v_load_some(source + tg_min(i, columns - 1) * p->x_by_d7, tg_v_first(rows));
            tg_v_transpose(v);
            TG_UNROLL for (int i = 0; i < 16; i++)
            {
                if (i < rows)
                    tg_v_store_some(target + i * p->y_by_d6, tg_v_first(columns), v[i]);
            }
        }
    }
}
