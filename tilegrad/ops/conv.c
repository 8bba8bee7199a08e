/* Convolutions in their three directions: `conv` computes the map from image and weight, `conv_dx` the image from map
 * and weight (each image element gathers its own sum), `conv_dw` the weight from image and map. Taps that fall on
 * padding are skipped; a bias is added last. Sums run over (channel, kh, kw); for the weight over (n, oh, ow).
 *
 * `_single` variants compute one channel at a time instead of four, for depthwise convolutions; `_pointwise` ones are
 * matrix products, for 1x1 windows that neither stride nor pad. */
#include "tg_gemm.h"
#include "tg_window.h"

typedef struct {
    int32_t n_n, n_g, n_o, n_i, n_oh, n_ow, n_kh, n_kw;
    int32_t stride_h, stride_w, dilation_h, dilation_w;
    int32_t x_s0, x_s1, x_s2, x_s3, x_n3, x_n4, x_o3, x_o4;
    int32_t w_s0, w_s1, w_s2, w_s3, y_s0, y_s1, y_s2, y_s3, b_s0;
    int32_t first, last;
} tg_conv_args;

typedef struct {
    int32_t n_n, n_g, n_o, n_i, n_ih, n_iw, n_kh, n_kw;
    int32_t stride_h, stride_w, dilation_h, dilation_w;
    int32_t dy_s0, dy_s1, dy_s2, dy_s3, dy_n3, dy_n4, dy_o3, dy_o4;
    int32_t w_s0, w_s1, w_s2, w_s3, dx_s0, dx_s1, dx_s2, dx_s3, b_s0;
    int32_t first, last;
} tg_conv_dx_args;

typedef struct {
    int32_t n_n, n_g, n_o, n_i, n_oh, n_ow, n_kh, n_kw;
    int32_t stride_h, stride_w, dilation_h, dilation_w;
    int32_t x_s0, x_s1, x_s2, x_s3, x_n3, x_n4, x_o3, x_o4;
    int32_t dy_s0, dy_s1, dy_s2, dy_s3, dw_s0, dw_s1, dw_s2, dw_s3;
    int32_t first;
} tg_conv_dw_args;

typedef struct {
    int32_t n_c, n_n, n_p, dy_s0, dy_s1, first;
} tg_conv_db_args;

typedef struct {
    int32_t n_n, n_g, n_o, n_i, n_p;
    int32_t x_s0, x_s1, x_s2, w_s0, w_s1, y_s0, y_s1, y_s2, b_s0;
    int32_t first, last;
} tg_conv_pointwise_args;

typedef struct {
    int32_t n_n, n_g, n_o, n_i, n_p;
    int32_t dy_s0, dy_s1, dy_s2, w_s0, w_s1, dx_s0, dx_s1, dx_s2, b_s0;
    int32_t first, last;
} tg_conv_pointwise_dx_args;

typedef struct {
    int32_t n_n, n_g, n_o, n_i, n_p;
    int32_t x_s0, x_s1, x_s2, dy_s0, dy_s1, dy_s2, dw_s0, dw_s1;
    int32_t first;
} tg_conv_pointwise_dw_args;

/* One row of outputs, for `conv` and `conv_dx` alike: `x` is what is read, `y` what is written. An output's taps are
 * channels x rows x taps; all rows are inside the image, a tap may be outside. Steps are in elements; `position` is
 * where in the image row the first tap of the first output lies, `position_tap` its step. */
typedef struct {
    int channels, rows, taps, outs, columns, extent;
    int x_channel, x_row, x_tap, w_channel, w_row, w_tap, w_out, y_out, y_lane;
    int position, position_tap;
    int first, last;
} tg_conv_row;

#define TG_ZERO(i, j) float s##i##j = 0.0f;
#define TG_LOAD(i, j)                                                                                                  \
    if (i < width && i < r.outs && j < lanes)                                                                          \
        s##i##j = y[i * r.y_out + j * r.y_lane];
#define TG_STORE(i, j)                                                                                                 \
    if (i < width && i < r.outs && j < lanes)                                                                          \
        y[i * r.y_out + j * r.y_lane] = r.last && b != TG_NULL ? s##i##j + b[i] : s##i##j;
#define TG_WEIGHT_POINTER(i) TG_MEM const float *w##i = w_row + (i < width ? tg_min(i, r.outs - 1) * r.w_out : 0);
#define TG_STEP(i, j)                                                                                                  \
    if (i < width)                                                                                                     \
        s##i##j = TG_FMA(x##j, v##i, s##i##j);
#define TG_LANE(j) TG_STEP(0, j) TG_STEP(1, j) TG_STEP(2, j) TG_STEP(3, j)
#define TG_EACH_ROW                                                                                                    \
    for (int c = 0; c < r.channels; c++, x += r.x_channel, w += r.w_channel)                                           \
        for (int row = 0, x_row = at, w_at = 0; row < r.rows; row++, x_row += r.x_row, w_at += r.w_row)

/* A block of `width` channels (4 or 1, a literal) by four columns, of which `lanes` exist; `x` is the row's start and
 * `at` the first tap's position in it. A channel that does not exist repeats the last one that does. */
TG_TEMPLATE void tg_conv_block(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *y,
                               tg_conv_row r, int width, int lane, int lanes, int at)
{
    TG_BLOCK(TG_ZERO)
    if (!r.first) {
        TG_BLOCK(TG_LOAD)
    }
    unsigned extent = (unsigned)r.extent, safe = (unsigned)(lanes == 4 ? tg_max(r.extent - 3 * lane, 0) : 0);
    TG_EACH_ROW
    {
        TG_MEM const float *w_row = w + w_at;
        TG_ROW4(TG_WEIGHT_POINTER)
        int position = at, k_x = x_row;
        for (int k = 0, k_w = 0; k < r.taps; k++, k_w += r.w_tap, k_x += r.x_tap, position += r.position_tap) {
#define TG_WEIGHT(i) float v##i = w##i[k_w];
#define TG_IMAGE(j) float x##j = x[k_x + j * lane];
#define TG_CHECKED_LANE(j)                                                                                             \
    if (j < lanes && (unsigned)(position + j * lane) < extent) {                                                       \
        TG_IMAGE(j)                                                                                                    \
        TG_LANE(j)                                                                                                     \
    }
            TG_ROW4(TG_WEIGHT)
            if ((unsigned)position < safe) {
                TG_ROW4(TG_IMAGE)
                TG_BLOCK(TG_STEP)
            } else {
                TG_ROW4(TG_CHECKED_LANE)
            }
#undef TG_WEIGHT
#undef TG_IMAGE
#undef TG_CHECKED_LANE
        }
    }
    TG_BLOCK(TG_STORE)
}

/* The same for four existing columns, three taps one column apart (`tap` is 1 or -1) and literal steps, so that lanes
 * share what they load. Only the outermost tap at either end may be outside: the leftmost lane's and the rightmost's. */
TG_TEMPLATE void tg_conv_block3(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *y,
                                tg_conv_row r, int width, int lane, int tap, int at)
{
    const int lanes = 4, low = tap > 0 ? 0 : 2, high = 2 - low; /* the taps that reach furthest */
    const int has_low = at + low * tap >= 0, has_high = at + 3 * lane + high * tap < r.extent;
    TG_BLOCK(TG_ZERO)
    if (!r.first) {
        TG_BLOCK(TG_LOAD)
    }
    TG_EACH_ROW
    {
        TG_MEM const float *w_row = w + w_at;
        TG_ROW4(TG_WEIGHT_POINTER)
#define TG_TAP(k)                                                                                                      \
    {                                                                                                                  \
        float v0 = w0[k], v1 = w1[k], v2 = w2[k], v3 = w3[k];                                                          \
        float x1 = x[x_row + lane + k * tap], x2 = x[x_row + 2 * lane + k * tap];                                      \
        if (k != low || has_low) {                                                                                     \
            float x0 = x[x_row + k * tap];                                                                             \
            TG_LANE(0)                                                                                                 \
        }                                                                                                              \
        TG_LANE(1)                                                                                                     \
        TG_LANE(2)                                                                                                     \
        if (k != high || has_high) {                                                                                   \
            float x3 = x[x_row + 3 * lane + k * tap];                                                                  \
            TG_LANE(3)                                                                                                 \
        }                                                                                                              \
    }
        TG_TAP(0)
        TG_TAP(1)
        TG_TAP(2)
#undef TG_TAP
    }
    TG_BLOCK(TG_STORE)
}

#undef TG_ZERO
#undef TG_LOAD
#undef TG_STORE
#undef TG_WEIGHT_POINTER
#undef TG_STEP
#undef TG_LANE
#undef TG_EACH_ROW

/* A row of outputs, four columns at a time; the last block is moved back over its neighbour where that does no harm,
 * which computes the same bits again. `tap` is 1 or -1 for the unit steps of `tg_conv_block3`, 0 for any. */
TG_TEMPLATE void tg_conv_columns(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *y,
                                 tg_conv_row r, int width, int lane, int tap)
{
    if (r.rows == 1 && r.taps == 1) { /* let the inner loop run over channels */
        r.taps = r.channels;
        r.channels = 1;
        r.x_tap = r.x_channel;
        r.w_tap = r.w_channel;
        r.position_tap = 0;
    }
    for (int column = 0; column < r.columns; column += 4) {
        if (column + 4 > r.columns && r.first && r.columns >= 4)
            column = r.columns - 4;
        int lanes = tg_min(4, r.columns - column), at = r.position + column * lane, left = at + tg_min(2 * tap, 0);
        TG_MEM float *out = y + column * r.y_lane;
        if (tap != 0 && r.taps == 3 && r.position_tap != 0 && lanes == 4 && left >= -1 && left + 3 * lane + 2 <= r.extent)
            tg_conv_block3(x, w, b, out, r, width, lane, tap, at);
        else
            tg_conv_block(x, w, b, out, r, width, lane, lanes, at);
    }
}

/* Counts (n, g, block of channels, row) up, row fastest. */
typedef struct {
    int n, g, block, row;
} tg_conv_at;

TG_INLINE tg_conv_at tg_conv_locate(int unit, int groups, int blocks, int rows)
{
    tg_conv_at at;
    at.row = unit % rows;
    unit /= rows;
    at.block = unit % blocks;
    unit /= blocks;
    at.g = unit % groups;
    at.n = unit / groups;
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
    if (++at->g < groups)
        return;
    at->g = 0;
    at->n++;
}

TG_TEMPLATE void tg_conv_any(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *y,
                             TG_ARG const tg_conv_args *p, int width, int core_id, int core_count)
{
    int start, stop, blocks = (p->n_o + width - 1) / width;
    tg_share(p->n_n * p->n_g * blocks * p->n_oh, core_id, core_count, &start, &stop);
    if (start >= stop)
        return;
    tg_conv_row r = {p->n_i, 0, p->n_kw, 0, p->n_ow, p->x_n4, p->x_s2, p->dilation_h * p->x_s3, p->dilation_w, p->w_s2,
                     p->w_s3, 1, p->w_s1, p->y_s2, 1, p->x_o4, p->dilation_w, p->first, p->last};
    tg_conv_at at = tg_conv_locate(start, p->n_g, blocks, p->n_oh);
    for (int unit = start; unit < stop; unit++, tg_conv_advance(&at, p->n_g, blocks, p->n_oh)) {
        int o = at.block * width, top = at.row * p->stride_h + p->x_o3, kh, kh_stop;
        tg_window_taps(top, p->dilation_h, p->n_kh, 0, p->x_n3, &kh, &kh_stop);
        r.rows = tg_max(kh_stop - kh, 0);
        r.outs = tg_min(width, p->n_o - o);
        TG_MEM const float *from = x, *weight = w + at.g * p->w_s0 + o * p->w_s1;
        if (r.rows > 0) {
            from += at.n * p->x_s0 + at.g * p->x_s1 + (top + kh * p->dilation_h) * p->x_s3;
            weight += kh * p->w_s3;
        }
        TG_MEM const float *bias = b == TG_NULL ? TG_NULL : b + at.g * p->b_s0 + o;
        TG_MEM float *out = y + at.n * p->y_s0 + at.g * p->y_s1 + o * p->y_s2 + at.row * p->y_s3;
        if (p->dilation_w == 1 && p->stride_w == 1)
            tg_conv_columns(from, weight, bias, out, r, width, 1, 1);
        else if (p->dilation_w == 1 && p->stride_w == 2)
            tg_conv_columns(from, weight, bias, out, r, width, 2, 1);
        else
            tg_conv_columns(from, weight, bias, out, r, width, p->stride_w, 0);
    }
}

/* The taps of a gather: those k of [0, taps) for which `numerator - k * dilation` is a multiple of the stride. They are
 * `k_step` apart from *k on; the *k-th lies at *position, each further one `back` before. Returns their number. */
TG_INLINE int tg_conv_gather(int numerator, int taps, int stride, int dilation, int k_step, int *k, int *position)
{
    *k = 0;
    while (*k < k_step && (numerator - *k * dilation) % stride != 0)
        (*k)++;
    *position = (numerator - *k * dilation) / stride;
    return *k < k_step && *k < taps ? (taps - *k + k_step - 1) / k_step : 0;
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

TG_TEMPLATE void tg_conv_dx_any(TG_MEM const float *dy, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *dx,
                                TG_ARG const tg_conv_dx_args *p, int width, int core_id, int core_count)
{
    int start, stop, blocks = (p->n_i + width - 1) / width;
    tg_share(p->n_n * p->n_g * blocks * p->n_ih, core_id, core_count, &start, &stop);
    if (start >= stop)
        return;
    int common_h = tg_gcd(p->stride_h, p->dilation_h), common_w = tg_gcd(p->stride_w, p->dilation_w);
    int back_h = p->dilation_h / common_h, back_w = p->dilation_w / common_w;
    int k_step_h = p->stride_h / common_h, k_step_w = p->stride_w / common_w;
    tg_conv_row r = {p->n_o, 0, 0, 0, 0, p->dy_n4, p->dy_s2, -back_h * p->dy_s3, -back_w, p->w_s1, k_step_h * p->w_s3,
                     k_step_w, p->w_s2, p->dx_s2, p->stride_w, 0, -back_w, p->first, p->last};
    tg_conv_at at = tg_conv_locate(start, p->n_g, blocks, p->n_ih);
    for (int unit = start; unit < stop; unit++, tg_conv_advance(&at, p->n_g, blocks, p->n_ih)) {
        int i = at.block * width, kh, oh, t, t_stop;
        int rows = tg_conv_gather(at.row + p->dy_o3, p->n_kh, p->stride_h, p->dilation_h, k_step_h, &kh, &oh);
        tg_window_taps(p->dy_n3 - 1 - oh, back_h, rows, 0, p->dy_n3, &t, &t_stop); /* counted from the last row */
        r.rows = tg_max(t_stop - t, 0);
        r.outs = tg_min(width, p->n_i - i);
        TG_MEM const float *from = dy, *weight = w + at.g * p->w_s0 + i * p->w_s2;
        if (r.rows > 0) {
            from += at.n * p->dy_s0 + at.g * p->dy_s1 + (oh - t * back_h) * p->dy_s3;
            weight += (kh + t * k_step_h) * p->w_s3;
        }
        TG_MEM const float *bias = b == TG_NULL ? TG_NULL : b + at.g * p->b_s0 + i;
        TG_MEM float *out = dx + at.n * p->dx_s0 + at.g * p->dx_s1 + i * p->dx_s2 + at.row * p->dx_s3;
        for (int phase = 0; phase < tg_min(p->stride_w, p->n_iw); phase++) { /* columns that see the same taps */
            int kw;
            r.taps = tg_conv_gather(phase + p->dy_o4, p->n_kw, p->stride_w, p->dilation_w, k_step_w, &kw, &r.position);
            r.columns = (p->n_iw - phase + p->stride_w - 1) / p->stride_w;
            if (p->dilation_w == 1 && p->stride_w == 1)
                tg_conv_columns(from, weight, bias, out, r, width, 1, -1);
            else
                tg_conv_columns(from, r.taps > 0 ? weight + kw : weight, bias, out + phase, r, width, 1, 0);
        }
    }
}

TG_KERNEL void tg_conv(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *y,
                       TG_ARG const tg_conv_args *p, int core_id, int core_count)
{
    tg_conv_any(x, w, b, y, p, 4, core_id, core_count);
}

TG_KERNEL void tg_conv_single(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *y,
                              TG_ARG const tg_conv_args *p, int core_id, int core_count)
{
    tg_conv_any(x, w, b, y, p, 1, core_id, core_count);
}

TG_KERNEL void tg_conv_dx(TG_MEM const float *dy, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *dx,
                          TG_ARG const tg_conv_dx_args *p, int core_id, int core_count)
{
    tg_conv_dx_any(dy, w, b, dx, p, 4, core_id, core_count);
}

TG_KERNEL void tg_conv_single_dx(TG_MEM const float *dy, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *dx,
                                 TG_ARG const tg_conv_dx_args *p, int core_id, int core_count)
{
    tg_conv_dx_any(dy, w, b, dx, p, 1, core_id, core_count);
}

/* A lane of the weight gradient is one (i, kw): where it reads relative to its window's column, which output columns
 * [start, stop) have it inside the image, and where it writes. */
typedef struct {
    int x, start, stop, dw;
} tg_conv_lane;

/* Gradients of `width` channels (4 or 1, a literal) by `group` lanes (4, or 3 that are neighbours in x; a literal) of
 * window row kh. `x` and `dy` are at the first window, `dw` at the first channel's (kh). */
TG_TEMPLATE void tg_conv_dw_block(TG_MEM const float *x, TG_MEM const float *dy, TG_MEM float *dw,
                                  TG_ARG const tg_conv_dw_args *p, int width, int group, int stride, int outs, int lanes,
                                  int kh, tg_conv_lane l0, tg_conv_lane l1, tg_conv_lane l2, tg_conv_lane l3)
{
#define TG_ZERO(i, j) float s##i##j = 0.0f;
#define TG_LOAD(i, j)                                                                                                  \
    if (i < width && j < group && i < outs && j < lanes)                                                               \
        s##i##j = dw[i * p->dw_s1 + l##j.dw];
#define TG_STORE(i, j)                                                                                                 \
    if (i < width && j < group && i < outs && j < lanes)                                                               \
        dw[i * p->dw_s1 + l##j.dw] = s##i##j;
#define TG_GRADIENT_POINTER(i)                                                                                         \
    TG_MEM const float *d##i = dy_row + (i < width ? tg_min(i, outs - 1) * p->dy_s2 : 0);
#define TG_GRADIENT(i) float g##i = d##i[column + u];
#define TG_IMAGE(j) float x##j = j < group ? x_row[at + u * stride + (group == 3 ? j : l##j.x)] : 0.0f;
#define TG_STEP(i, j)                                                                                                  \
    if (i < width && j < group)                                                                                        \
        s##i##j = TG_FMA(g##i, x##j, s##i##j);
#define TG_COLUMN(U)                                                                                                   \
    {                                                                                                                  \
        const int u = U;                                                                                               \
        TG_ROW4(TG_GRADIENT)                                                                                           \
        TG_ROW4(TG_IMAGE)                                                                                              \
        TG_BLOCK(TG_STEP)                                                                                              \
    }
#define TG_CHECKED_LANE(j)                                                                                             \
    if (j < group && column >= l##j.start && column < l##j.stop) {                                                     \
        TG_IMAGE(j)                                                                                                    \
        TG_STEP(0, j) TG_STEP(1, j) TG_STEP(2, j) TG_STEP(3, j)                                                        \
    }
#define TG_CHECKED(STOP)                                                                                               \
    for (; column < STOP; column++, at += stride) {                                                                    \
        const int u = 0;                                                                                               \
        TG_ROW4(TG_GRADIENT)                                                                                           \
        TG_ROW4(TG_CHECKED_LANE)                                                                                       \
    }
    int oh_start, oh_stop;
    tg_window_taps(kh * p->dilation_h + p->x_o3, p->stride_h, p->n_oh, 0, p->x_n3, &oh_start, &oh_stop);
    int begin = tg_min(tg_min(l0.start, l1.start), tg_min(l2.start, l3.start));
    int start = tg_max(tg_max(l0.start, l1.start), tg_max(l2.start, l3.start));
    int stop = tg_min(tg_min(l0.stop, l1.stop), tg_min(l2.stop, l3.stop));
    int end = tg_max(tg_max(l0.stop, l1.stop), tg_max(l2.stop, l3.stop));
    if (stop < start)
        start = stop = end; /* no column has all lanes: check each */
    TG_BLOCK(TG_ZERO)
    if (!p->first) {
        TG_BLOCK(TG_LOAD)
    }
    for (int n = 0; n < p->n_n; n++)
        for (int oh = oh_start; oh < oh_stop; oh++) {
            TG_MEM const float *dy_row = dy + n * p->dy_s0 + oh * p->dy_s3;
            TG_MEM const float *x_row = x + n * p->x_s0 + (oh * p->stride_h + kh * p->dilation_h + p->x_o3) * p->x_s3;
            int column = begin, at = begin * stride + p->x_o4;
            TG_ROW4(TG_GRADIENT_POINTER)
            TG_CHECKED(start)
            if (group == 3)
                for (; column + 4 <= stop; column += 4, at += 4 * stride) {
                    TG_COLUMN(0) TG_COLUMN(1) TG_COLUMN(2) TG_COLUMN(3)
                }
            for (; column < stop; column++, at += stride)
                TG_COLUMN(0)
            TG_CHECKED(end)
        }
    TG_BLOCK(TG_STORE)
#undef TG_ZERO
#undef TG_LOAD
#undef TG_STORE
#undef TG_GRADIENT_POINTER
#undef TG_GRADIENT
#undef TG_IMAGE
#undef TG_STEP
#undef TG_COLUMN
#undef TG_CHECKED_LANE
#undef TG_CHECKED
}

TG_INLINE tg_conv_lane tg_conv_lane_of(TG_ARG const tg_conv_dw_args *p, int i, int kw)
{
    tg_conv_lane lane = {i * p->x_s2 + kw * p->dilation_w, 0, 0, i * p->dw_s2 + kw};
    tg_window_taps(kw * p->dilation_w + p->x_o4, p->stride_w, p->n_ow, 0, p->x_n4, &lane.start, &lane.stop);
    return lane;
}

TG_TEMPLATE void tg_conv_dw_any(TG_MEM const float *x, TG_MEM const float *dy, TG_MEM float *dw,
                                TG_ARG const tg_conv_dw_args *p, int width, int core_id, int core_count)
{
    int is_three = p->n_kw == 3 && p->dilation_w == 1 && p->stride_w <= 2;
    int count = p->n_i * p->n_kw, group = is_three ? 3 : 4, groups = (count + group - 1) / group;
    int start, stop, blocks = (p->n_o + width - 1) / width;
    tg_share(p->n_g * blocks * groups * p->n_kh, core_id, core_count, &start, &stop);
    if (start >= stop)
        return;
    tg_conv_at at = tg_conv_locate(start, blocks, groups, p->n_kh); /* n counts groups of channels, g blocks */
    for (int unit = start; unit < stop; unit++, tg_conv_advance(&at, blocks, groups, p->n_kh)) {
        int o = at.g * width, kh = at.row, outs = tg_min(width, p->n_o - o);
        int lanes = tg_min(group, count - at.block * group), q = at.block * group;
        TG_MEM const float *from = x + at.n * p->x_s1, *gradient = dy + at.n * p->dy_s1 + o * p->dy_s2;
        TG_MEM float *out = dw + at.n * p->dw_s0 + o * p->dw_s1 + kh * p->dw_s3;
        if (is_three) {
            from += at.block * p->x_s2;
            out += at.block * p->dw_s2;
            tg_conv_lane l0 = tg_conv_lane_of(p, 0, 0), l1 = tg_conv_lane_of(p, 0, 1), l2 = tg_conv_lane_of(p, 0, 2);
            if (p->stride_w == 1)
                tg_conv_dw_block(from, gradient, out, p, width, 3, 1, outs, 3, kh, l0, l1, l2, l2);
            else
                tg_conv_dw_block(from, gradient, out, p, width, 3, 2, outs, 3, kh, l0, l1, l2, l2);
            continue;
        }
        tg_conv_lane lane[4];
        for (int j = 0; j < 4; j++) { /* a lane that does not exist repeats the last one that does */
            int existing = q + tg_min(j, lanes - 1), i = existing / p->n_kw;
            lane[j] = tg_conv_lane_of(p, i, existing - i * p->n_kw);
        }
        tg_conv_dw_block(from, gradient, out, p, width, 4, p->stride_w, outs, lanes, kh, lane[0], lane[1], lane[2],
                         lane[3]);
    }
}

TG_KERNEL void tg_conv_dw(TG_MEM const float *x, TG_MEM const float *dy, TG_MEM float *dw,
                          TG_ARG const tg_conv_dw_args *p, int core_id, int core_count)
{
    tg_conv_dw_any(x, dy, dw, p, 4, core_id, core_count);
}

TG_KERNEL void tg_conv_single_dw(TG_MEM const float *x, TG_MEM const float *dy, TG_MEM float *dw,
                                 TG_ARG const tg_conv_dw_args *p, int core_id, int core_count)
{
    tg_conv_dw_any(x, dy, dw, p, 1, core_id, core_count);
}

TG_KERNEL void tg_conv_db(TG_MEM const float *dy, TG_MEM float *db, TG_ARG const tg_conv_db_args *p, int core_id,
                          int core_count)
{
    int start, stop;
    tg_share(p->n_c, core_id, core_count, &start, &stop);
    for (int c = start; c < stop; c++) {
        float sum = p->first ? 0.0f : db[c];
        for (int n = 0; n < p->n_n; n++) {
            TG_MEM const float *row = dy + n * p->dy_s0 + c * p->dy_s1;
            for (int i = 0; i < p->n_p; i++)
                sum += row[i];
        }
        db[c] = sum;
    }
}

TG_KERNEL void tg_conv_pointwise(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *y,
                                 TG_ARG const tg_conv_pointwise_args *p, int core_id, int core_count)
{
    tg_gemm_args g = {p->n_o, p->n_p, p->n_i, p->w_s1, 1, p->x_s2, 1, 1, 0, p->y_s2, 1, p->first, p->last, 1.0f, 1.0f};
    for (int image = 0; image < p->n_n * p->n_g; image++) {
        int n = image / p->n_g, group = image - n * p->n_g;
        tg_gemm(w + group * p->w_s0, x + n * p->x_s0 + group * p->x_s1, b == TG_NULL ? TG_NULL : b + group * p->b_s0,
                y + n * p->y_s0 + group * p->y_s1, g, core_id, core_count);
    }
}

TG_KERNEL void tg_conv_pointwise_dx(TG_MEM const float *dy, TG_MEM const float *w, TG_MEM const float *b,
                                    TG_MEM float *dx, TG_ARG const tg_conv_pointwise_dx_args *p, int core_id,
                                    int core_count)
{
    tg_gemm_args g = {p->n_i, p->n_p, p->n_o, 1, p->w_s1, p->dy_s2, 1, 1, 0, p->dx_s2, 1, p->first, p->last, 1.0f, 1.0f};
    for (int image = 0; image < p->n_n * p->n_g; image++) {
        int n = image / p->n_g, group = image - n * p->n_g;
        tg_gemm(w + group * p->w_s0, dy + n * p->dy_s0 + group * p->dy_s1, b == TG_NULL ? TG_NULL : b + group * p->b_s0,
                dx + n * p->dx_s0 + group * p->dx_s1, g, core_id, core_count);
    }
}

TG_KERNEL void tg_conv_pointwise_dw(TG_MEM const float *x, TG_MEM const float *dy, TG_MEM float *dw,
                                    TG_ARG const tg_conv_pointwise_dw_args *p, int core_id, int core_count)
{
    tg_gemm_args g = {p->n_o, p->n_i, p->n_p, p->dy_s2, 1, 1, p->x_s2, 0, 0, p->dw_s1, 1, p->first, 1, 1.0f, 1.0f};
    for (int group = 0; group < p->n_g; group++)
        for (int n = 0; n < tg_max(p->n_n, 1); n++) { /* even an empty batch has a gradient: zero */
            g.n_k = p->n_n == 0 ? 0 : p->n_p;
            g.first = p->first && n == 0;
            tg_gemm(dy + n * p->dy_s0 + group * p->dy_s1, x + n * p->x_s0 + group * p->x_s1, TG_NULL,
                    dw + group * p->dw_s0, g, core_id, core_count);
        }
}
