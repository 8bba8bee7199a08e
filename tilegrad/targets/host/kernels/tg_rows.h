/* Reductions along rows, sixteen rows at a time: columns lie transposed in a panel, so that lane l of its vectors is row
 * l. Each row has one accumulator and takes its elements in order. */
#ifndef TG_ROWS_H
#define TG_ROWS_H
#include "tg_vector.h"

#define TG_ROWS_DEPTH 128

/* The statement is run for each column k of `rows` rows of n, `a` being that column of x. */
#define TG_EACH_COLUMN(x, x_by, rows, n, STATEMENT)                                                                    \
    for (int start_k = 0; start_k < (n); start_k += TG_ROWS_DEPTH) {                                                   \
        TG_ALIGNED float panel_a[TG_ROWS_DEPTH * 16];                                                                  \
        const int stop_k = tg_min(start_k + TG_ROWS_DEPTH, n);                                                         \
        tg_panel_transpose((x) + start_k, x_by, stop_k - start_k, rows, panel_a, 16);                                  \
        for (int k = start_k; k < stop_k; k++) {                                                                       \
            const tg_v16 a = tg_v_load(panel_a + 16 * (k - start_k));                                                  \
            STATEMENT                                                                                                  \
        }                                                                                                              \
    }

/* The same with `b` that column of z. */
#define TG_EACH_COLUMN_OF_TWO(x, x_by, z, z_by, rows, n, STATEMENT)                                                    \
    for (int start_k = 0; start_k < (n); start_k += TG_ROWS_DEPTH) {                                                   \
        TG_ALIGNED float panel_a[TG_ROWS_DEPTH * 16], panel_b[TG_ROWS_DEPTH * 16];                                     \
        const int stop_k = tg_min(start_k + TG_ROWS_DEPTH, n);                                                         \
        tg_panel_transpose((x) + start_k, x_by, stop_k - start_k, rows, panel_a, 16);                                  \
        tg_panel_transpose((z) + start_k, z_by, stop_k - start_k, rows, panel_b, 16);                                  \
        for (int k = start_k; k < stop_k; k++) {                                                                       \
            const tg_v16 a = tg_v_load(panel_a + 16 * (k - start_k)), b = tg_v_load(panel_b + 16 * (k - start_k));     \
            STATEMENT                                                                                                  \
        }                                                                                                              \
    }

#endif
