/* Convolution in registers: blocks of four channels (or one) by four columns. Every output has one accumulator and
 * takes its taps in order; taps on padding are skipped. Functions are inlined where literals select the code. */
#ifndef TG_CONVOLUTION_H
#define TG_CONVOLUTION_H
#include "tg_block.h"
#include "tg_inner.h"
#include "tg_window.h"

/* A row of outputs, of a convolution or of its input gradient alike: `x` is what is read, `y` what is written. An
 * output's taps are channels x rows x taps; all rows are inside the image, a tap may be outside. Steps are in elements;
 * `lane` is the step in x from one output to the next. `position` is where in the image's row, `extent` long, the first
 * tap of the first output lies, and `position_tap` its step. */
typedef struct {
    int channels, rows, taps, outs, columns, extent;
    int x_channel, x_row, x_tap, w_channel, w_row, w_tap, w_out, y_out, y_lane;
    int lane, position, position_tap;
    int first, last;
} tg_conv_row;

/* Rows and columns that do not exist repeat the last one that does; storing backwards, the real one comes last. */
#define TG_CONV_OUT(i) TG_MEM float *y##i = y + (i < width ? tg_min(i, r->outs - 1) * r->y_out : 0);
#define TG_CONV_ZERO(i, j) float s##i##j = 0.0f;
#define TG_CONV_LOAD(i, j)                                                                                             \
    if (i < width)                                                                                                     \
        s##i##j = y##i[c##j];
#define TG_CONV_BIAS(i, j)                                                                                             \
    if (i < width)                                                                                                     \
        s##i##j += b[tg_min(i, r->outs - 1)];
#define TG_CONV_STORE(i) y##i[c3] = s##i##3, y##i[c2] = s##i##2, y##i[c1] = s##i##1, y##i[c0] = s##i##0
#define TG_CONV_WEIGHT_OFFSET(i) const int o##i = i < width ? tg_min(i, r->outs - 1) * r->w_out : 0;
#define TG_CONV_WEIGHT_POINTER(i) TG_MEM const float *w##i = w + w_at + o##i;
#define TG_CONV_STEP(i, j)                                                                                             \
    if (i < width)                                                                                                     \
        s##i##j = TG_FMA(x##j, v##i, s##i##j);
#define TG_CONV_LANE(j) TG_CONV_STEP(0, j) TG_CONV_STEP(1, j) TG_CONV_STEP(2, j) TG_CONV_STEP(3, j)
#define TG_CONV_BEGIN                                                                                                  \
    TG_ROW4(TG_CONV_OUT)                                                                                               \
    TG_ROW4(TG_CONV_WEIGHT_OFFSET)                                                                                     \
    TG_BLOCK(TG_CONV_ZERO)                                                                                             \
    if (!r->first) {                                                                                                   \
        TG_BLOCK(TG_CONV_LOAD)                                                                                         \
    }
#define TG_CONV_EACH_ROW                                                                                               \
    for (int c = r->rows * r->taps > 0 ? r->channels : 0; c > 0; c--, x += r->x_channel, w += r->w_channel)            \
        for (int row = 0, x_row = at, w_at = 0; row < r->rows; row++, x_row += r->x_row, w_at += r->w_row)
#define TG_CONV_END                                                                                                    \
    if (r->last && b != TG_NULL) {                                                                                     \
        TG_BLOCK(TG_CONV_BIAS)                                                                                         \
    }                                                                                                                  \
    if (width == 4)                                                                                                    \
        TG_CONV_STORE(3), TG_CONV_STORE(2), TG_CONV_STORE(1);                                                          \
    TG_CONV_STORE(0);

/* A block of `width` channels (4 or 1, a literal) by four columns, `lane` elements apart; `x` is the row's start, `at`
 * the first tap's position in it. If `checked`, only `lanes` of the columns exist and taps may be outside the image. */
TG_TEMPLATE void tg_conv_block(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *y,
                               const tg_conv_row *r, int width, int lane, int checked, int lanes, int at)
{
    int taps = r->taps, x_tap = r->x_tap, w_tap = r->w_tap, y_lane = r->y_lane;
    int c0 = 0, c1 = tg_min(1, lanes - 1) * y_lane, c2 = tg_min(2, lanes - 1) * y_lane, c3 = (lanes - 1) * y_lane;
    unsigned extent = (unsigned)r->extent, safe = (unsigned)(lanes == 4 ? tg_max(r->extent - 3 * lane, 0) : 0);
    TG_CONV_BEGIN
    TG_CONV_EACH_ROW
    {
        TG_ROW4(TG_CONV_WEIGHT_POINTER)
        int position = at, k_x = x_row;
        for (int k = 0; k < taps; k++, k_x += x_tap) {
#define TG_CONV_WEIGHT(i)                                                                                              \
    float v##i = i < width ? *w##i : 0.0f;                                                                             \
    w##i += w_tap;
#define TG_CONV_IMAGE(j) float x##j = x[k_x + j * lane];
#define TG_CONV_CHECKED_LANE(j)                                                                                        \
    if (j < lanes && (unsigned)(position + j * lane) < extent) {                                                       \
        TG_CONV_IMAGE(j)                                                                                               \
        TG_CONV_LANE(j)                                                                                                \
    }
            TG_ROW4(TG_CONV_WEIGHT)
            if (!checked || (unsigned)position < safe) {
                TG_ROW4(TG_CONV_IMAGE)
                TG_BLOCK(TG_CONV_STEP)
            } else {
                TG_ROW4(TG_CONV_CHECKED_LANE)
            }
            position += r->position_tap;
        }
    }
    TG_CONV_END
}

/* The same for four existing columns, three taps one column apart (`tap` is 1 or -1) and literal steps, so that lanes
 * share what they load. Only the outermost tap at either end may be outside: the first lane's and the last lane's. */
TG_TEMPLATE void tg_conv_block3(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *y,
                                const tg_conv_row *r, int width, int lane, int tap, int at)
{
    const int low = tap > 0 ? 0 : 2, high = 2 - low, c0 = 0, c1 = 1, c2 = 2, c3 = 3; /* the taps that reach furthest */
    const int has_low = at + low * tap >= 0, has_high = at + 3 * lane + high * tap < r->extent;
#ifdef TG_INNER_CONV
    if (lane == 1 && r->rows > 0 && r->channels > 0) {
        const tg_inner_conv c = {r->channels * r->rows, r->rows, 4 * r->x_row, 4 * (r->x_channel - r->rows * r->x_row),
                                 4 * r->w_row, 4 * (r->w_channel - r->rows * r->w_row), r->w_out, r->y_out, r->first};
        if (tap > 0)
            tg_inner_conv_right(x + at, w, y, &c, r->outs, has_low, has_high);
        else
            tg_inner_conv_left(x + at - 2, w, y, &c, r->outs, has_high, has_low);
        for (int i = 0; r->last && b != TG_NULL && i < r->outs; i++)
            for (int j = 0; j < 4; j++)
                y[i * r->y_out + j] += b[i];
        return;
    }
#endif
    TG_CONV_BEGIN
    TG_CONV_EACH_ROW
    {
        TG_ROW4(TG_CONV_WEIGHT_POINTER)
#define TG_CONV_TAP(k)                                                                                                 \
    {                                                                                                                  \
        float v0 = w0[k], v1 = w1[k], v2 = w2[k], v3 = w3[k];                                                          \
        float x1 = x[x_row + lane + k * tap], x2 = x[x_row + 2 * lane + k * tap];                                      \
        if (k != low || has_low) {                                                                                     \
            float x0 = x[x_row + k * tap];                                                                             \
            TG_CONV_LANE(0)                                                                                            \
        }                                                                                                              \
        TG_CONV_LANE(1)                                                                                                \
        TG_CONV_LANE(2)                                                                                                \
        if (k != high || has_high) {                                                                                   \
            float x3 = x[x_row + 3 * lane + k * tap];                                                                  \
            TG_CONV_LANE(3)                                                                                            \
        }                                                                                                              \
    }
        TG_CONV_TAP(0)
        TG_CONV_TAP(1)
        TG_CONV_TAP(2)
    }
    TG_CONV_END
}

/* The general block for any row: unchecked where all taps of four columns are inside. */
TG_TEMPLATE void tg_conv_block_any(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *y,
                                   const tg_conv_row *r, int width, int lanes, int at)
{
    int last = at + (r->taps - 1) * r->position_tap;
    if (lanes < 4 || tg_min(at, last) < 0 || tg_max(at, last) + 3 * r->lane >= r->extent)
        tg_conv_block(x, w, b, y, r, width, r->lane, 1, lanes, at);
    else if (r->lane == 1)
        tg_conv_block(x, w, b, y, r, width, 1, 0, 4, at);
    else
        tg_conv_block(x, w, b, y, r, width, r->lane, 0, 4, at);
}

TG_INLINE void tg_conv_block_of_four(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b,
                                     TG_MEM float *y, const tg_conv_row *r, int lanes, int at)
{
    tg_conv_block_any(x, w, b, y, r, 4, lanes, at);
}

TG_INLINE void tg_conv_block_of_one(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b,
                                    TG_MEM float *y, const tg_conv_row *r, int lanes, int at)
{
    tg_conv_block_any(x, w, b, y, r, 1, lanes, at);
}

/* Four channels by five columns, for rows that end in five: any taps, each checked as a whole and then lane by lane. */
TG_TEMPLATE void tg_conv_block_by_five(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b,
                                       TG_MEM float *y, const tg_conv_row *r, int lane, int at)
{
    enum { width = 4, c0 = 0 };
    const int y_lane = r->y_lane, c1 = y_lane, c2 = 2 * y_lane, c3 = 3 * y_lane, taps = r->taps, x_tap = r->x_tap;
    const int w_tap = r->w_tap, position_tap = r->position_tap;
    const unsigned extent = (unsigned)r->extent, safe = (unsigned)tg_max(r->extent - 4 * lane, 0);
#define TG_CONV_FIFTH_ZERO(i) float s##i##4 = 0.0f;
#define TG_CONV_FIFTH_LOAD(i) s##i##4 = y##i[4 * y_lane];
#define TG_CONV_FIFTH_BIAS(i) s##i##4 += b[tg_min(i, r->outs - 1)];
#define TG_CONV_FIFTH_STORE(i) y##i[4 * y_lane] = s##i##4
#define TG_CONV_FIFTH_LANE(j)                                                                                          \
    if ((unsigned)(position + j * lane) < extent) {                                                                    \
        TG_CONV_IMAGE(j)                                                                                               \
        TG_CONV_LANE(j)                                                                                                \
    }
    TG_CONV_BEGIN
    TG_ROW4(TG_CONV_FIFTH_ZERO)
    if (!r->first) {
        TG_ROW4(TG_CONV_FIFTH_LOAD)
    }
    TG_CONV_EACH_ROW
    {
        TG_ROW4(TG_CONV_WEIGHT_POINTER)
        int position = at, k_x = x_row;
        for (int k = 0; k < taps; k++, k_x += x_tap, position += position_tap) {
            TG_ROW4(TG_CONV_WEIGHT)
            if ((unsigned)position < safe) {
                TG_ROW4(TG_CONV_IMAGE)
                TG_CONV_IMAGE(4)
                TG_BLOCK(TG_CONV_STEP)
                TG_CONV_LANE(4)
            } else {
                TG_ROW4(TG_CONV_FIFTH_LANE)
                TG_CONV_FIFTH_LANE(4)
            }
        }
    }
    if (r->last && b != TG_NULL) {
        TG_BLOCK(TG_CONV_BIAS)
        TG_ROW4(TG_CONV_FIFTH_BIAS)
    }
    TG_CONV_FIFTH_STORE(3), TG_CONV_STORE(3), TG_CONV_FIFTH_STORE(2), TG_CONV_STORE(2);
    TG_CONV_FIFTH_STORE(1), TG_CONV_STORE(1), TG_CONV_FIFTH_STORE(0), TG_CONV_STORE(0);
}

TG_APART void tg_conv_block_of_five(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b,
                                    TG_MEM float *y, const tg_conv_row *r, int at)
{
    if (r->lane == 2)
        tg_conv_block_by_five(x, w, b, y, r, 2, at);
    else
        tg_conv_block_by_five(x, w, b, y, r, r->lane, at);
}

/* A row of outputs, four columns at a time. With unit steps between taps (`tap` is 1 or -1; 0 for any) and `lane` a
 * literal, windows of three taps take the fast block; its last one is moved back over its neighbour where that does no
 * harm, which computes the same bits again. */
TG_TEMPLATE void tg_conv_columns(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *y,
                                 const tg_conv_row *r, int width, int lane, int tap)
{
    int is_three = width == 4 && tap != 0 && r->taps == 3 && r->position_tap == tap;
    for (int column = 0; column < r->columns; column += 4) {
        if (is_three && column + 4 > r->columns && r->first && r->columns >= 4)
            column = r->columns - 4;
        int lanes = tg_min(4, r->columns - column), at = r->position + column * lane, left = at + tg_min(2 * tap, 0);
        TG_MEM float *out = y + column * r->y_lane;
        if (is_three && lanes == 4 && left >= -1 && left + 3 * lane + 2 <= r->extent)
            tg_conv_block3(x, w, b, out, r, width, lane, tap, at);
        else if (width == 4 && !is_three && column + 5 == r->columns) {
            tg_conv_block_of_five(x, w, b, out, r, at);
            return;
        } else if (width == 4)
            tg_conv_block_of_four(x, w, b, out, r, lanes, at);
        else
            tg_conv_block_of_one(x, w, b, out, r, lanes, at);
    }
}

#ifdef TG_INNER_GATHER
/* Every other output of a row, four at a time, by the chip's own blocks: one or two taps, one column apart. */
TG_APART void tg_conv_gather_columns(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b,
                                     TG_MEM float *y, const tg_conv_row *r)
{
    const tg_inner_conv c = {r->channels * r->rows, r->rows, 4 * r->x_row, 4 * (r->x_channel - r->rows * r->x_row),
                             4 * r->w_row, 4 * (r->w_channel - r->rows * r->w_row), r->w_out, r->y_out, r->first};
    for (int column = 0; column < r->columns; column += 4) {
        if (column + 4 > r->columns && r->first && r->columns >= 4)
            column = r->columns - 4;
        int lanes = tg_min(4, r->columns - column), at = r->position + column, back = r->taps - 1;
        TG_MEM float *out = y + 2 * column;
        if (lanes < 4 || at < 0 || at + 3 - back >= r->extent) {
            tg_conv_block_of_four(x, w, b, out, r, lanes, at);
            continue;
        }
        tg_inner_gather(x + at - back, w, out, &c, r->outs, r->taps, at > 0, at + 3 < r->extent);
        for (int i = 0; r->last && b != TG_NULL && i < r->outs; i++)
            for (int j = 0; j < 8; j += 2)
                out[i * r->y_out + j] += b[i];
    }
}
#endif

/* The same outputs, for rows of a single tap, with the inner loop over rows, or over channels if there is one row. */
TG_INLINE tg_conv_row tg_conv_flat(tg_conv_row r)
{
    int one_row = r.rows == 1;
    r.taps = one_row ? r.channels : r.rows;
    r.x_tap = one_row ? r.x_channel : r.x_row;
    r.w_tap = one_row ? r.w_channel : r.w_row;
    r.channels = one_row ? 1 : r.channels;
    r.rows = 1;
    r.position_tap = 0;
    return r;
}

/* Counts (outer, group, block, row) up, row fastest. */
typedef struct {
    int outer, group, block, row;
} tg_conv_at;

TG_INLINE tg_conv_at tg_conv_locate(int unit, int groups, int blocks, int rows)
{
    tg_conv_at at;
    at.row = unit % rows;
    unit /= rows;
    at.block = unit % blocks;
    unit /= blocks;
    at.group = unit % groups;
    at.outer = unit / groups;
    return at;
}

TG_INLINE void tg_conv_advance(tg_conv_at *at, int groups, int blocks, int rows)
{
    if (++at->row < rows)
        return;
    at->row = 0;
    if (++at->block < blocks)
        return;
    at->block = 0;
    if (++at->group < groups)
        return;
    at->group = 0;
    at->outer++;
}

TG_TEMPLATE int tg_conv_gather_by(int numerator, int taps, int stride, int dilation, int k_step, int *k, int *position)
{
    *k = 0;
    while (*k < k_step && (numerator - *k * dilation) % stride != 0)
        (*k)++;
    *position = (numerator - *k * dilation) / stride;
    return *k < k_step && *k < taps ? (taps - *k + k_step - 1) / k_step : 0;
}

/* The taps of a gather: those k of [0, taps) for which `numerator - k * dilation` is a multiple of the stride. They
 * begin at *k, which lies at *position, and are `k_step` apart. Returns their number. */
TG_INLINE int tg_conv_gather(int numerator, int taps, int stride, int dilation, int k_step, int *k, int *position)
{
    if (stride == 1) /* literal strides: no division */
        return tg_conv_gather_by(numerator, taps, 1, dilation, 1, k, position);
    if (stride == 2 && k_step == 2)
        return tg_conv_gather_by(numerator, taps, 2, dilation, 2, k, position);
    return tg_conv_gather_by(numerator, taps, stride, dilation, k_step, k, position);
}

TG_INLINE int tg_gcd(int a, int b)
{
    while (b != 0) {
        int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

#endif
