/* Rows and channels of ops/frozen_batch_normalization.c. `has_relu` is to be known at compile time. Loads come before
 * stores, since dx may lie on any operand. Neighbours in the code belong to different sums: none waits for the one before. */
#ifndef TG_FROZEN_H
#define TG_FROZEN_H
#include "tg_relu.h"

/* y = fma(x - center, factor, added) of n elements. */
TG_TEMPLATE void tg_frozen_row(TG_MEM const float *x, TG_MEM float *y, int n, float center, float factor, float added,
                               int has_relu)
{
#define TG_FROZEN_LOAD(i) const float x##i = x[i];
#define TG_FROZEN_STORE(i) tg_relu_write(y + i, TG_FMA(x##i - center, factor, added), has_relu);
    for (; n >= 8; n -= 8, x += 8, y += 8) {
        TG_ROW8(TG_FROZEN_LOAD)
        TG_ROW8(TG_FROZEN_STORE)
    }
    for (; n > 0; n--, x++, y++) {
        TG_FROZEN_LOAD(0)
        TG_FROZEN_STORE(0)
    }
}

/* The same of one element each of n channels. */
TG_TEMPLATE void tg_frozen_channels(TG_MEM const float *x, TG_MEM const float *scale, TG_MEM const float *bias,
                                    TG_MEM const float *mean, TG_MEM const float *spread, TG_MEM float *y, int n,
                                    int has_relu)
{
#define TG_CHANNEL_LOAD(i) const float x##i = x[i] - mean[i], factor##i = scale[i] * spread[i], added##i = bias[i];
#define TG_CHANNEL_STORE(i) tg_relu_write(y + i, TG_FMA(x##i, factor##i, added##i), has_relu);
    for (; n >= 4; n -= 4, x += 4, scale += 4, bias += 4, mean += 4, spread += 4, y += 4) {
        TG_ROW4(TG_CHANNEL_LOAD)
        TG_ROW4(TG_CHANNEL_STORE)
    }
    for (; n > 0; n--, x++, scale++, bias++, mean++, spread++, y++) {
        TG_CHANNEL_LOAD(0)
        TG_CHANNEL_STORE(0)
    }
}

/* dx = factor * d of n elements. */
TG_TEMPLATE void tg_frozen_row_dx(TG_MEM const float *dy, TG_MEM const float *y, TG_MEM float *dx, int n, float factor,
                                  int has_relu)
{
#define TG_DX_LOAD(i) const float d##i = factor * tg_relu_read(dy + i, y + i, has_relu);
#define TG_DX_STORE(i) dx[i] = d##i;
    for (; n >= 4; n -= 4, dy += 4, y += 4, dx += 4) {
        TG_ROW4(TG_DX_LOAD)
        TG_ROW4(TG_DX_STORE)
    }
    for (; n > 0; n--, dy++, y++, dx++) {
        TG_DX_LOAD(0)
        TG_DX_STORE(0)
    }
}

/* dx and both sums of `rows` channels, n elements each. */
TG_TEMPLATE void tg_frozen_rows_grad(TG_MEM const float *dy, int dy_by, TG_MEM const float *y, int y_by,
                                     TG_MEM const float *x, int x_by, TG_MEM const float *scale,
                                     TG_MEM const float *mean, TG_MEM const float *spread, TG_MEM float *dx, int dx_by,
                                     TG_MEM float *sum, TG_MEM float *dot, int rows, int n, int is_first, int is_last,
                                     int has_relu)
{
#define TG_GRAD_LOAD(i) const float d##i = tg_relu_read(in + i, output + i, has_relu), x##i = from[i] - center;
#define TG_GRAD_SUM(i)                                                                                                 \
    total = total + d##i;                                                                                              \
    product = TG_FMA(d##i, x##i, product);                                                                             \
    const float dx##i = factor * d##i;
#define TG_GRAD_STORE(i) to[i] = dx##i;
    for (int r = 0; r < rows; r++) {
        TG_MEM const float *in = dy + r * dy_by, *output = y + r * y_by, *from = x + r * x_by;
        TG_MEM float *to = dx + r * dx_by;
        const float inverse = spread[r], factor = scale[r] * inverse, center = mean[r];
        float total = is_first ? 0.0f : sum[r], product = is_first ? 0.0f : dot[r];
        int left = n;
        for (; left >= 4; left -= 4, in += 4, output += 4, from += 4, to += 4) {
            TG_ROW4(TG_GRAD_LOAD)
            TG_ROW4(TG_GRAD_SUM)
            TG_ROW4(TG_GRAD_STORE)
        }
        for (; left > 0; left--, in++, output++, from++, to++) {
            TG_GRAD_LOAD(0)
            TG_GRAD_SUM(0)
            TG_GRAD_STORE(0)
        }
        sum[r] = total;
        dot[r] = is_last ? product * inverse : product;
    }
}

/* The same of one element each of n channels, in n_o samples: the sums of four channels stay in registers. */
TG_TEMPLATE void tg_frozen_channels_grad(TG_MEM const float *dy, int dy_by, TG_MEM const float *y, int y_by,
                                         TG_MEM const float *x, int x_by, TG_MEM const float *scale,
                                         TG_MEM const float *mean, TG_MEM const float *spread, TG_MEM float *dx,
                                         int dx_by, TG_MEM float *sum, TG_MEM float *dot, int n, int n_o, int is_first,
                                         int is_last, int has_relu)
{
#define TG_FLAT_BEGIN(i)                                                                                               \
    const float inverse##i = spread[g + i], factor##i = scale[g + i] * inverse##i, center##i = mean[g + i];            \
    float sum##i = is_first ? 0.0f : sum[g + i], dot##i = is_first ? 0.0f : dot[g + i];
#define TG_FLAT_LOAD(i) const float d##i = tg_relu_read(in + i, output + i, has_relu), x##i = from[i] - center##i;
#define TG_FLAT_SUM(i)                                                                                                 \
    sum##i = sum##i + d##i;                                                                                            \
    dot##i = TG_FMA(d##i, x##i, dot##i);                                                                               \
    to[i] = factor##i * d##i;
#define TG_FLAT_END(i)                                                                                                 \
    sum[g + i] = sum##i;                                                                                               \
    dot[g + i] = is_last ? dot##i * inverse##i : dot##i;
#define TG_FLAT_CHANNELS(EACH)                                                                                         \
    {                                                                                                                  \
        TG_MEM const float *in = dy + g, *output = y + g, *from = x + g;                                               \
        TG_MEM float *to = dx + g;                                                                                     \
        EACH(TG_FLAT_BEGIN)                                                                                            \
        for (int o = 0; o < n_o; o++) {                                                                                \
            EACH(TG_FLAT_LOAD)                                                                                         \
            EACH(TG_FLAT_SUM)                                                                                          \
            in += dy_by, output += y_by, from += x_by, to += dx_by;                                                    \
        }                                                                                                              \
        EACH(TG_FLAT_END)                                                                                              \
    }
#define TG_FLAT_ONE(F) F(0)
    int g = 0;
    for (; g + 4 <= n; g += 4)
        TG_FLAT_CHANNELS(TG_ROW4)
    for (; g < n; g++)
        TG_FLAT_CHANNELS(TG_FLAT_ONE)
}

#endif
