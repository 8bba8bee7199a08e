/* Planes of 3x3 convolutions with one channel on either side: nine weights, or their gradients, stay in registers while
 * four columns at a time pass by. Same order of taps as everywhere; taps on padding are skipped. */
#ifndef TG_DEPTHWISE_H
#define TG_DEPTHWISE_H
#include "tg_block.h"

/* `map` is rows x columns of windows; window (row, column) has its tap (kh, kw) at image position
 * (top + stride * row + tap * kh, left + stride * column + tap * kw), tap being 1, or -1 for the input gradient. */
typedef struct {
    int rows, columns, top, left, height, width, image_row, map_row;
} tg_plane;

#define TG_NINE(F) F(0, 0) F(0, 1) F(0, 2) F(1, 0) F(1, 1) F(1, 2) F(2, 0) F(2, 1) F(2, 2)
#define TG_ROW_OF(k)                                                                                                   \
    const int has##k = (unsigned)(top + k * tap) < (unsigned)p.height;                                                 \
    TG_MEM const float *x##k = image + (has##k ? (top + k * tap) * p.image_row : 0);
#define TG_COLUMN_OF(k) in##k = (unsigned)(at + k * tap) < (unsigned)p.width
/* Whether a block of four columns has all taps inside but perhaps the leftmost lane's first or rightmost lane's last. */
#define TG_INNER (column + 4 <= p.columns && at + 3 * stride + high * tap < p.width) /* given that the low end is inside */
#define TG_NEAR (column + 4 <= p.columns && at + low * tap >= -1 && at + 3 * stride + high * tap <= p.width)

/* Rows [start, stop) of the map. `stride` and `tap` are literals. */
TG_TEMPLATE void tg_plane_forward(TG_MEM const float *image, TG_MEM const float *w, int w_row, TG_MEM const float *b,
                                  TG_MEM float *map, tg_plane p, int start, int stop, int stride, int tap)
{
#define TG_WEIGHT(i, j) const float w##i##j = w[i * w_row + j];
#define TG_TAP(i, j, HAS_LOW, HAS_HIGH)                                                                                \
    if (j != low || HAS_LOW)                                                                                           \
        s0 = TG_FMA(x##i[at + j * tap], w##i##j, s0);                                                                  \
    s1 = TG_FMA(x##i[at + stride + j * tap], w##i##j, s1);                                                             \
    s2 = TG_FMA(x##i[at + 2 * stride + j * tap], w##i##j, s2);                                                         \
    if (j != high || HAS_HIGH)                                                                                         \
        s3 = TG_FMA(x##i[at + 3 * stride + j * tap], w##i##j, s3);
#define TG_TAPS(i, HAS, HAS_LOW, HAS_HIGH)                                                                             \
    if (HAS) {                                                                                                         \
        TG_TAP(i, 0, HAS_LOW, HAS_HIGH)                                                                                \
        TG_TAP(i, 1, HAS_LOW, HAS_HIGH)                                                                                \
        TG_TAP(i, 2, HAS_LOW, HAS_HIGH)                                                                                \
    }
#define TG_FOUR(HAS0, HAS1, HAS2, HAS_LOW, HAS_HIGH)                                                                   \
    {                                                                                                                  \
        float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;                                                              \
        TG_TAPS(0, HAS0, HAS_LOW, HAS_HIGH)                                                                            \
        TG_TAPS(1, HAS1, HAS_LOW, HAS_HIGH)                                                                            \
        TG_TAPS(2, HAS2, HAS_LOW, HAS_HIGH)                                                                            \
        out[0] = has_bias ? s0 + bias : s0;                                                                            \
        out[1] = has_bias ? s1 + bias : s1;                                                                            \
        out[2] = has_bias ? s2 + bias : s2;                                                                            \
        out[3] = has_bias ? s3 + bias : s3;                                                                            \
    }
#define TG_CHECKED_TAP(i, j)                                                                                           \
    if (has##i && in##j)                                                                                               \
        sum = TG_FMA(x##i[at + j * tap], w##i##j, sum);
    const int low = tap > 0 ? 0 : 2, high = 2 - low, has_bias = b != TG_NULL;
    const float bias = has_bias ? *b : 0.0f;
    int column = p.columns - 4, at = p.left + stride * column;
    const int can_move_back = column >= 0 && TG_NEAR;
    TG_NINE(TG_WEIGHT)
    for (int row = start; row < stop; row++) {
        const int top = p.top + stride * row;
        TG_ROW_OF(0)
        TG_ROW_OF(1)
        TG_ROW_OF(2)
        for (column = 0; column < p.columns;) {
            if (can_move_back && column > p.columns - 4 && column < p.columns - 1)
                column = p.columns - 4; /* the same bits again, faster than two or three single columns */
            at = p.left + stride * column;
            TG_MEM float *out = map + row * p.map_row + column;
            if (has0 && has1 && has2 && at + low * tap >= 0 && TG_INNER) {
                for (; TG_INNER; column += 4, at += 4 * stride, out += 4)
                    TG_FOUR(1, 1, 1, 1, 1)
            } else if (TG_NEAR) {
                const int has_low = at + low * tap >= 0, has_high = at + 3 * stride + high * tap < p.width;
                TG_FOUR(has0, has1, has2, has_low, has_high)
                column += 4;
            } else {
                const int TG_COLUMN_OF(0), TG_COLUMN_OF(1), TG_COLUMN_OF(2);
                float sum = 0.0f;
                TG_NINE(TG_CHECKED_TAP)
                *out = has_bias ? sum + bias : sum;
                column++;
            }
        }
    }
#undef TG_WEIGHT
#undef TG_TAP
#undef TG_TAPS
#undef TG_FOUR
#undef TG_CHECKED_TAP
}

/* The input gradient of stride two: rows [start, stop) of the image from the map. Image element (ih, iw) has the tap k of
 * either dimension at map position (i + offset - k) / 2, where that is whole: taps 0 and 2, or tap 1. Eight columns at
 * a time. `top` and `left` of the plane are the offsets, `height` and `width` the map's, `columns` the image's. */
TG_TEMPLATE void tg_plane_gather(TG_MEM const float *map, TG_MEM const float *w, int w_row, TG_MEM const float *b,
                                 TG_MEM float *image, tg_plane p, int start, int stop)
{
#define TG_EIGHT(F, j) F(j, 0) F(j, 1) F(j, 2) F(j, 3)
#define TG_ZERO(j, l) float e##l = 0.0f, o##l = 0.0f;
#define TG_EVEN(j, l) e##l = TG_FMA(d##j[at + l], v0, e##l);
#define TG_EVEN_BACK(j, l)                                                                                             \
    if (l > 0 || at > 0)                                                                                               \
        e##l = TG_FMA(d##j[at + l - 1], v2, e##l);
#define TG_ODD(j, l) o##l = TG_FMA(d##j[at + l], v1, o##l);
#define TG_STORE(j, l)                                                                                                 \
    out[2 * l] = has_bias ? e##l + bias : e##l;                                                                        \
    out[2 * l + 1] = has_bias ? o##l + bias : o##l;
    const float bias = b != TG_NULL ? *b : 0.0f;
    const int has_bias = b != TG_NULL;
    for (int row = start; row < stop; row++) {
        const int whole = row + p.top, is_even = (whole & 1) == 0, high = (whole - (is_even ? 0 : 1)) / 2;
        for (int column = 0; column < p.columns;) {
            TG_MEM float *out = image + row * p.map_row + column;
            int across = column + p.left, is_block = (across & 1) == 0 && column + 8 <= p.columns;
            int at = (across - (across & 1)) / 2;
            is_block = is_block && at >= 0 && at + 4 <= p.width;
            TG_EIGHT(TG_ZERO, 0)
            for (int k = is_even ? 0 : 1; k < 3; k += 2) {
                int position = high - k / 2;
                if (position < 0 || position >= p.height)
                    continue;
                TG_MEM const float *d0 = map + position * p.image_row;
                const float v0 = w[k * w_row], v1 = w[k * w_row + 1], v2 = w[k * w_row + 2];
                if (is_block) {
                    TG_EIGHT(TG_EVEN, 0)
                    TG_EIGHT(TG_EVEN_BACK, 0)
                    TG_EIGHT(TG_ODD, 0)
                } else if (across & 1) {
                    if (at >= 0 && at < p.width)
                        e0 = TG_FMA(d0[at], v1, e0);
                } else {
                    if (at >= 0 && at < p.width)
                        e0 = TG_FMA(d0[at], v0, e0);
                    if (at >= 1 && at <= p.width)
                        e0 = TG_FMA(d0[at - 1], v2, e0);
                }
            }
            if (is_block) {
                TG_EIGHT(TG_STORE, 0)
            } else
                *out = has_bias ? e0 + bias : e0;
            column += is_block ? 8 : 1;
        }
    }
#undef TG_EIGHT
#undef TG_ZERO
#undef TG_EVEN
#undef TG_EVEN_BACK
#undef TG_ODD
#undef TG_STORE
}

/* Adds the plane's share to the nine gradients at `dw`, which begin at zero if `first`. `stride` is a literal. */
TG_TEMPLATE void tg_plane_weight(TG_MEM const float *image, TG_MEM const float *map, TG_MEM float *dw, int dw_row,
                                 tg_plane p, int first, int stride)
{
#define TG_LOAD(i, j) float s##i##j = first ? 0.0f : dw[i * dw_row + j];
#define TG_STORE(i, j) dw[i * dw_row + j] = s##i##j;
#define TG_STEP(i, j, l) s##i##j = TG_FMA(d##l, x##i[at + l * stride + j], s##i##j);
#define TG_STEPS(i, HAS, HAS_LOW, HAS_HIGH)                                                                            \
    if (HAS) {                                                                                                         \
        if (HAS_LOW)                                                                                                   \
            TG_STEP(i, 0, 0)                                                                                           \
        TG_STEP(i, 1, 0)                                                                                               \
        TG_STEP(i, 2, 0)                                                                                               \
        TG_STEP(i, 0, 1)                                                                                               \
        TG_STEP(i, 1, 1)                                                                                               \
        TG_STEP(i, 2, 1)                                                                                               \
        TG_STEP(i, 0, 2)                                                                                               \
        TG_STEP(i, 1, 2)                                                                                               \
        TG_STEP(i, 2, 2)                                                                                               \
        TG_STEP(i, 0, 3)                                                                                               \
        TG_STEP(i, 1, 3)                                                                                               \
        if (HAS_HIGH)                                                                                                  \
            TG_STEP(i, 2, 3)                                                                                           \
    }
#define TG_CHECKED_STEP(i, j)                                                                                          \
    if (has##i && in##j)                                                                                               \
        TG_STEP(i, j, 0)
    const int tap = 1, low = 0, high = 2;
    TG_NINE(TG_LOAD)
    for (int row = 0; row < p.rows; row++) {
        const int top = p.top + stride * row;
        TG_ROW_OF(0)
        TG_ROW_OF(1)
        TG_ROW_OF(2)
        for (int column = 0; column < p.columns;) {
            int at = p.left + stride * column;
            TG_MEM const float *d = map + row * p.map_row + column;
            if (has0 && has1 && has2 && at >= 0 && TG_INNER) {
                for (; TG_INNER; column += 4, at += 4 * stride, d += 4) {
                    const float d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
                    TG_STEPS(0, 1, 1, 1)
                    TG_STEPS(1, 1, 1, 1)
                    TG_STEPS(2, 1, 1, 1)
                }
            } else if (TG_NEAR) {
                const int has_low = at >= 0, has_high = at + 3 * stride + high < p.width;
                const float d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
                TG_STEPS(0, has0, has_low, has_high)
                TG_STEPS(1, has1, has_low, has_high)
                TG_STEPS(2, has2, has_low, has_high)
                column += 4;
            } else {
                const int TG_COLUMN_OF(0), TG_COLUMN_OF(1), TG_COLUMN_OF(2);
                const float d0 = d[0];
                TG_NINE(TG_CHECKED_STEP)
                column++;
            }
        }
    }
    TG_NINE(TG_STORE)
#undef TG_LOAD
#undef TG_STORE
#undef TG_STEP
#undef TG_STEPS
#undef TG_CHECKED_STEP
}

#undef TG_NINE
#undef TG_ROW_OF
#undef TG_COLUMN_OF
#undef TG_INNER
#undef TG_NEAR
#endif
