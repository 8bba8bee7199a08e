/* Planes of 3x3 convolutions with one channel on either side: nine weights, or their gradients, and the window under
 * them stay in registers. Same order of taps as everywhere; taps on padding are skipped. */
#ifndef TG_DEPTHWISE_H
#define TG_DEPTHWISE_H
#include "tg_block.h"
#include "tg_inner.h"
#include "tg_window.h"

/* `map` is rows x columns of windows; window (row, column) covers the image from (top + stride * row,
 * left + stride * column) on, three by three. */
typedef struct {
    int rows, columns, top, left, height, width, image_row, map_row;
} tg_plane;

#define TG_NINE(F) F(0, 0) F(0, 1) F(0, 2) F(1, 0) F(1, 1) F(1, 2) F(2, 0) F(2, 1) F(2, 2)

/* Whether `count` windows reach at most one element beyond the image, on either side, and none beyond both. */
TG_INLINE int tg_plane_fits(int low, int stride, int count, int extent)
{
    return low >= -1 && extent >= 2 && low + stride * (count - 1) + 2 <= extent;
}

/* A chip's own loops take no fewer than three columns. */
#ifdef TG_INNER_PLANE
#define TG_PLANE_TOO_FEW 2
#else
#define TG_PLANE_TOO_FEW 0
#endif

TG_INLINE int tg_plane_is_usual(tg_plane p, int stride)
{
    return p.rows > 0 && p.columns > TG_PLANE_TOO_FEW &&
           tg_plane_fits(p.top, stride, p.rows, p.height) && tg_plane_fits(p.left, stride, p.columns, p.width);
}

/* A row of windows, left to right. The window's columns are a, b and c, which turn; r0 to r2 are a column's elements,
 * of which the first (HAS0) or the last (HAS2) may be missing, as may the first column (at the left edge) or the last
 * (at the right). `WINDOW(a, b, c, HAS0, HAS2, LEFT, RIGHT)` is what is done with one; x0 to x2 are the image's rows at
 * the first column that exists, `inner` the windows that have all three columns. */
#define TG_PLANE_LOAD(r, AT, HAS0, HAS2)                                                                               \
    if (HAS0)                                                                                                          \
        r##0 = x0[AT];                                                                                                 \
    r##1 = x1[AT];                                                                                                     \
    if (HAS2)                                                                                                          \
        r##2 = x2[AT];
#define TG_PLANE_NEXT(N) x0 += (N), x1 += (N), x2 += (N);
#define TG_PLANE_RIGHT(WINDOW, a, b, HAS0, HAS2)                                                                       \
    if (has_right) {                                                                                                   \
        WINDOW(a, b, b, HAS0, HAS2, 1, 0)                                                                              \
    }
#define TG_PLANE_ROW(WINDOW, STRIDE, HAS0, HAS2)                                                                       \
    {                                                                                                                  \
        int left = inner;                                                                                              \
        if ((STRIDE) == 1) {                                                                                           \
            TG_PLANE_LOAD(a, 0, HAS0, HAS2)                                                                            \
            TG_PLANE_LOAD(b, 1, HAS0, HAS2)                                                                            \
            TG_PLANE_NEXT(2)                                                                                           \
            if (has_left) {                                                                                            \
                WINDOW(b, a, b, HAS0, HAS2, 0, 1)                                                                      \
            }                                                                                                          \
            for (; left >= 3; left -= 3) {                                                                             \
                TG_PLANE_LOAD(c, 0, HAS0, HAS2)                                                                        \
                WINDOW(a, b, c, HAS0, HAS2, 1, 1)                                                                      \
                TG_PLANE_LOAD(a, 1, HAS0, HAS2)                                                                        \
                WINDOW(b, c, a, HAS0, HAS2, 1, 1)                                                                      \
                TG_PLANE_LOAD(b, 2, HAS0, HAS2)                                                                        \
                WINDOW(c, a, b, HAS0, HAS2, 1, 1)                                                                      \
                TG_PLANE_NEXT(3)                                                                                       \
            }                                                                                                          \
            if (left == 0) {                                                                                           \
                TG_PLANE_RIGHT(WINDOW, a, b, HAS0, HAS2)                                                               \
            } else {                                                                                                   \
                TG_PLANE_LOAD(c, 0, HAS0, HAS2)                                                                        \
                WINDOW(a, b, c, HAS0, HAS2, 1, 1)                                                                      \
                if (left == 1) {                                                                                       \
                    TG_PLANE_RIGHT(WINDOW, b, c, HAS0, HAS2)                                                           \
                } else {                                                                                               \
                    TG_PLANE_LOAD(a, 1, HAS0, HAS2)                                                                    \
                    WINDOW(b, c, a, HAS0, HAS2, 1, 1)                                                                  \
                    TG_PLANE_RIGHT(WINDOW, c, a, HAS0, HAS2)                                                           \
                }                                                                                                      \
            }                                                                                                          \
        } else {                                                                                                       \
            if (has_left) {                                                                                            \
                TG_PLANE_LOAD(b, 0, HAS0, HAS2)                                                                        \
                TG_PLANE_LOAD(a, 1, HAS0, HAS2)                                                                        \
                TG_PLANE_NEXT(2)                                                                                       \
                WINDOW(c, b, a, HAS0, HAS2, 0, 1)                                                                      \
            } else {                                                                                                   \
                TG_PLANE_LOAD(a, 0, HAS0, HAS2)                                                                        \
                TG_PLANE_NEXT(1)                                                                                       \
            }                                                                                                          \
            for (; left >= 2; left -= 2) {                                                                             \
                TG_PLANE_LOAD(b, 0, HAS0, HAS2)                                                                        \
                TG_PLANE_LOAD(c, 1, HAS0, HAS2)                                                                        \
                WINDOW(a, b, c, HAS0, HAS2, 1, 1)                                                                      \
                TG_PLANE_LOAD(b, 2, HAS0, HAS2)                                                                        \
                TG_PLANE_LOAD(a, 3, HAS0, HAS2)                                                                        \
                WINDOW(c, b, a, HAS0, HAS2, 1, 1)                                                                      \
                TG_PLANE_NEXT(4)                                                                                       \
            }                                                                                                          \
            if (left > 0) {                                                                                            \
                TG_PLANE_LOAD(b, 0, HAS0, HAS2)                                                                        \
                TG_PLANE_LOAD(c, 1, HAS0, HAS2)                                                                        \
                WINDOW(a, b, c, HAS0, HAS2, 1, 1)                                                                      \
                if (has_right) {                                                                                       \
                    TG_PLANE_LOAD(b, 2, HAS0, HAS2)                                                                    \
                    WINDOW(c, b, a, HAS0, HAS2, 1, 0)                                                                  \
                }                                                                                                      \
            } else if (has_right) {                                                                                    \
                TG_PLANE_LOAD(b, 0, HAS0, HAS2)                                                                        \
                WINDOW(a, b, c, HAS0, HAS2, 1, 0)                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }

/* Rows [START, STOP) of a usual plane. `EACH` is what comes before a row. */
#define TG_PLANE_ROWS(WINDOW, STRIDE, START, STOP, EACH)                                                               \
    float a0 = 0.0f, a1 = 0.0f, a2 = 0.0f, b0 = 0.0f, b1 = 0.0f, b2 = 0.0f, c0 = 0.0f, c1 = 0.0f, c2 = 0.0f;           \
    const int has_left = p.left < 0, has_right = p.left + (STRIDE) * (p.columns - 1) + 2 == p.width;                   \
    const int inner = p.columns - has_left - has_right;                                                                \
    for (int row = (START); row < (STOP); row++) {                                                                     \
        const int top = p.top + (STRIDE)*row;                                                                          \
        TG_MEM const float *x1 = image + (top + 1) * p.image_row + tg_max(p.left, 0);                                  \
        TG_MEM const float *x0 = top < 0 ? x1 : x1 - p.image_row, *x2 = x1 + p.image_row;                              \
        EACH                                                                                                           \
        if (top < 0)                                                                                                   \
            TG_PLANE_ROW(WINDOW, STRIDE, 0, 1)                                                                         \
        else if (top + 2 < p.height)                                                                                   \
            TG_PLANE_ROW(WINDOW, STRIDE, 1, 1)                                                                         \
        else                                                                                                           \
            TG_PLANE_ROW(WINDOW, STRIDE, 1, 0)                                                                         \
    }

/* Rows [start, stop) of the map; `tap` is 1, or -1 for the input gradient, whose taps run backwards. Literals: `stride`
 * and `tap`. */
TG_TEMPLATE void tg_plane_forward(TG_MEM const float *image, TG_MEM const float *w, int w_row, TG_MEM float *map,
                                  tg_plane p, int start, int stop, int stride, int tap)
{
#ifdef TG_INNER_PLANE
    const int top = p.top + stride * start, bottom = p.top + stride * (stop - 1) + 2;
    const int right = p.left + stride * (p.columns - 1) + 2;
    const int has_top = top >= 0, has_bottom = bottom < p.height, has_left = p.left >= 0, has_right = right < p.width;
    tg_inner_plane c = {4 * tap * p.image_row, 4 * tap * p.map_row, stop - start, p.columns, has_top, has_bottom,
                        has_left, has_right};
    if (tap < 0) { /* from the last window to the first */
        c.first = has_bottom, c.last = has_top, c.low = has_right, c.high = has_left;
        image += (has_bottom ? bottom : bottom - 1) * p.image_row + right;
        tg_inner_plane_left_1(image, w, w_row, map + (stop - 1) * p.map_row + p.columns - 1, &c);
        return;
    }
    image += tg_max(top, 0) * p.image_row + p.left;
    if (stride == 1)
        tg_inner_plane_right_1(image, w, w_row, map + start * p.map_row, &c);
    else
        tg_inner_plane_right_2(image, w, w_row, map + start * p.map_row, &c);
#else
#define TG_FORWARD_WEIGHT(i, j) const float w##i##j = w[i * w_row + j];
#define TG_FORWARD_TAPS(i, r, a, b, c, LEFT, RIGHT)                                                                    \
    if (tap > 0 && (LEFT))                                                                                             \
        sum = TG_FMA(a##r, w##i##0, sum);                                                                              \
    if (tap < 0 && (RIGHT))                                                                                            \
        sum = TG_FMA(c##r, w##i##0, sum);                                                                              \
    sum = TG_FMA(b##r, w##i##1, sum);                                                                                  \
    if (tap > 0 && (RIGHT))                                                                                            \
        sum = TG_FMA(c##r, w##i##2, sum);                                                                              \
    if (tap < 0 && (LEFT))                                                                                             \
        sum = TG_FMA(a##r, w##i##2, sum);
#define TG_FORWARD_WINDOW(a, b, c, HAS0, HAS2, LEFT, RIGHT)                                                            \
    {                                                                                                                  \
        float sum = 0.0f;                                                                                              \
        if (tap > 0 && (HAS0)) {                                                                                       \
            TG_FORWARD_TAPS(0, 0, a, b, c, LEFT, RIGHT)                                                                \
        }                                                                                                              \
        if (tap < 0 && (HAS2)) {                                                                                       \
            TG_FORWARD_TAPS(0, 2, a, b, c, LEFT, RIGHT)                                                                \
        }                                                                                                              \
        TG_FORWARD_TAPS(1, 1, a, b, c, LEFT, RIGHT)                                                                    \
        if (tap > 0 && (HAS2)) {                                                                                       \
            TG_FORWARD_TAPS(2, 2, a, b, c, LEFT, RIGHT)                                                                \
        }                                                                                                              \
        if (tap < 0 && (HAS0)) {                                                                                       \
            TG_FORWARD_TAPS(2, 0, a, b, c, LEFT, RIGHT)                                                                \
        }                                                                                                              \
        *out++ = sum;                                                                                                  \
    }
    TG_NINE(TG_FORWARD_WEIGHT)
    TG_PLANE_ROWS(TG_FORWARD_WINDOW, stride, start, stop, TG_MEM float *out = map + row * p.map_row;)
#endif
}

/* Adds the plane's share to the nine gradients at `dw`, which begin at zero if `first`. `stride` is a literal. */
TG_TEMPLATE void tg_plane_weight(TG_MEM const float *image, TG_MEM const float *map, TG_MEM float *dw, int dw_row,
                                 tg_plane p, int first, int stride)
{
#define TG_WEIGHT_BEGIN(i, j) float s##i##j = 0.0f;
#define TG_WEIGHT_CONTINUE(i, j) s##i##j = dw[i * dw_row + j];
#define TG_WEIGHT_STORE(i, j) dw[i * dw_row + j] = s##i##j;
#define TG_WEIGHT_COLUMN(j, r, HAS0, HAS2)                                                                             \
    if (HAS0)                                                                                                          \
        s0##j = TG_FMA(d, r##0, s0##j);                                                                                \
    s1##j = TG_FMA(d, r##1, s1##j);                                                                                    \
    if (HAS2)                                                                                                          \
        s2##j = TG_FMA(d, r##2, s2##j);
#define TG_WEIGHT_WINDOW(a, b, c, HAS0, HAS2, LEFT, RIGHT)                                                             \
    {                                                                                                                  \
        const float d = *gradient++;                                                                                   \
        if (LEFT) {                                                                                                    \
            TG_WEIGHT_COLUMN(0, a, HAS0, HAS2)                                                                         \
        }                                                                                                              \
        TG_WEIGHT_COLUMN(1, b, HAS0, HAS2)                                                                             \
        if (RIGHT) {                                                                                                   \
            TG_WEIGHT_COLUMN(2, c, HAS0, HAS2)                                                                         \
        }                                                                                                              \
    }
    TG_NINE(TG_WEIGHT_BEGIN)
    if (!first) {
        TG_NINE(TG_WEIGHT_CONTINUE)
    }
    TG_PLANE_ROWS(TG_WEIGHT_WINDOW, stride, 0, p.rows, TG_MEM const float *gradient = map + row * p.map_row;)
    TG_NINE(TG_WEIGHT_STORE)
}

/* Adds a plane's bias, if there is one, to its finished rows [start, stop). */
TG_INLINE void tg_plane_bias(TG_MEM const float *b, TG_MEM float *map, tg_plane p, int start, int stop)
{
    if (b != TG_NULL)
        for (int row = start; row < stop; row++)
            for (int column = 0; column < p.columns; column++)
                map[row * p.map_row + column] += *b;
}

/* One row of the input gradient of stride two, from the one or two rows of the map that reach it (`d0` with the weights
 * u0 to u2, then `d1` with v0 to v2; `two` is a literal). Its element (column + left) is even, with taps 0 and 2 at map
 * columns at and at - 1, or odd, with tap 1 at `at`: pairs of those, where both of a pair's map columns exist. */
TG_TEMPLATE void tg_plane_gather_row(TG_MEM const float *d0, TG_MEM const float *d1, TG_MEM const float *u,
                                     TG_MEM const float *v, TG_MEM float *out, int columns, int left, int width,
                                     int two)
{
#define TG_GATHER_ADD(SUM, FIRST, TAP) SUM = FIRST ? TG_FMA(d0[at - (TAP) / 2], u##TAP, SUM) : SUM;
#define TG_GATHER_ADD_TWO(SUM, FIRST, TAP) SUM = two && (FIRST) ? TG_FMA(d1[at - (TAP) / 2], v##TAP, SUM) : SUM;
    const float u0 = u[0], u1 = u[1], u2 = u[2], v0 = two ? v[0] : 0.0f, v1 = two ? v[1] : 0.0f, v2 = two ? v[2] : 0.0f;
    int column = 0;
    while (column < columns) {
        int across = column + left, at = across >> 1;
        if ((across & 1) == 0 && at >= 1 && at < width && column + 2 <= columns) {
            int pairs = tg_min((columns - column) / 2, width - at);
            TG_MEM const float *e0 = d0 + at, *e1 = d1 + at;
            float before0 = e0[-1], before1 = two ? e1[-1] : 0.0f;
            column += 2 * pairs;
            for (; pairs > 0; pairs--, out += 2) {
                const float x0 = *e0++, x1 = two ? *e1++ : 0.0f;
                float even = TG_FMA(before0, u2, TG_FMA(x0, u0, 0.0f)), odd = TG_FMA(x0, u1, 0.0f);
                if (two) {
                    even = TG_FMA(before1, v2, TG_FMA(x1, v0, even));
                    odd = TG_FMA(x1, v1, odd);
                }
                out[0] = even;
                out[1] = odd;
                before0 = x0, before1 = x1;
            }
            continue;
        }
        const int has = at >= 0 && at < width, has_back = at >= 1 && at <= width;
        float sum = 0.0f;
        if (across & 1) {
            TG_GATHER_ADD(sum, has, 1)
            TG_GATHER_ADD_TWO(sum, has, 1)
        } else {
            TG_GATHER_ADD(sum, has, 0)
            TG_GATHER_ADD(sum, has_back, 2)
            TG_GATHER_ADD_TWO(sum, has, 0)
            TG_GATHER_ADD_TWO(sum, has_back, 2)
        }
        *out++ = sum;
        column++;
    }
}

/* The input gradient of stride two: rows [start, stop) of the image from the map. Image row (row + top) is even, with
 * taps 0 and 2 at map rows `high` and the one before, or odd, with tap 1. `top` and `left` of the plane are the offsets,
 * `height` and `width` the map's, `columns` the image's. */
TG_INLINE void tg_plane_gather(TG_MEM const float *map, TG_MEM const float *w, int w_row, TG_MEM float *image,
                               tg_plane p, int start, int stop)
{
    for (int row = start; row < stop; row++) {
        const int whole = row + p.top, is_odd = whole & 1, high = whole >> 1;
        const int has_high = high >= 0 && high < p.height, has_back = !is_odd && high >= 1 && high <= p.height;
        TG_MEM float *out = image + row * p.map_row;
        TG_MEM const float *d = map + high * p.image_row, *v = w + is_odd * w_row;
        if (has_high && has_back)
            tg_plane_gather_row(d, d - p.image_row, v, v + 2 * w_row, out, p.columns, p.left, p.width, 1);
        else if (has_high)
            tg_plane_gather_row(d, d, v, v, out, p.columns, p.left, p.width, 0);
        else if (has_back)
            tg_plane_gather_row(d - p.image_row, d, v + 2 * w_row, v, out, p.columns, p.left, p.width, 0);
        else
            for (int column = 0; column < p.columns; column++)
                out[column] = 0.0f;
    }
}

#endif
