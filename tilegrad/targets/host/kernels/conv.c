/* Convolutions for vectors of sixteen. */
#include "tg_convolution.h"

/* This core's share of the outputs of each of `groups` maps; strides are from group to group. */
TG_INLINE void tg_conv_groups(const float *x, int x_by, const float *w, int w_by, const float *b, int b_by, float *y,
                              int y_by, int groups, const tg_conv_map *c, int core_id, int core_count)
{
    int start, stop;
    tg_share(c->height * c->width, core_id, core_count, &start, &stop);
    if (c->channels == 1 && c->outs == 1 && c->rows * c->taps <= TG_PLANE_TAPS)
        tg_conv_planes(x, x_by, w, w_by, b, b_by, y, y_by, groups, c, start, stop);
    else
        for (int g = 0; g < groups; g++)
            tg_conv_run(x + g * x_by, w + g * w_by, b == TG_NULL ? TG_NULL : b + g * b_by, y + g * y_by, c, start, stop);
}

TG_SHARED void tg_conv_any(const float *x, const float *w, const float *b, float *y, const tg_conv_args *p, int core_id,
                           int core_count)
{
    const tg_conv_map c = {p->n_i,        p->n_kh, p->n_kw, p->n_o,  p->n_oh,      p->n_ow,       p->x_s2,       p->x_s3,
                           p->x_n3,       p->x_n4, p->x_o3, p->x_o4, p->stride_h,  p->stride_w,   p->dilation_h, p->dilation_w,
                           p->w_s2,       p->w_s3, 1,       p->w_s1, p->y_s2,      p->y_s3,       1,             p->first,
                           p->last};
    for (int n = 0; n < p->n_n; n++)
        tg_conv_groups(x + n * p->x_s0, p->x_s1, w, p->w_s0, b, p->b_s0, y + n * p->y_s0, p->y_s1, p->n_g, &c, core_id,
                       core_count);
}

/* Columns and rows of the image that see the same taps are a map of their own: one per phase of either stride. */
TG_SHARED void tg_conv_dx_any(const float *dy, const float *w, const float *b, float *dx, const tg_conv_dx_args *p,
                              int core_id, int core_count)
{
    const int common_h = tg_gcd(p->stride_h, p->dilation_h), common_w = tg_gcd(p->stride_w, p->dilation_w);
    const int step_h = p->stride_h / common_h, step_w = p->stride_w / common_w; /* from one tap to the next in w */
    tg_conv_map c = {.channels = p->n_o, .outs = p->n_i, .x_channel = p->dy_s2, .x_row = p->dy_s3, .x_height = p->dy_n3,
                     .x_width = p->dy_n4, .lane_h = 1, .lane_w = 1, .tap_h = -p->dilation_h / common_h,
                     .tap_w = -p->dilation_w / common_w, .w_channel = p->w_s1, .w_row = step_h * p->w_s3, .w_tap = step_w,
                     .w_out = p->w_s2, .y_out = p->dx_s2, .y_row = p->stride_h * p->dx_s3, .y_lane = p->stride_w,
                     .first = p->first, .last = p->last};
    for (int phase = 0; phase < p->stride_h * p->stride_w; phase++) {
        const int h = phase / p->stride_w, v = phase - h * p->stride_w;
        int kh, kw;
        c.rows = tg_conv_gather(h + p->dy_o3, p->n_kh, p->stride_h, p->dilation_h, step_h, &kh, &c.at_h);
        c.taps = tg_conv_gather(v + p->dy_o4, p->n_kw, p->stride_w, p->dilation_w, step_w, &kw, &c.at_w);
        c.height = tg_max(p->n_ih - h + p->stride_h - 1, 0) / p->stride_h;
        c.width = tg_max(p->n_iw - v + p->stride_w - 1, 0) / p->stride_w;
        const int at = c.rows > 0 && c.taps > 0 ? kh * p->w_s3 + kw : 0;
        for (int n = 0; n < p->n_n; n++)
            tg_conv_groups(dy + n * p->dy_s0, p->dy_s1, w + at, p->w_s0, b, p->b_s0,
                           dx + n * p->dx_s0 + h * p->dx_s3 + v, p->dx_s1, p->n_g, &c, core_id, core_count);
    }
}

TG_KERNEL void tg_conv(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *y,
                       TG_ARG const tg_conv_args *p, int core_id, int core_count)
{
    tg_conv_any(x, w, b, y, p, core_id, core_count);
}

TG_KERNEL void tg_conv_single(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *y,
                              TG_ARG const tg_conv_args *p, int core_id, int core_count)
{
    tg_conv_any(x, w, b, y, p, core_id, core_count);
}

TG_KERNEL void tg_conv_dx(TG_MEM const float *dy, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *dx,
                          TG_ARG const tg_conv_dx_args *p, int core_id, int core_count)
{
    tg_conv_dx_any(dy, w, b, dx, p, core_id, core_count);
}

TG_KERNEL void tg_conv_single_dx(TG_MEM const float *dy, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *dx,
                                 TG_ARG const tg_conv_dx_args *p, int core_id, int core_count)
{
    tg_conv_dx_any(dy, w, b, dx, p, core_id, core_count);
}

/* A weight's gradient: vectors along the output channels, whose gradients lie transposed in a panel, one row per output
 * position [oh, ow] of the box. For window position (kh, kw) only the outputs whose tap is inside the image are visited. */
typedef struct {
    int oh_start, oh_stop, ow_start, ow_stop, first;
} tg_conv_box;

#define TG_DW_PANEL 16384

/* `height` input channels by `width` vectors of `outs` output channels, at window position (kh, kw). */
TG_TEMPLATE void tg_conv_dw_block(const float *x, const float *panel, float *dw, const tg_conv_dw_args *p,
                                  const tg_conv_box *box, int outs, int kh, int kw, int height, int width)
{
    int oh, oh_stop, ow, ow_stop;
    int32_t at[64];
    tg_v16 sum[8][4];
    const int64_t by = (int64_t)sizeof(float) * p->x_s2; /* from channel to channel, in bytes */
    tg_window_taps(kh * p->dilation_h + p->x_o3, p->stride_h, p->n_oh, 0, p->x_n3, &oh, &oh_stop);
    tg_window_taps(kw * p->dilation_w + p->x_o4, p->stride_w, p->n_ow, 0, p->x_n4, &ow, &ow_stop);
    oh = tg_max(oh, box->oh_start), oh_stop = tg_min(oh_stop, box->oh_stop);
    ow = tg_max(ow, box->ow_start), ow_stop = tg_min(ow_stop, box->ow_stop);
    for (int l = 0; l < 16 * width; l++)
        at[l] = l * p->dw_s1;
    TG_UNROLL for (int i = 0; i < height; i++)
    {
        TG_UNROLL for (int j = 0; j < width; j++)
            sum[i][j] = box->first ? tg_v_set(0.0f)
                                   : tg_v_gather(dw + i * p->dw_s2, at + 16 * j, tg_v_first(outs - 16 * j));
    }
    for (; oh < oh_stop && ow < ow_stop; oh++) {
        const float *d = panel + ((oh - box->oh_start) * (box->ow_stop - box->ow_start) + ow - box->ow_start) * 16 * width;
        const float *stop = d + (ow_stop - ow) * 16 * width;
        const float *row = x + (oh * p->stride_h + kh * p->dilation_h + p->x_o3) * p->x_s3;
        const char *from = (const char *)(row + ow * p->stride_w + kw * p->dilation_w + p->x_o4);
        for (; d < stop; d += 16 * width, from += (int64_t)sizeof(float) * p->stride_w) {
            tg_v16 gradient[4];
            TG_UNROLL for (int j = 0; j < width; j++)
                gradient[j] = tg_v_load(d + 16 * j);
            TG_UNROLL for (int i = 0; i < height; i++)
            {
                const tg_v16 v = tg_v_set(*(const float *)((i < 4 ? from : from + 4 * by) + (i & 3) * by));
                TG_UNROLL for (int j = 0; j < width; j++)
                    sum[i][j] = tg_v_fma(gradient[j], v, sum[i][j]);
            }
        }
    }
    TG_UNROLL for (int i = 0; i < height; i++)
    {
        TG_UNROLL for (int j = 0; j < width; j++)
            tg_v_scatter(dw + i * p->dw_s2, at + 16 * j, tg_v_first(outs - 16 * j), sum[i][j]);
    }
}

/* All input channels and window positions for up to 16 * width output channels. */
TG_TEMPLATE void tg_conv_dw_window(const float *x, const float *panel, float *dw, const tg_conv_dw_args *p,
                                   const tg_conv_box *box, int outs, int width)
{
    for (int i = 0, inputs = width == 4 ? 4 : 8; i < p->n_i; i += inputs) {
        while (inputs > p->n_i - i)
            inputs = inputs == 4 ? 3 : inputs == 3 ? 2 : inputs / 2;
        for (int tap = 0; tap < p->n_kh * p->n_kw; tap++) {
            const int kh = tap / p->n_kw, kw = tap - kh * p->n_kw;
            const float *from = x + i * p->x_s2;
            float *out = dw + i * p->dw_s2 + kh * p->dw_s3 + kw;
            if (inputs == 8)
                tg_conv_dw_block(from, panel, out, p, box, outs, kh, kw, 8, width);
            else if (inputs == 4)
                tg_conv_dw_block(from, panel, out, p, box, outs, kh, kw, 4, width);
            else if (inputs == 3)
                tg_conv_dw_block(from, panel, out, p, box, outs, kh, kw, 3, width);
            else if (inputs == 2)
                tg_conv_dw_block(from, panel, out, p, box, outs, kh, kw, 2, width);
            else
                tg_conv_dw_block(from, panel, out, p, box, outs, kh, kw, 1, width);
        }
    }
}

TG_SHARED void tg_conv_dw_any(const float *x, const float *dy, float *dw, const tg_conv_dw_args *p, int core_id,
                              int core_count)
{
    TG_ALIGNED float panel[TG_DW_PANEL];
    int start, stop;
    tg_share(p->n_o, core_id, core_count, &start, &stop);
    for (int g = 0; g < p->n_g; g++)
        for (int o = start, outs; o < stop; o += outs) {
            const int width = p->n_i <= 4 && stop - o > 32 ? 4 : stop - o > 16 ? 2 : 1, lanes = 16 * width;
            const int depth = TG_DW_PANEL / lanes - 16, columns = tg_min(p->n_ow, depth); /* the last transpose overhangs */
            const int rows = tg_max(depth / tg_max(columns, 1), 1);
            outs = tg_min(lanes, stop - o);
            tg_conv_box box = {.first = p->first};
            float *out = dw + g * p->dw_s0 + o * p->dw_s1;
            for (int n = 0; n < tg_max(p->n_n, 1); n++) /* even an empty batch has a gradient: zero */
                for (int oh = 0; oh == 0 || oh < p->n_oh; oh += rows)
                    for (int ow = 0; ow == 0 || ow < p->n_ow; ow += columns, box.first = 0) {
                        box.oh_start = oh, box.oh_stop = p->n_n == 0 ? oh : tg_min(oh + rows, p->n_oh);
                        box.ow_start = ow, box.ow_stop = tg_min(ow + columns, p->n_ow);
                        const float *from = x + n * p->x_s0 + g * p->x_s1;
                        const float *gradient = dy + n * p->dy_s0 + g * p->dy_s1 + o * p->dy_s2 + ow;
                        const int across = box.ow_stop - ow, is_dense = p->dy_s3 == across;
                        for (int h = oh; h < box.oh_stop; h += is_dense ? rows : 1)
                            tg_panel_transpose(gradient + h * p->dy_s3, p->dy_s2,
                                               is_dense ? across * (box.oh_stop - oh) : across, outs,
                                               panel + (h - oh) * across * lanes, lanes);
                        if (width == 4)
                            tg_conv_dw_window(from, panel, out, p, &box, outs, 4);
                        else if (width == 2)
                            tg_conv_dw_window(from, panel, out, p, &box, outs, 2);
                        else
                            tg_conv_dw_window(from, panel, out, p, &box, outs, 1);
                    }
        }
}

TG_KERNEL void tg_conv_dw(TG_MEM const float *x, TG_MEM const float *dy, TG_MEM float *dw,
                          TG_ARG const tg_conv_dw_args *p, int core_id, int core_count)
{
    tg_conv_dw_any(x, dy, dw, p, core_id, core_count);
}

#define TG_ROW_LANES 112 /* the widest row that is kept transposed */

/* Depthwise 3x3: vectors along sixteen groups, whose rows are transposed as the window moves down. */
TG_SHARED void tg_depthwise_dw(const float *x, const float *dy, float *dw, const tg_conv_dw_args *p, int core_id,
                               int core_count)
{
    TG_ALIGNED float image[3][TG_ROW_LANES * 16], gradient[TG_ROW_LANES * 16];
    int start, stop;
    tg_share(p->n_g, core_id, core_count, &start, &stop);
    for (int g = start; g < stop; g += 16) {
        const int groups = tg_min(16, stop - g);
        float *out = dw + g * p->dw_s0;
        int32_t at[16];
        tg_v16 s[3][3];
        TG_LANES(l) at[l] = l * p->dw_s0;
        TG_UNROLL for (int i = 0; i < 3; i++)
        {
            TG_UNROLL for (int j = 0; j < 3; j++)
                s[i][j] = p->first ? tg_v_set(0.0f) : tg_v_gather(out + i * p->dw_s3 + j, at, tg_v_first(groups));
        }
        for (int n = 0; n < p->n_n; n++) {
            const float *plane = x + n * p->x_s0 + g * p->x_s1, *map = dy + n * p->dy_s0 + g * p->dy_s1;
            int held[3] = {-1, -1, -1};
            for (int oh = 0; oh < p->n_oh; oh++) {
                int has[3];
                const float *row[3];
                for (int i = 0; i < 3; i++) {
                    const int h = oh * p->stride_h + i + p->x_o3;
                    has[i] = h >= 0 && h < p->x_n3;
                    row[i] = image[has[i] ? h % 3 : 0];
                    if (has[i] && held[h % 3] != h) {
                        tg_panel_transpose(plane + h * p->x_s3, p->x_s1, p->x_n4, groups, image[h % 3], 16);
                        held[h % 3] = h;
                    }
                }
                tg_panel_transpose(map + oh * p->dy_s3, p->dy_s1, p->n_ow, groups, gradient, 16);
                for (int ow = 0; ow < p->n_ow; ow++) {
                    const int left = ow * p->stride_w + p->x_o4;
                    const tg_v16 d = tg_v_load(gradient + 16 * ow);
                    TG_UNROLL for (int i = 0; i < 3; i++)
                    {
                        TG_UNROLL for (int j = 0; j < 3; j++)
                        {
                            if (has[i] && left + j >= 0 && left + j < p->x_n4)
                                s[i][j] = tg_v_fma(d, tg_v_load(row[i] + 16 * (left + j)), s[i][j]);
                        }
                    }
                }
            }
        }
        TG_UNROLL for (int i = 0; i < 3; i++)
        {
            TG_UNROLL for (int j = 0; j < 3; j++)
                tg_v_scatter(out + i * p->dw_s3 + j, at, tg_v_first(groups), s[i][j]);
        }
    }
}

TG_KERNEL void tg_conv_single_dw(TG_MEM const float *x, TG_MEM const float *dy, TG_MEM float *dw,
                                 TG_ARG const tg_conv_dw_args *p, int core_id, int core_count)
{
    if (p->n_o == 1 && p->n_i == 1 && p->n_kh == 3 && p->n_kw == 3 && p->dilation_h == 1 && p->dilation_w == 1 && p->x_n4 <= TG_ROW_LANES &&
        p->n_ow <= TG_ROW_LANES)
        tg_depthwise_dw(x, dy, dw, p, core_id, core_count);
    else
        tg_conv_dw_any(x, dy, dw, p, core_id, core_count);
}
