/* Planes of 3x3 convolutions with one channel on either side: nine weights, or their gradients, and the window under
 * them stay in registers. Same order of taps as everywhere; taps on padding are skipped. */
#ifndef TG_DEPTHWISE_H
#define TG_DEPTHWISE_H
#include "tg_block.h"
#include "tg_window.h"

/* `map` is rows x columns of windows; window (row, column) has its tap (kh, kw) at image position
 * (top + stride * row + tap * kh, left + stride * column + tap * kw), tap being 1, or -1 for the input gradient. */
typedef struct {
    int rows, columns, top, left, height, width, image_row, map_row;
} tg_plane;

#define TG_NINE(F) F(0, 0) F(0, 1) F(0, 2) F(1, 0) F(1, 1) F(1, 2) F(2, 0) F(2, 1) F(2, 2)

/* The windows [*start, *stop) of `count` that lie inside the image altogether. */
TG_TEMPLATE void tg_plane_inner(int base, int stride, int tap, int count, int extent, int *start, int *stop)
{
    int low = tap > 0 ? base : base - 2, start_of_last;
    tg_window_taps(low, stride, count, 0, extent, start, stop);
    tg_window_taps(low + 2, stride, count, 0, extent, &start_of_last, stop);
    (void)start_of_last;
}

/* Rows [start, stop) of one column of the map, top to bottom; its three tap columns are inside the image or not as has0
 * to has2 say. Those (where speed matters), `stride` and `tap` are literals; `at` is the first tap's column. Rows whose
 * window is not inside the image are checked tap by tap, all of them if not `rolling`. */
TG_TEMPLATE void tg_plane_strip(TG_MEM const float *image, TG_MEM const float *w, int w_row, TG_MEM float *map,
                                tg_plane p, int start, int stop, int at, int stride, int tap, int has0, int has1,
                                int has2, int rolling)
{
#define TG_STRIP_WEIGHT(i, j) const float w##i##j = has##j ? w[i * w_row + j] : 0.0f;
#define TG_STRIP_LOAD(r)                                                                                               \
    if (has0)                                                                                                          \
        r##0 = x[-skipped];                                                                                            \
    if (has1)                                                                                                          \
        r##1 = x[tap - skipped];                                                                                       \
    if (has2)                                                                                                          \
        r##2 = x[2 * tap - skipped];                                                                                   \
    x += p.image_row;
#define TG_STRIP_TAPS(i, r)                                                                                            \
    if (has0)                                                                                                          \
        sum = TG_FMA(r##0, w##i##0, sum);                                                                              \
    if (has1)                                                                                                          \
        sum = TG_FMA(r##1, w##i##1, sum);                                                                              \
    if (has2)                                                                                                          \
        sum = TG_FMA(r##2, w##i##2, sum);
#define TG_STRIP_WINDOW(a, b, c)                                                                                       \
    {                                                                                                                  \
        float sum = 0.0f;                                                                                              \
        if (tap > 0) {                                                                                                 \
            TG_STRIP_TAPS(0, a)                                                                                        \
            TG_STRIP_TAPS(1, b)                                                                                        \
            TG_STRIP_TAPS(2, c)                                                                                        \
        } else {                                                                                                       \
            TG_STRIP_TAPS(0, c)                                                                                        \
            TG_STRIP_TAPS(1, b)                                                                                        \
            TG_STRIP_TAPS(2, a)                                                                                        \
        }                                                                                                              \
        *out = sum;                                                                                                    \
        out += p.map_row;                                                                                              \
    }
#define TG_STRIP_CHECKED(i)                                                                                            \
    if ((unsigned)(top + i * tap) < (unsigned)p.height) {                                                              \
        TG_MEM const float *x = image + (top + i * tap) * p.image_row;                                                 \
        TG_STRIP_LOAD(c)                                                                                               \
        TG_STRIP_TAPS(i, c)                                                                                            \
        (void)x;                                                                                                       \
    }
    float a0 = 0.0f, a1 = 0.0f, a2 = 0.0f, b0 = 0.0f, b1 = 0.0f, b2 = 0.0f, c0 = 0.0f, c1 = 0.0f, c2 = 0.0f;
    int row = start, inner_start, inner_stop;
    tg_plane_inner(p.top, stride, tap, p.rows, p.height, &inner_start, &inner_stop);
    inner_stop = tg_min(inner_stop, stop);
    const int skipped = has0 ? 0 : has1 ? tap : 2 * tap;
    if (has0 || has1 || has2)
        image += at + skipped; /* the first tap that exists */
    TG_NINE(TG_STRIP_WEIGHT)
    TG_MEM float *out = map + row * p.map_row;
    while (row < stop) {
        int top = p.top + stride * row;
        if (!rolling || row < inner_start || row >= inner_stop) {
            float sum = 0.0f;
            TG_STRIP_CHECKED(0)
            TG_STRIP_CHECKED(1)
            TG_STRIP_CHECKED(2)
            *out = sum;
            out += p.map_row;
            row++;
            continue;
        }
        TG_MEM const float *x = image + (tap > 0 ? top : top - 2) * p.image_row;
        TG_STRIP_LOAD(a)
        if (stride == 1) {
            TG_STRIP_LOAD(b)
            for (; row + 3 <= inner_stop; row += 3) {
                TG_STRIP_LOAD(c)
                TG_STRIP_WINDOW(a, b, c)
                TG_STRIP_LOAD(a)
                TG_STRIP_WINDOW(b, c, a)
                TG_STRIP_LOAD(b)
                TG_STRIP_WINDOW(c, a, b)
            }
        }
        for (; row < inner_stop; row++) {
            if (stride == 2) {
                TG_STRIP_LOAD(b)
            }
            TG_STRIP_LOAD(c)
            TG_STRIP_WINDOW(a, b, c)
            a0 = stride == 1 ? b0 : c0, a1 = stride == 1 ? b1 : c1, a2 = stride == 1 ? b2 : c2;
            b0 = c0, b1 = c1, b2 = c2;
        }
    }
}

/* Adds a plane's bias, if there is one, to its finished rows [start, stop). */
TG_INLINE void tg_plane_bias(TG_MEM const float *b, TG_MEM float *map, tg_plane p, int start, int stop)
{
    if (b != TG_NULL)
        for (int row = start; row < stop; row++)
            for (int column = 0; column < p.columns; column++)
                map[row * p.map_row + column] += *b;
}

/* Rows [start, stop) of the map. `stride` and `tap` are literals. */
TG_TEMPLATE void tg_plane_forward(TG_MEM const float *image, TG_MEM const float *w, int w_row, TG_MEM const float *b,
                                  TG_MEM float *map, tg_plane p, int start, int stop, int stride, int tap)
{
    for (int column = 0; column < p.columns; column++) {
        const int at = p.left + stride * column, has0 = (unsigned)at < (unsigned)p.width;
        const int has1 = (unsigned)(at + tap) < (unsigned)p.width, has2 = (unsigned)(at + 2 * tap) < (unsigned)p.width;
        if (has0 && has1 && has2)
            tg_plane_strip(image, w, w_row, map + column, p, start, stop, at, stride, tap, 1, 1, 1, 1);
        else if (has1 && has2)
            tg_plane_strip(image, w, w_row, map + column, p, start, stop, at, stride, tap, 0, 1, 1, 1);
        else if (has0 && has1)
            tg_plane_strip(image, w, w_row, map + column, p, start, stop, at, stride, tap, 1, 1, 0, 1);
        else
            tg_plane_strip(image, w, w_row, map + column, p, start, stop, at, stride, tap, has0, has1, has2, 0);
    }
    tg_plane_bias(b, map, p, start, stop);
}

/* The input gradient of stride two: rows [start, stop) of the image from the map. Image element (ih, iw) has the tap k
 * of either dimension at map position (i + offset - k) / 2, where that is whole: taps 0 and 2, or tap 1. Eight columns
 * at a time. `top` and `left` of the plane are the offsets, `height` and `width` the map's, `columns` the image's. */
TG_TEMPLATE void tg_plane_gather(TG_MEM const float *map, TG_MEM const float *w, int w_row, TG_MEM const float *b,
                                 TG_MEM float *image, tg_plane p, int start, int stop)
{
#define TG_GATHER_ZERO(l) float e##l = 0.0f, o##l = 0.0f;
#define TG_GATHER_EVEN(l) e##l = TG_FMA(d[at + l], v0, e##l);
#define TG_GATHER_BACK(l) e##l = l > 0 || at > 0 ? TG_FMA(d[at + l - 1], v2, e##l) : e##l;
#define TG_GATHER_ODD(l) o##l = TG_FMA(d[at + l], v1, o##l);
#define TG_GATHER_STORE(l) out[2 * l] = e##l, out[2 * l + 1] = o##l;
    for (int row = start; row < stop; row++) {
        const int whole = row + p.top, is_even = (whole & 1) == 0, high = (whole - (is_even ? 0 : 1)) / 2;
        for (int column = 0; column < p.columns;) {
            TG_MEM float *out = image + row * p.map_row + column;
            int across = column + p.left, is_block = (across & 1) == 0 && column + 8 <= p.columns;
            int at = (across - (across & 1)) / 2;
            is_block = is_block && at >= 0 && at + 4 <= p.width;
            TG_ROW4(TG_GATHER_ZERO)
            for (int k = is_even ? 0 : 1; k < 3; k += 2) {
                int position = high - k / 2;
                if (position < 0 || position >= p.height)
                    continue;
                TG_MEM const float *d = map + position * p.image_row;
                const float v0 = w[k * w_row], v1 = w[k * w_row + 1], v2 = w[k * w_row + 2];
                if (is_block) {
                    TG_ROW4(TG_GATHER_EVEN)
                    TG_ROW4(TG_GATHER_BACK)
                    TG_ROW4(TG_GATHER_ODD)
                } else if (across & 1) {
                    if (at >= 0 && at < p.width)
                        e0 = TG_FMA(d[at], v1, e0);
                } else {
                    if (at >= 0 && at < p.width)
                        e0 = TG_FMA(d[at], v0, e0);
                    if (at >= 1 && at <= p.width)
                        e0 = TG_FMA(d[at - 1], v2, e0);
                }
            }
            if (is_block) {
                TG_ROW4(TG_GATHER_STORE)
            } else
                *out = e0;
            column += is_block ? 8 : 1;
        }
    }
    tg_plane_bias(b, image, p, start, stop);
}

/* Adds the plane's share to the nine gradients at `dw`, which begin at zero if `first`. `stride` is a literal. */
TG_TEMPLATE void tg_plane_weight(TG_MEM const float *image, TG_MEM const float *map, TG_MEM float *dw, int dw_row,
                                 tg_plane p, int first, int stride)
{
#define TG_PLANE_BEGIN(i, j) float s##i##j = first ? 0.0f : dw[i * dw_row + j];
#define TG_PLANE_STORE(i, j) dw[i * dw_row + j] = s##i##j;
#define TG_PLANE_ROW_OF(i)                                                                                             \
    const int has##i = (unsigned)(top + i) < (unsigned)p.height;                                                       \
    TG_MEM const float *x##i = image + (has##i ? (top + i) * p.image_row : 0);
#define TG_PLANE_LOAD(r, HAS0, HAS1, HAS2)                                                                             \
    if (HAS0)                                                                                                          \
        r##0 = x0[at];                                                                                                 \
    if (HAS1)                                                                                                          \
        r##1 = x1[at];                                                                                                 \
    if (HAS2)                                                                                                          \
        r##2 = x2[at];                                                                                                 \
    at++;
#define TG_PLANE_TAPS(j, r, HAS0, HAS1, HAS2)                                                                          \
    if (HAS0)                                                                                                          \
        s0##j = TG_FMA(d, r##0, s0##j);                                                                                \
    if (HAS1)                                                                                                          \
        s1##j = TG_FMA(d, r##1, s1##j);                                                                                \
    if (HAS2)                                                                                                          \
        s2##j = TG_FMA(d, r##2, s2##j);
#define TG_PLANE_WINDOW(a, b, c, HAS0, HAS1, HAS2)                                                                     \
    {                                                                                                                  \
        const float d = *gradient++;                                                                                   \
        TG_PLANE_TAPS(0, a, HAS0, HAS1, HAS2)                                                                          \
        TG_PLANE_TAPS(1, b, HAS0, HAS1, HAS2)                                                                          \
        TG_PLANE_TAPS(2, c, HAS0, HAS1, HAS2)                                                                          \
    }
#define TG_PLANE_TAP(j, HAS0, HAS1, HAS2)                                                                              \
    s0##j = HAS0 ? TG_FMA(d, x0[at + j], s0##j) : s0##j;                                                               \
    s1##j = HAS1 ? TG_FMA(d, x1[at + j], s1##j) : s1##j;                                                               \
    s2##j = HAS2 ? TG_FMA(d, x2[at + j], s2##j) : s2##j;
#define TG_PLANE_CHECKED(j, HAS0, HAS1, HAS2)                                                                          \
    if ((unsigned)(at + j) < (unsigned)p.width) {                                                                      \
        TG_PLANE_TAP(j, HAS0, HAS1, HAS2)                                                                              \
    }
#define TG_PLANE_ROW(HAS0, HAS1, HAS2)                                                                                 \
    for (int column = 0, at = p.left; column < p.columns;) {                                                           \
        if (column < inner_start || column >= inner_stop) {                                                            \
            const float d = *gradient++;                                                                               \
            if (at == -1 && p.width >= 2) { /* the usual edges */                                                      \
                TG_PLANE_TAP(1, HAS0, HAS1, HAS2)                                                                      \
                TG_PLANE_TAP(2, HAS0, HAS1, HAS2)                                                                      \
            } else if (at >= 0 && at + 2 == p.width) {                                                                 \
                TG_PLANE_TAP(0, HAS0, HAS1, HAS2)                                                                      \
                TG_PLANE_TAP(1, HAS0, HAS1, HAS2)                                                                      \
            } else {                                                                                                   \
                TG_PLANE_CHECKED(0, HAS0, HAS1, HAS2)                                                                  \
                TG_PLANE_CHECKED(1, HAS0, HAS1, HAS2)                                                                  \
                TG_PLANE_CHECKED(2, HAS0, HAS1, HAS2)                                                                  \
            }                                                                                                          \
            column++;                                                                                                  \
            at += stride;                                                                                              \
            continue;                                                                                                  \
        }                                                                                                              \
        float a0 = 0.0f, a1 = 0.0f, a2 = 0.0f, b0 = 0.0f, b1 = 0.0f, b2 = 0.0f, c0 = 0.0f, c1 = 0.0f, c2 = 0.0f;       \
        TG_PLANE_LOAD(a, HAS0, HAS1, HAS2)                                                                             \
        if (stride == 1) {                                                                                             \
            TG_PLANE_LOAD(b, HAS0, HAS1, HAS2)                                                                         \
            for (; column + 3 <= inner_stop; column += 3) {                                                            \
                TG_PLANE_LOAD(c, HAS0, HAS1, HAS2)                                                                     \
                TG_PLANE_WINDOW(a, b, c, HAS0, HAS1, HAS2)                                                             \
                TG_PLANE_LOAD(a, HAS0, HAS1, HAS2)                                                                     \
                TG_PLANE_WINDOW(b, c, a, HAS0, HAS1, HAS2)                                                             \
                TG_PLANE_LOAD(b, HAS0, HAS1, HAS2)                                                                     \
                TG_PLANE_WINDOW(c, a, b, HAS0, HAS1, HAS2)                                                             \
            }                                                                                                          \
        }                                                                                                              \
        for (; column < inner_stop; column++) {                                                                        \
            if (stride == 2) {                                                                                         \
                TG_PLANE_LOAD(b, HAS0, HAS1, HAS2)                                                                     \
            }                                                                                                          \
            TG_PLANE_LOAD(c, HAS0, HAS1, HAS2)                                                                         \
            TG_PLANE_WINDOW(a, b, c, HAS0, HAS1, HAS2)                                                                 \
            a0 = stride == 1 ? b0 : c0, a1 = stride == 1 ? b1 : c1, a2 = stride == 1 ? b2 : c2;                        \
            b0 = c0, b1 = c1, b2 = c2;                                                                                 \
        }                                                                                                              \
        at = p.left + stride * column;                                                                                 \
    }
    int inner_start, inner_stop;
    tg_plane_inner(p.left, stride, 1, p.columns, p.width, &inner_start, &inner_stop);
    TG_NINE(TG_PLANE_BEGIN)
    for (int row = 0; row < p.rows; row++) {
        const int top = p.top + stride * row;
        TG_MEM const float *gradient = map + row * p.map_row;
        TG_PLANE_ROW_OF(0)
        TG_PLANE_ROW_OF(1)
        TG_PLANE_ROW_OF(2)
        if (has0 && has1 && has2)
            TG_PLANE_ROW(1, 1, 1)
        else
            TG_PLANE_ROW(has0, has1, has2)
    }
    TG_NINE(TG_PLANE_STORE)
}

#endif
