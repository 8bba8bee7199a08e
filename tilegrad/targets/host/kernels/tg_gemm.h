/* Matrix product for Gemm, MatMul and convolutions: y(m,n) = sum over k of a(m,k) b(k,n), vectors along n.
 *
 * Every output has one accumulator and takes k in ascending order, so any tile, block shape and core count gives the
 * same bits. Blocks of up to 8 x 32 outputs in registers; where b does not run along n, a panel of it is transposed on
 * the stack. A long k is cut into blocks that continue the sums they find in y. */
#ifndef TG_GEMM_H
#define TG_GEMM_H
#include "tg_gemm_args.h"
#include "tg_vector.h"

#define TG_PANEL_DEPTH 128 /* of k */
#define TG_PANEL_WIDTH 32

/* Up to 128 columns from `y` on, for n_k of k. b's row k begins at b + k * b_by_k; a(m,k) is a[m * a_by_m + k * a_by_k], or
 * with a table a[m * a_by_m + a_at[k]]. Where `taken` is not null, its masks, two for each k, say which columns' sums k
 * belongs to. Column n is y[y_at[n]], or y[n] where y_at is null. The bias, if any, is one number per row, added last. */
typedef struct {
    int n_m, n_n, n_k, a_by_m, a_by_k, b_by_k, y_by_m, first;
    const int32_t *a_at, *y_at;
    const float *a, *b, *bias;
    const uint16_t *taken;
    float *y;
} tg_product;

/* How a block reads its operands: all columns exist, or not all do; or a has a table and all columns are in memory, and
 * maybe some sums skip some k. */
#define TG_PLAIN 0
#define TG_NARROW 1
#define TG_TABLE 2
#define TG_MASKED 3

/* The first `height` rows by `width` vectors; y is dense. Rows of a are found by their distance: eight pointers would fill
 * the registers. */
TG_TEMPLATE void tg_product_block(const tg_product *p, int height, int width, int how)
{
    const int64_t by_m = (int64_t)sizeof(float) * p->a_by_m, by_k = (int64_t)sizeof(float) * p->a_by_k; /* bytes */
    const char *first = (const char *)p->a;
    const int32_t *a_at = p->a_at;
    const uint16_t *taken = p->taken;
    const float *b = p->b;
    tg_v16 sum[8][8];
    TG_UNROLL for (int i = 0; i < height; i++)
    {
        TG_UNROLL for (int j = 0; j < width; j++)
            sum[i][j] = p->first ? tg_v_set(0.0f)
                                 : tg_v_load_some(p->y + i * p->y_by_m + 16 * j, tg_v_first(p->n_n - 16 * j));
    }
    for (int k = p->n_k; k > 0; k--, b += p->b_by_k) {
        if (how >= TG_TABLE)
            first = (const char *)(p->a + *a_at++);
        const char *fifth = first + 4 * by_m;
        tg_v16 column[8];
        TG_UNROLL for (int j = 0; j < width; j++)
            column[j] = how == TG_NARROW ? tg_v_load_some(b + 16 * j, tg_v_first(p->n_n - 16 * j)) : tg_v_load(b + 16 * j);
        TG_UNROLL for (int i = 0; i < height; i++)
        {
            const tg_v16 x = tg_v_set(*(const float *)((i < 4 ? first : fifth) + (i & 3) * by_m));
            TG_UNROLL for (int j = 0; j < width; j++)
                sum[i][j] = how == TG_MASKED ? tg_v_fma_some(x, column[j], sum[i][j], taken[j])
                                             : tg_v_fma(x, column[j], sum[i][j]);
        }
        if (how == TG_MASKED)
            taken += 2;
        if (how < TG_TABLE)
            first += by_k;
    }
    TG_UNROLL for (int i = 0; i < height; i++)
    {
        TG_UNROLL for (int j = 0; j < width; j++)
        {
            const tg_v16 v = p->bias == TG_NULL ? sum[i][j] : tg_v_add(sum[i][j], tg_v_set(p->bias[i]));
            tg_v_store_some(p->y + i * p->y_by_m + 16 * j, tg_v_first(p->n_n - 16 * j), v);
        }
    }
}

/* Between y, whose column n is at y_at[n], and dense rows of 32. */
TG_INLINE void tg_product_move(float *y, int y_by_m, const int32_t *y_at, int rows, int columns, float *dense, int is_in)
{
    for (int i = 0; i < rows; i++)
        for (int n = 0; n < columns; n++) {
            float *kept = y + i * y_by_m + y_at[n], *other = dense + i * TG_PANEL_WIDTH + n;
            *(is_in ? other : kept) = *(is_in ? kept : other);
        }
}

/* A block of full height, as a function of its own: with more around them, pointers would not fit the registers. */
#define TG_PRODUCT_FULL(NAME, WIDTH, HOW)                                                                              \
    TG_SHARED void NAME(const tg_product *p) { tg_product_block(p, TG_VECTOR_ROWS, WIDTH, HOW); }

/* All rows; `full` is the block of full height, or null for one in place. */
TG_TEMPLATE void tg_product_rows(const tg_product *p, void (*full)(const tg_product *), int width, int how)
{
    float dense[TG_VECTOR_ROWS * TG_PANEL_WIDTH];
    for (int m = 0, rows = TG_VECTOR_ROWS; m < p->n_m; m += rows) {
        const int is_strided = p->y_at != TG_NULL;
        while (rows > p->n_m - m)
            rows /= 2;
        tg_product q = *p;
        float *y = p->y + m * p->y_by_m;
        q.a += m * p->a_by_m;
        q.bias = p->bias == TG_NULL ? TG_NULL : p->bias + m;
        q.y = is_strided ? dense : y;
        q.y_by_m = is_strided ? TG_PANEL_WIDTH : p->y_by_m;
        if (is_strided && !p->first)
            tg_product_move(y, p->y_by_m, p->y_at, rows, p->n_n, dense, 1);
        if (rows == TG_VECTOR_ROWS && full != TG_NULL)
            full(&q);
        else if (rows == TG_VECTOR_ROWS)
            tg_product_block(&q, TG_VECTOR_ROWS, width, how);
        else if (rows == 4)
            tg_product_block(&q, 4, width, how);
        else if (rows == 2)
            tg_product_block(&q, 2, width, how);
        else
            tg_product_block(&q, 1, width, how);
        if (is_strided)
            tg_product_move(y, p->y_by_m, p->y_at, rows, p->n_n, dense, 0);
    }
}

TG_PRODUCT_FULL(tg_product_plain, 2, TG_PLAIN)
TG_PRODUCT_FULL(tg_product_narrow, 2, TG_NARROW)
TG_PRODUCT_FULL(tg_product_narrowest, 1, TG_NARROW)

/* Up to 32 columns, without a table. `is_panel`: 32 are in memory, whether they exist or not. */
TG_SHARED void tg_product_columns(const tg_product *p, int is_panel)
{
    if (p->n_n == 32 || (is_panel && p->n_n > 16))
        tg_product_rows(p, tg_product_plain, 2, TG_PLAIN);
    else if (p->n_n > 16)
        tg_product_rows(p, tg_product_narrow, 2, TG_NARROW);
    else
        tg_product_rows(p, tg_product_narrowest, 1, TG_NARROW);
}

/* This core's share of the whole tile: of its columns. */
TG_SHARED void tg_gemm(const float *a, const float *b, const float *c, float *y, tg_gemm_args g, int core_id,
                       int core_count)
{
    TG_ALIGNED float panel[TG_PANEL_DEPTH * TG_PANEL_WIDTH];
    int start, stop;
    g.y_by_n = 1; /* as a literal: so it is for all of them */
    if (g.n_k == 1 && g.n_m > 1 && g.b_by_n == 1) { /* outer product: nothing to keep in registers */
        tg_share(g.n_m, core_id, core_count, &start, &stop);
        for (int m = start; m < stop; m++) {
            float *row = y + m * g.y_by_m;
            const float x = a[m * g.a_by_m];
            for (int n = 0; n < g.n_n; n++)
                row[n] = TG_FMA(x, b[n], g.first ? 0.0f : row[n]);
        }
        tg_gemm_finish(c, y, g, start, stop, 0, g.n_n);
        return;
    }
    tg_share((g.n_n + TG_PANEL_WIDTH - 1) / TG_PANEL_WIDTH, core_id, core_count, &start, &stop);
    start *= TG_PANEL_WIDTH;
    stop = tg_min(stop * TG_PANEL_WIDTH, g.n_n);
    for (int n = start, count; n < stop; n += count) {
        /* One row has registers for more columns. */
        const int is_wide = g.n_m == 1 && g.b_by_n == 1 && n + 128 <= stop;
        count = tg_min(stop - n, is_wide ? 128 : TG_PANEL_WIDTH);
        for (int k = 0; k == 0 || k < g.n_k; k += TG_PANEL_DEPTH) {
            const float *row = b + k * g.b_by_k + n * g.b_by_n;
            const int depth = tg_min(g.n_k - k, TG_PANEL_DEPTH), is_panel = g.b_by_n != 1;
            if (is_panel && g.b_by_k == 1)
                tg_panel_transpose(row, g.b_by_n, depth, count, panel, TG_PANEL_WIDTH);
            else if (is_panel)
                for (int i = 0; i < depth; i++)
                    for (int j = 0; j < TG_PANEL_WIDTH; j++)
                        panel[i * TG_PANEL_WIDTH + j] = j < count ? row[i * g.b_by_k + j * g.b_by_n] : 0.0f;
            const tg_product p = {
                .n_m = g.n_m, .n_n = count, .n_k = depth, .a_by_m = g.a_by_m, .a_by_k = g.a_by_k,
                .y_by_m = g.y_by_m,
                .b_by_k = is_panel ? TG_PANEL_WIDTH : g.b_by_k, .first = g.first && k == 0,
                .a = a + k * g.a_by_k, .b = is_panel ? panel : row, .y = y + n,
            };
            if (is_wide)
                tg_product_block(&p, 1, 8, TG_PLAIN);
            else
                tg_product_columns(&p, is_panel);
        }
        tg_gemm_finish(c, y, g, 0, g.n_m, n, n + count);
    }
}

#endif
