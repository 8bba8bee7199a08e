/* Convolutions in their three directions: `conv` computes the map from image and weight, `conv_dx` the image from map
 * and weight (each image element gathers its own sum), `conv_dw` the weight from image and map. Taps that fall on
 * padding are skipped; a bias is added last. Sums run over (channel, kh, kw); for the weight over (n, oh, ow).
 *
 * `_single` variants compute one channel at a time instead of four, for depthwise convolutions; `_pointwise` ones are
 * matrix products, for 1x1 windows that neither stride nor pad. */
#include "tg_convolution.h"
#include "tg_depthwise.h"
#include "tg_gemm.h"

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

TG_TEMPLATE void tg_conv_any(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *y,
                             TG_ARG const tg_conv_args *p, int width, int core_id, int core_count)
{
    int start, stop, blocks = (p->n_o + width - 1) / width;
    tg_share(p->n_n * p->n_g * blocks * p->n_oh, core_id, core_count, &start, &stop);
    if (start >= stop)
        return;
    tg_conv_row r = {p->n_i, 0, p->n_kw, 0, p->n_ow, p->x_n4, p->x_s2, p->dilation_h * p->x_s3, p->dilation_w, p->w_s2,
                     p->w_s3, 1, p->w_s1, p->y_s2, 1, p->stride_w, p->x_o4, p->dilation_w, p->first, p->last};
    tg_conv_at at = tg_conv_locate(start, p->n_g, blocks, p->n_oh);
    for (int unit = start; unit < stop; unit++, tg_conv_advance(&at, p->n_g, blocks, p->n_oh)) {
        int o = at.block * width, top = at.row * p->stride_h + p->x_o3, kh, kh_stop;
        tg_window_taps(top, p->dilation_h, p->n_kh, 0, p->x_n3, &kh, &kh_stop);
        r.rows = tg_max(kh_stop - kh, 0);
        r.outs = tg_min(width, p->n_o - o);
        TG_MEM const float *from = x, *weight = w + at.group * p->w_s0 + o * p->w_s1;
        if (r.rows > 0) {
            from += at.outer * p->x_s0 + at.group * p->x_s1 + (top + kh * p->dilation_h) * p->x_s3;
            weight += kh * p->w_s3;
        }
        TG_MEM const float *bias = b == TG_NULL ? TG_NULL : b + at.group * p->b_s0 + o;
        TG_MEM float *out = y + at.outer * p->y_s0 + at.group * p->y_s1 + o * p->y_s2 + at.row * p->y_s3;
        if (r.rows > 0 && r.taps == 1) {
            tg_conv_row flat = tg_conv_flat(r);
            tg_conv_columns(from, weight, bias, out, &flat, width, p->stride_w, 0);
        } else if (p->dilation_w == 1 && p->stride_w == 1)
            tg_conv_columns(from, weight, bias, out, &r, width, 1, 1);
        else if (p->dilation_w == 1 && p->stride_w == 2)
            tg_conv_columns(from, weight, bias, out, &r, width, 2, 1);
        else
            tg_conv_columns(from, weight, bias, out, &r, width, p->stride_w, 0);
    }
}

TG_TEMPLATE void tg_conv_dx_any(TG_MEM const float *dy, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *dx,
                                TG_ARG const tg_conv_dx_args *p, int width, int core_id, int core_count)
{
    int start, stop, blocks = (p->n_i + width - 1) / width;
    tg_share(p->n_n * p->n_g * blocks * p->n_ih, core_id, core_count, &start, &stop);
    if (start >= stop)
        return;
    int common_h = tg_gcd(p->stride_h, p->dilation_h), common_w = tg_gcd(p->stride_w, p->dilation_w);
    int back_h = p->dilation_h / common_h, back_w = p->dilation_w / common_w; /* from one tap to the next in dy */
    int k_step_h = p->stride_h / common_h, k_step_w = p->stride_w / common_w; /* and in w */
    tg_conv_row r = {p->n_o, 0, 0, 0, 0, p->dy_n4, p->dy_s2, -back_h * p->dy_s3, -back_w, p->w_s1, k_step_h * p->w_s3,
                     k_step_w, p->w_s2, p->dx_s2, p->stride_w, 1, 0, -back_w, p->first, p->last};
    tg_conv_at at = tg_conv_locate(start, p->n_g, blocks, p->n_ih);
    for (int unit = start; unit < stop; unit++, tg_conv_advance(&at, p->n_g, blocks, p->n_ih)) {
        int i = at.block * width, kh, oh, t, t_stop;
        int rows = tg_conv_gather(at.row + p->dy_o3, p->n_kh, p->stride_h, p->dilation_h, k_step_h, &kh, &oh);
        tg_window_taps(p->dy_n3 - 1 - oh, back_h, rows, 0, p->dy_n3, &t, &t_stop); /* counted from the last row */
        r.rows = tg_max(t_stop - t, 0);
        r.outs = tg_min(width, p->n_i - i);
        TG_MEM const float *from = dy, *weight = w + at.group * p->w_s0 + i * p->w_s2;
        if (r.rows > 0) {
            from += at.outer * p->dy_s0 + at.group * p->dy_s1 + (oh - t * back_h) * p->dy_s3;
            weight += (kh + t * k_step_h) * p->w_s3;
        }
        TG_MEM const float *bias = b == TG_NULL ? TG_NULL : b + at.group * p->b_s0 + i;
        TG_MEM float *out = dx + at.outer * p->dx_s0 + at.group * p->dx_s1 + i * p->dx_s2 + at.row * p->dx_s3;
        for (int phase = 0; phase < tg_min(p->stride_w, p->n_iw); phase++) { /* columns that see the same taps */
            int kw;
            r.taps = tg_conv_gather(phase + p->dy_o4, p->n_kw, p->stride_w, p->dilation_w, k_step_w, &kw, &r.position);
            r.columns = (p->n_iw - phase + p->stride_w - 1) / p->stride_w;
            TG_MEM const float *tap = r.taps > 0 ? weight + kw : weight;
#ifdef TG_INNER_GATHER
            if (width == 4 && p->stride_w == 2 && p->dilation_w == 1 && r.rows * r.channels > 0 && r.taps > 0 &&
                r.taps <= 2) {
                tg_conv_gather_columns(from, tap, bias, out + phase, &r);
                continue;
            }
#endif
            if (r.rows > 0 && r.taps == 1) {
                tg_conv_row flat = tg_conv_flat(r);
                tg_conv_columns(from, tap, bias, out + phase, &flat, width, 1, 0);
            } else if (p->dilation_w == 1 && p->stride_w == 1)
                tg_conv_columns(from, tap, bias, out, &r, width, 1, -1);
            else
                tg_conv_columns(from, tap, bias, out + phase, &r, width, 1, 0);
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
    tg_plane plane = {p->n_oh, p->n_ow, p->x_o3, p->x_o4, p->x_n3, p->x_n4, p->x_s3, p->y_s3};
    if (!(p->n_i == 1 && p->n_kh == 3 && p->n_kw == 3 && p->dilation_h == 1 && p->dilation_w == 1 &&
          p->stride_h == p->stride_w && p->stride_h <= 2 && p->first && p->last &&
          tg_plane_is_usual(plane, p->stride_h))) {
        tg_conv_any(x, w, b, y, p, 1, core_id, core_count);
        return;
    }
    int start, stop;
    tg_share(p->n_n * p->n_g * p->n_o * p->n_oh, core_id, core_count, &start, &stop);
    if (start >= stop)
        return;
    tg_conv_at at = tg_conv_locate(start, p->n_g, p->n_o, p->n_oh);
    for (int unit = start, count; unit < stop; unit += count) {
        int row = at.row, row_stop = row + (count = tg_min(p->n_oh - row, stop - unit));
        TG_MEM const float *image = x + at.outer * p->x_s0 + at.group * p->x_s1;
        TG_MEM const float *weight = w + at.group * p->w_s0 + at.block * p->w_s1;
        TG_MEM const float *bias = b == TG_NULL ? TG_NULL : b + at.group * p->b_s0 + at.block;
        TG_MEM float *map = y + at.outer * p->y_s0 + at.group * p->y_s1 + at.block * p->y_s2;
        if (p->stride_h == 1)
            tg_plane_forward(image, weight, p->w_s3, map, plane, row, row_stop, 1, 1);
        else
            tg_plane_forward(image, weight, p->w_s3, map, plane, row, row_stop, 2, 1);
        tg_plane_bias(bias, map, plane, row, row_stop);
        at.row = p->n_oh - 1;
        tg_conv_advance(&at, p->n_g, p->n_o, p->n_oh);
    }
}

TG_KERNEL void tg_conv_dx(TG_MEM const float *dy, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *dx,
                          TG_ARG const tg_conv_dx_args *p, int core_id, int core_count)
{
    tg_conv_dx_any(dy, w, b, dx, p, 4, core_id, core_count);
}

TG_KERNEL void tg_conv_single_dx(TG_MEM const float *dy, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *dx,
                                 TG_ARG const tg_conv_dx_args *p, int core_id, int core_count)
{
    const int is_strided = p->stride_h == 2; /* else windows begin two before the last tap */
    tg_plane plane = {p->n_ih, p->n_iw, p->dy_o3 - (is_strided ? 0 : 2), p->dy_o4 - (is_strided ? 0 : 2), p->dy_n3, p->dy_n4,
                      p->dy_s3, p->dx_s3};
    if (!(p->n_o == 1 && p->n_kh == 3 && p->n_kw == 3 && p->dilation_h == 1 && p->dilation_w == 1 &&
          p->stride_h == p->stride_w && p->stride_h <= 2 && p->first && p->last &&
          (is_strided || tg_plane_is_usual(plane, 1)))) {
        tg_conv_dx_any(dy, w, b, dx, p, 1, core_id, core_count);
        return;
    }
    int start, stop;
    tg_share(p->n_n * p->n_g * p->n_i * p->n_ih, core_id, core_count, &start, &stop);
    if (start >= stop)
        return;
    tg_conv_at at = tg_conv_locate(start, p->n_g, p->n_i, p->n_ih);
    for (int unit = start, count; unit < stop; unit += count) {
        int row = at.row, row_stop = row + (count = tg_min(p->n_ih - row, stop - unit));
        TG_MEM const float *map = dy + at.outer * p->dy_s0 + at.group * p->dy_s1;
        TG_MEM const float *weight = w + at.group * p->w_s0 + at.block * p->w_s2;
        TG_MEM const float *bias = b == TG_NULL ? TG_NULL : b + at.group * p->b_s0 + at.block;
        TG_MEM float *image = dx + at.outer * p->dx_s0 + at.group * p->dx_s1 + at.block * p->dx_s2;
        if (is_strided)
            tg_plane_gather(map, weight, p->w_s3, image, plane, row, row_stop);
        else
            tg_plane_forward(map, weight, p->w_s3, image, plane, row, row_stop, 1, -1);
        tg_plane_bias(bias, image, plane, row, row_stop);
        at.row = p->n_ih - 1;
        tg_conv_advance(&at, p->n_g, p->n_i, p->n_ih);
    }
}

/* Three neighbouring taps of window row kh, for `width` channels (4 or 1, a literal). `stride` is a literal. `x` is at
 * the input channel, `dy` at the first output channel, `dw` at (kh, 0). */
TG_TEMPLATE void tg_conv_dw_block3(TG_MEM const float *x, TG_MEM const float *dy, TG_MEM float *dw,
                                   TG_ARG const tg_conv_dw_args *p, int width, int stride, int outs, int kh)
{
#define TG_DW3_ROW3(F, i) F(i, 0) F(i, 1) F(i, 2)
#define TG_DW3_BLOCK3(F) TG_DW3_ROW3(F, 0) TG_DW3_ROW3(F, 1) TG_DW3_ROW3(F, 2) TG_DW3_ROW3(F, 3)
#define TG_DW3_ZERO(i, j) float s##i##j = 0.0f;
#define TG_DW3_LOAD(i, j)                                                                                              \
    if (i < width)                                                                                                     \
        s##i##j = dw[tg_min(i, outs - 1) * p->dw_s1 + j];
#define TG_DW3_STORE(i, j)                                                                                             \
    if (i < width && i < outs)                                                                                         \
        dw[i * p->dw_s1 + j] = s##i##j;
#define TG_DW3_GRADIENT_POINTER(i)                                                                                     \
    TG_MEM const float *d##i = dy_row + (i < width ? tg_min(i, outs - 1) * p->dy_s2 : 0);
#define TG_DW3_GRADIENT(i) const float g##i = i < width ? d##i[l] : 0.0f;
#define TG_DW3_NEXT(i) d##i += i < width ? count : 0;
#define TG_DW3_STEP(i, j)                                                                                              \
    if (i < width)                                                                                                     \
        s##i##j = TG_FMA(g##i, v, s##i##j);
#define TG_DW3_TAP(j, CONDITION)                                                                                       \
    if (CONDITION) {                                                                                                   \
        const float v = x_row[at + l * stride + j];                                                                    \
        TG_DW3_STEP(0, j) TG_DW3_STEP(1, j) TG_DW3_STEP(2, j) TG_DW3_STEP(3, j)                                        \
    }
#define TG_DW3_COLUMN(L, LOW, HIGH)                                                                                    \
    {                                                                                                                  \
        const int l = L;                                                                                               \
        TG_ROW4(TG_DW3_GRADIENT)                                                                                       \
        TG_DW3_TAP(0, LOW)                                                                                             \
        TG_DW3_TAP(1, 1)                                                                                               \
        TG_DW3_TAP(2, HIGH)                                                                                            \
    }
    int oh_start, oh_stop, room = p->x_n4 - 2 - 3 * stride - p->x_o4; /* to the last place for four columns at once */
    int blocks = p->x_o4 < -1 || room < 0 ? 0 : tg_min(p->n_ow / 4, room / (4 * stride) + 1);
    tg_window_taps(kh * p->dilation_h + p->x_o3, p->stride_h, p->n_oh, 0, p->x_n3, &oh_start, &oh_stop);
#ifdef TG_INNER_WEIGHT
    if (width == 4 && oh_start < oh_stop && p->n_n > 0 && blocks > 0 && 4 * blocks == p->n_ow) {
        const tg_inner_weight c = {blocks, oh_stop - oh_start, 4 * (p->stride_h * p->x_s3 - 4 * stride * blocks),
                                   4 * (p->dy_s3 - 4 * blocks), p->dy_s2, p->dw_s1, p->x_o4 < 0,
                                   p->x_o4 + (p->n_ow - 1) * stride + 2 >= p->x_n4};
        for (int n = 0; n < p->n_n; n++) {
            TG_MEM const float *from = x + n * p->x_s0 + p->x_o4;
            from += (oh_start * p->stride_h + kh * p->dilation_h + p->x_o3) * p->x_s3;
            if (stride == 1)
                tg_inner_weight_1(from, dy + n * p->dy_s0 + oh_start * p->dy_s3, dw, &c, outs, p->first && n == 0);
            else
                tg_inner_weight_2(from, dy + n * p->dy_s0 + oh_start * p->dy_s3, dw, &c, outs, p->first && n == 0);
        }
        return;
    }
#endif
    TG_DW3_BLOCK3(TG_DW3_ZERO)
    if (!p->first) {
        TG_DW3_BLOCK3(TG_DW3_LOAD)
    }
    for (int n = 0; n < p->n_n; n++)
        for (int oh = oh_start; oh < oh_stop; oh++) {
            TG_MEM const float *dy_row = dy + n * p->dy_s0 + oh * p->dy_s3;
            TG_MEM const float *x_row = x + n * p->x_s0 + (oh * p->stride_h + kh * p->dilation_h + p->x_o3) * p->x_s3;
            TG_ROW4(TG_DW3_GRADIENT_POINTER)
            int at = p->x_o4;
            for (int block = 0, count = 4; block < blocks; block++, at += 4 * stride) {
                const int has_low = at >= 0, has_high = at + 3 * stride + 2 < p->x_n4;
                TG_DW3_COLUMN(0, has_low, 1)
                TG_DW3_COLUMN(1, 1, 1)
                TG_DW3_COLUMN(2, 1, 1)
                TG_DW3_COLUMN(3, 1, has_high)
                TG_ROW4(TG_DW3_NEXT)
            }
            for (int column = 4 * blocks, count = 1, l = 0; column < p->n_ow; column++, at += stride) {
                TG_ROW4(TG_DW3_GRADIENT)
                TG_DW3_TAP(0, (unsigned)at < (unsigned)p->x_n4)
                TG_DW3_TAP(1, (unsigned)(at + 1) < (unsigned)p->x_n4)
                TG_DW3_TAP(2, (unsigned)(at + 2) < (unsigned)p->x_n4)
                TG_ROW4(TG_DW3_NEXT)
            }
        }
    TG_DW3_BLOCK3(TG_DW3_STORE)
}

/* A lane of the general weight gradient is one (i, kw): where it reads relative to its window's column, which columns
 * [start, stop) of the map have it inside the image, and where it writes. */
typedef struct {
    int x, start, stop, dw;
} tg_conv_lane;

TG_INLINE tg_conv_lane tg_conv_lane_of(TG_ARG const tg_conv_dw_args *p, int lane)
{
    int i = lane / p->n_kw, kw = lane - i * p->n_kw;
    tg_conv_lane result = {i * p->x_s2 + kw * p->dilation_w, 0, 0, i * p->dw_s2 + kw};
    tg_window_taps(kw * p->dilation_w + p->x_o4, p->stride_w, p->n_ow, 0, p->x_n4, &result.start, &result.stop);
    return result;
}

/* Any four lanes of window row kh, of which `lanes` from `lane` on exist; pointers as above. A lane that does not exist
 * repeats the last one that does. */
TG_TEMPLATE void tg_conv_dw_block(TG_MEM const float *x, TG_MEM const float *dy, TG_MEM float *dw,
                                  TG_ARG const tg_conv_dw_args *p, int width, int outs, int kh, int lane, int lanes)
{
#define TG_DW_LANE_OF(j) const tg_conv_lane l##j = tg_conv_lane_of(p, lane + tg_min(j, lanes - 1));
#define TG_DW_ZERO(i, j) float s##i##j = 0.0f;
#define TG_DW_LOAD(i, j)                                                                                               \
    if (i < width)                                                                                                     \
        s##i##j = dw[tg_min(i, outs - 1) * p->dw_s1 + l##j.dw];
#define TG_DW_STORE(i, j)                                                                                              \
    if (i < width && i < outs)                                                                                         \
        dw[i * p->dw_s1 + l##j.dw] = s##i##j;
#define TG_DW_GRADIENT_POINTER(i)                                                                                      \
    TG_MEM const float *d##i = dy_row + begin + (i < width ? tg_min(i, outs - 1) * p->dy_s2 : 0);
#define TG_DW_GRADIENT(i)                                                                                              \
    const float g##i = i < width ? *d##i : 0.0f;                                                                       \
    d##i++;
#define TG_DW_IMAGE(j) const float v##j = x_row[at + l##j.x];
#define TG_DW_STEP(i, j)                                                                                               \
    if (i < width)                                                                                                     \
        s##i##j = TG_FMA(g##i, v##j, s##i##j);
#define TG_DW_CHECKED_LANE(j)                                                                                          \
    if (column >= l##j.start && column < l##j.stop) {                                                                  \
        TG_DW_IMAGE(j)                                                                                                 \
        TG_DW_STEP(0, j) TG_DW_STEP(1, j) TG_DW_STEP(2, j) TG_DW_STEP(3, j)                                            \
    }
    TG_ROW4(TG_DW_LANE_OF)
    int oh_start, oh_stop, stride = p->stride_w;
    tg_window_taps(kh * p->dilation_h + p->x_o3, p->stride_h, p->n_oh, 0, p->x_n3, &oh_start, &oh_stop);
    int begin = tg_min(tg_min(l0.start, l1.start), tg_min(l2.start, l3.start));
    int start = tg_max(tg_max(l0.start, l1.start), tg_max(l2.start, l3.start));
    int stop = tg_min(tg_min(l0.stop, l1.stop), tg_min(l2.stop, l3.stop));
    int end = tg_max(tg_max(l0.stop, l1.stop), tg_max(l2.stop, l3.stop));
    TG_BLOCK(TG_DW_ZERO)
    if (!p->first) {
        TG_BLOCK(TG_DW_LOAD)
    }
    for (int n = 0; n < p->n_n; n++)
        for (int oh = oh_start; oh < oh_stop; oh++) {
            TG_MEM const float *dy_row = dy + n * p->dy_s0 + oh * p->dy_s3;
            TG_MEM const float *x_row = x + n * p->x_s0 + (oh * p->stride_h + kh * p->dilation_h + p->x_o3) * p->x_s3;
            TG_ROW4(TG_DW_GRADIENT_POINTER)
            for (int column = begin, at = begin * stride + p->x_o4; column < end; column++, at += stride) {
                TG_ROW4(TG_DW_GRADIENT)
                if (column >= start && column < stop) {
                    TG_ROW4(TG_DW_IMAGE)
                    TG_BLOCK(TG_DW_STEP)
                } else {
                    TG_ROW4(TG_DW_CHECKED_LANE)
                }
            }
        }
    TG_BLOCK(TG_DW_STORE)
}

TG_TEMPLATE void tg_conv_dw_any(TG_MEM const float *x, TG_MEM const float *dy, TG_MEM float *dw,
                                TG_ARG const tg_conv_dw_args *p, int width, int core_id, int core_count)
{
    int is_three = width == 4 && p->n_kw == 3 && p->dilation_w == 1 && p->stride_w <= 2;
    int count = p->n_i * p->n_kw, group = is_three ? 3 : 4, groups = (count + group - 1) / group;
    int start, stop, blocks = (p->n_o + width - 1) / width;
    tg_share(p->n_g * blocks * groups * p->n_kh, core_id, core_count, &start, &stop);
    if (start >= stop)
        return;
    tg_conv_at at = tg_conv_locate(start, blocks, groups, p->n_kh); /* (group, block of channels, lanes, kh) */
    for (int unit = start; unit < stop; unit++, tg_conv_advance(&at, blocks, groups, p->n_kh)) {
        int o = at.group * width, kh = at.row, lane = at.block * group, outs = tg_min(width, p->n_o - o);
        TG_MEM const float *from = x + at.outer * p->x_s1, *gradient = dy + at.outer * p->dy_s1 + o * p->dy_s2;
        TG_MEM float *out = dw + at.outer * p->dw_s0 + o * p->dw_s1 + kh * p->dw_s3;
        if (!is_three)
            tg_conv_dw_block(from, gradient, out, p, width, outs, kh, lane, tg_min(4, count - lane));
        else if (p->stride_w == 1)
            tg_conv_dw_block3(from + at.block * p->x_s2, gradient, out + at.block * p->dw_s2, p, width, 1, outs, kh);
        else
            tg_conv_dw_block3(from + at.block * p->x_s2, gradient, out + at.block * p->dw_s2, p, width, 2, outs, kh);
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
    tg_plane plane = {p->n_oh, p->n_ow, p->x_o3, p->x_o4, p->x_n3, p->x_n4, p->x_s3, p->dy_s3};
    if (!(p->n_kh == 3 && p->n_kw == 3 && p->dilation_h == 1 && p->dilation_w == 1 && p->stride_h == p->stride_w &&
          p->stride_h <= 2 && p->n_n > 0 && tg_plane_is_usual(plane, p->stride_h))) {
        tg_conv_dw_any(x, dy, dw, p, 1, core_id, core_count);
        return;
    }
    int start, stop;
    tg_share(p->n_g * p->n_o * p->n_i, core_id, core_count, &start, &stop);
    if (start >= stop)
        return;
    tg_conv_at at = tg_conv_locate(start, p->n_o, p->n_i, 1); /* (group, o, i) */
    for (int unit = start; unit < stop; unit++, tg_conv_advance(&at, p->n_o, p->n_i, 1))
        for (int n = 0; n < p->n_n; n++) {
            TG_MEM const float *image = x + n * p->x_s0 + at.outer * p->x_s1 + at.block * p->x_s2;
            TG_MEM const float *map = dy + n * p->dy_s0 + at.outer * p->dy_s1 + at.group * p->dy_s2;
            TG_MEM float *out = dw + at.outer * p->dw_s0 + at.group * p->dw_s1 + at.block * p->dw_s2;
            if (p->stride_h == 1)
                tg_plane_weight(image, map, out, p->dw_s3, plane, p->first && n == 0, 1);
            else
                tg_plane_weight(image, map, out, p->dw_s3, plane, p->first && n == 0, 2);
        }
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
    tg_gemm_args g = {p->n_o, p->n_p, p->n_i, p->w_s1, 1, p->x_s2, 1, 1, 0, p->y_s2, 1, p->first, p->last, 1.0f,
                      1.0f, TG_LINEAR};
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
    tg_gemm_args g = {p->n_i, p->n_p, p->n_o, 1, p->w_s1, p->dy_s2, 1, 1, 0, p->dx_s2, 1, p->first, p->last, 1.0f,
                      1.0f, TG_LINEAR};
    for (int image = 0; image < p->n_n * p->n_g; image++) {
        int n = image / p->n_g, group = image - n * p->n_g;
        tg_gemm(w + group * p->w_s0, dy + n * p->dy_s0 + group * p->dy_s1, b == TG_NULL ? TG_NULL : b + group * p->b_s0,
                dx + n * p->dx_s0 + group * p->dx_s1, g, core_id, core_count);
    }
}

TG_KERNEL void tg_conv_pointwise_dw(TG_MEM const float *x, TG_MEM const float *dy, TG_MEM float *dw,
                                    TG_ARG const tg_conv_pointwise_dw_args *p, int core_id, int core_count)
{
    tg_gemm_args g = {p->n_o, p->n_i, p->n_p, p->dy_s2, 1, 1, p->x_s2, 0, 0, p->dw_s1, 1, p->first, 1, 1.0f,
                      1.0f, TG_LINEAR};
    for (int group = 0; group < p->n_g; group++)
        for (int n = 0; n < tg_max(p->n_n, 1); n++) { /* even an empty batch has a gradient: zero */
            g.n_k = p->n_n == 0 ? 0 : p->n_p;
            g.first = p->first && n == 0;
            tg_gemm(dy + n * p->dy_s0 + group * p->dy_s1, x + n * p->x_s0 + group * p->x_s1, TG_NULL,
                    dw + group * p->dw_s0, g, core_id, core_count);
        }
}
