/* The rows and channels of runtime/tg_frozen.h, sixteen at a time. */
#ifndef TG_FROZEN_H
#define TG_FROZEN_H
#include "tg_relu.h"
#include "tg_rows.h"

TG_TEMPLATE tg_v16 tg_frozen_load(const float *dy, const float *y, uint32_t exist, int has_relu)
{
    const tg_v16 gradient = tg_v_load_some(dy, exist);
    return has_relu ? tg_v_where_positive(tg_v_load_some(y, exist), gradient) : gradient;
}

TG_TEMPLATE void tg_frozen_row(const float *x, float *y, int n, float center, float factor, float added, int has_relu)
{
    const tg_v16 centers = tg_v_set(center), factors = tg_v_set(factor), offsets = tg_v_set(added);
    for (int i = 0; i < n; i += 16) {
        const uint32_t exist = tg_v_first(n - i);
        const tg_v16 value = tg_v_fma(tg_v_sub(tg_v_load_some(x + i, exist), centers), factors, offsets);
        tg_v_store_some(y + i, exist, has_relu ? tg_v_relu(value) : value);
    }
}

TG_TEMPLATE void tg_frozen_channels(const float *x, const float *scale, const float *bias, const float *mean,
                                    const float *spread, float *y, int n, int has_relu)
{
    for (int i = 0; i < n; i += 16) {
        const uint32_t exist = tg_v_first(n - i);
        const tg_v16 factor = tg_v_mul(tg_v_load_some(scale + i, exist), tg_v_load_some(spread + i, exist));
        const tg_v16 distance = tg_v_sub(tg_v_load_some(x + i, exist), tg_v_load_some(mean + i, exist));
        const tg_v16 value = tg_v_fma(distance, factor, tg_v_load_some(bias + i, exist));
        tg_v_store_some(y + i, exist, has_relu ? tg_v_relu(value) : value);
    }
}

TG_TEMPLATE void tg_frozen_row_dx(const float *dy, const float *y, float *dx, int n, float factor, int has_relu)
{
    const tg_v16 factors = tg_v_set(factor);
    for (int i = 0; i < n; i += 16) {
        const uint32_t exist = tg_v_first(n - i);
        tg_v_store_some(dx + i, exist, tg_v_mul(factors, tg_frozen_load(dy + i, y + i, exist, has_relu)));
    }
}

/* Sums run along transposed panels, as in tg_rows.h; x is read before dx is written, which may lie on it. */
TG_TEMPLATE void tg_frozen_rows_grad(const float *dy, int dy_by, const float *y, int y_by, const float *x, int x_by,
                                     const float *scale, const float *mean, const float *spread, float *dx, int dx_by,
                                     float *sum, float *dot, int rows, int n, int is_first, int is_last, int has_relu)
{
    for (int row = 0; row < rows; row += 16) {
        const int count = tg_min(16, rows - row);
        const uint32_t exist = tg_v_first(count);
        const tg_v16 centers = tg_v_load_some(mean + row, exist), inverses = tg_v_load_some(spread + row, exist);
        tg_v16 total = is_first ? tg_v_set(0.0f) : tg_v_load_some(sum + row, exist);
        tg_v16 product = is_first ? tg_v_set(0.0f) : tg_v_load_some(dot + row, exist);
        float factors[16];
        tg_v_store(factors, tg_v_mul(tg_v_load_some(scale + row, exist), inverses));
        for (int start = 0; start < n; start += TG_ROWS_DEPTH) {
            TG_ALIGNED float panel_d[TG_ROWS_DEPTH * 16], panel_x[TG_ROWS_DEPTH * 16];
            const int depth = tg_min(TG_ROWS_DEPTH, n - start);
            tg_panel_transpose(x + row * x_by + start, x_by, depth, count, panel_x, 16);
            for (int k = 0; k < depth; k += 16) {
                const uint32_t columns = tg_v_first(depth - k);
                const float *in = dy + row * dy_by + start + k, *output = y + row * y_by + start + k;
                float *to = dx + row * dx_by + start + k;
                tg_v16 v[16];
                TG_UNROLL for (int r = 0; r < 16; r++)
                {
                    v[r] = tg_v_set(0.0f);
                    if (r < count) {
                        v[r] = tg_frozen_load(in + r * dy_by, output + r * y_by, columns, has_relu);
                        tg_v_store_some(to + r * dx_by, columns, tg_v_mul(tg_v_set(factors[r]), v[r]));
                    }
                }
                tg_v_transpose(v);
                TG_UNROLL for (int r = 0; r < 16; r++)
                    tg_v_store(panel_d + 16 * (k + r), v[r]);
            }
            for (int k = 0; k < depth; k++) {
                const tg_v16 d = tg_v_load(panel_d + 16 * k);
                total = tg_v_add(total, d);
                product = tg_v_fma(d, tg_v_sub(tg_v_load(panel_x + 16 * k), centers), product);
            }
        }
        tg_v_store_some(sum + row, exist, total);
        tg_v_store_some(dot + row, exist, is_last ? tg_v_mul(product, inverses) : product);
    }
}

TG_TEMPLATE void tg_frozen_channels_grad(const float *dy, int dy_by, const float *y, int y_by, const float *x, int x_by,
                                         const float *scale, const float *mean, const float *spread, float *dx,
                                         int dx_by, float *sum, float *dot, int n, int n_o, int is_first, int is_last,
                                         int has_relu)
{
    for (int g = 0; g < n; g += 16) {
        const uint32_t exist = tg_v_first(n - g);
        const tg_v16 inverse = tg_v_load_some(spread + g, exist), center = tg_v_load_some(mean + g, exist);
        const tg_v16 factor = tg_v_mul(tg_v_load_some(scale + g, exist), inverse);
        tg_v16 total = is_first ? tg_v_set(0.0f) : tg_v_load_some(sum + g, exist);
        tg_v16 product = is_first ? tg_v_set(0.0f) : tg_v_load_some(dot + g, exist);
        for (int o = 0; o < n_o; o++) {
            const tg_v16 d = tg_frozen_load(dy + o * dy_by + g, y + o * y_by + g, exist, has_relu);
            const tg_v16 distance = tg_v_sub(tg_v_load_some(x + o * x_by + g, exist), center);
            total = tg_v_add(total, d);
            product = tg_v_fma(d, distance, product);
            tg_v_store_some(dx + o * dx_by + g, exist, tg_v_mul(factor, d));
        }
        tg_v_store_some(sum + g, exist, total);
        tg_v_store_some(dot + g, exist, is_last ? tg_v_mul(product, inverse) : product);
    }
}

#endif
