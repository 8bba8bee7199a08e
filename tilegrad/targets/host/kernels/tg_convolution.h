/* Convolutions as matrix products: the image under the windows of 32 outputs is copied into a panel on the stack, one
 * row per tap, and multiplied by the weight. Every output has one accumulator and takes its taps in order (channel, kh,
 * kw); a tap on padding is left out of the sums of the outputs it belongs to, by the panel's masks. */
#ifndef TG_CONVOLUTION_H
#define TG_CONVOLUTION_H
#include "tg_gemm.h"
#include "tg_window.h"

/* A map of `height` x `width` outputs of each of `outs` channels, of a convolution or of its input gradient alike: `x`
 * is what is read, `y` what is written. An output's taps are channels x rows x taps. Tap (row, tap) of output
 * (h, w) lies at (at_h + lane_h * h + tap_h * row, at_w + lane_w * w + tap_w * tap) of the image, if inside. */
typedef struct {
    int channels, rows, taps, outs, height, width;
    int x_channel, x_row, x_height, x_width, at_h, at_w, lane_h, lane_w, tap_h, tap_w;
    int w_channel, w_row, w_tap, w_out, y_out, y_row, y_lane, first, last;
} tg_conv_map;

/* Lanes [lane, lane + count) of a panel are the outputs (h, w), (h, w + 1), ... */
typedef struct {
    int lane, count, h, w;
} tg_conv_piece;

/* Up to 32 outputs from `at` on, as pieces of at most 16 that do not cross a row. Sets where in y they lie, and returns
 * the number of pieces. */
TG_INLINE int tg_conv_pieces(const tg_conv_map *c, int at, int count, tg_conv_piece *piece, int32_t *y_at)
{
    int pieces = 0, h = at / c->width, w = at - h * c->width;
    for (int lane = 0; lane < count; pieces++) {
        tg_conv_piece now = {lane, tg_min(tg_min(16, count - lane), c->width - w), h, w};
        for (int l = 0; l < now.count; l++)
            y_at[lane + l] = h * c->y_row + (w + l) * c->y_lane;
        lane += now.count;
        w += now.count;
        if (w == c->width)
            h++, w = 0;
        piece[pieces] = now;
    }
    return pieces;
}

/* Where a panel's rows come from, the same for every channel: `source` i is one tap of one piece, from x + at of the
 * channel to panel + to. Rows of the panel are taps; a_at and taken as in a product, for all channels of a panel. Pieces
 * are stored whole: what is beyond a piece belongs to a source further on. */
#define TG_CONV_SOURCES 320
typedef struct {
    int32_t at, to;
    tg_v_apart inside;
} tg_conv_source;

typedef struct {
    int count;
    uint32_t all; /* the lanes that have all taps */
    int32_t a_at[TG_PANEL_DEPTH];
    uint16_t taken[TG_PANEL_DEPTH][2];
    tg_conv_source source[TG_CONV_SOURCES];
} tg_conv_sources;

/* The `taps` taps from number `tap` on of a window, for `channels` channels. */
TG_INLINE void tg_conv_find_sources(const tg_conv_map *c, const tg_conv_piece *piece, int pieces, int tap, int taps,
                                    int channels, tg_conv_sources *found)
{
    found->count = 0;
    found->all = 0xFFFFFFFFu;
    for (int t = 0; t < taps; t++) {
        const int row = (tap + t) / c->taps, column = tap + t - row * c->taps;
        uint32_t taken = 0;
        for (int i = 0; i < pieces; i++) {
            const int h = c->at_h + c->lane_h * piece[i].h + c->tap_h * row;
            const int w = c->at_w + c->lane_w * piece[i].w + c->tap_w * column;
            int start = tg_max(-w, 0), stop = tg_min(c->x_width - w, piece[i].count);
            if (c->lane_w != 1)
                tg_window_taps(w, c->lane_w, piece[i].count, 0, c->x_width, &start, &stop);
            const uint32_t inside = h >= 0 && h < c->x_height ? tg_v_first(stop) & ~tg_v_first(start) : 0u;
            const tg_conv_source source = {h * c->x_row + w, t * TG_PANEL_WIDTH + piece[i].lane,
                                           tg_v_apart_of(c->lane_w, inside)};
            found->source[found->count] = source;
            found->count += inside != 0;
            taken |= inside << piece[i].lane;
        }
        for (int i = 0; i < channels; i++) {
            found->a_at[i * taps + t] = i * c->w_channel + row * c->w_row + column * c->w_tap;
            found->taken[i * taps + t][0] = (uint16_t)taken;
            found->taken[i * taps + t][1] = (uint16_t)(taken >> 16);
        }
        found->all &= taken;
    }
}

TG_TEMPLATE void tg_conv_pack(const float *x, const tg_conv_map *c, const tg_conv_sources *found, int channels, int taps,
                              float *panel, int lane)
{
    for (int i = 0; i < channels; i++, x += c->x_channel, panel += taps * TG_PANEL_WIDTH)
        for (int s = 0; s < found->count; s++) {
            const tg_conv_source source = found->source[s];
            tg_v_store(panel + source.to, tg_v_load_apart(x + source.at, lane, source.inside, tg_v_set(0.0f)));
        }
}

/* Up to 32 columns, all in memory. */
TG_SHARED void tg_conv_product(const tg_product *p)
{
    if (p->taken != TG_NULL && p->n_n > 16)
        tg_product_rows(p, TG_NULL, 2, TG_MASKED);
    else if (p->taken != TG_NULL)
        tg_product_rows(p, TG_NULL, 1, TG_MASKED);
    else if (p->n_n > 16)
        tg_product_rows(p, TG_NULL, 2, TG_TABLE);
    else
        tg_product_rows(p, TG_NULL, 1, TG_TABLE);
}

/* Outputs [start, stop) of the map, counted row by row. */
TG_SHARED void tg_conv_run(const float *x, const float *w, const float *b, float *y, const tg_conv_map *c, int start,
                           int stop)
{
    TG_ALIGNED float panel[TG_PANEL_DEPTH * TG_PANEL_WIDTH + 16];
    const int window = c->rows * c->taps, channels = window ? c->channels : 0;
    int32_t y_at[TG_PANEL_WIDTH];
    tg_conv_piece piece[TG_PANEL_WIDTH];
    tg_conv_sources found;
    for (int at = start; at < stop; at += TG_PANEL_WIDTH) {
        const int count = tg_min(TG_PANEL_WIDTH, stop - at), pieces = tg_conv_pieces(c, at, count, piece, y_at);
        const int part = tg_min(tg_min(window, TG_PANEL_DEPTH), TG_CONV_SOURCES / pieces); /* of a channel in a panel */
        const int group = part < window ? 1 : TG_PANEL_DEPTH / tg_max(window, 1);
        const uint32_t exist = tg_v_first(count) | tg_v_first(count - 16) << 16;
        const int is_dense = y_at[count - 1] - y_at[0] == count - 1;
        tg_product p = {
            .n_m = c->outs, .n_n = count, .a_by_m = c->w_out, .b_by_k = TG_PANEL_WIDTH, .y_by_m = c->y_out,
            .first = c->first, .a_at = found.a_at, .y_at = is_dense ? TG_NULL : y_at, .b = panel,
            .y = is_dense ? y + y_at[0] : y,
        };
        for (int channel = 0, tap = 0; channel == 0 || channel < channels; p.first = 0) {
            const int used = tg_min(group, channels - channel), taps = tg_min(part, window - tap);
            const float *from = x + channel * c->x_channel;
            if (channel == 0 || part < window)
                tg_conv_find_sources(c, piece, pieces, tap, taps, used, &found);
            if (c->lane_w == 1)
                tg_conv_pack(from, c, &found, used, taps, panel, 1);
            else if (c->lane_w == 2)
                tg_conv_pack(from, c, &found, used, taps, panel, 2);
            else
                tg_conv_pack(from, c, &found, used, taps, panel, c->lane_w);
            p.a = w + channel * c->w_channel;
            p.n_k = used * taps;
            p.taken = (found.all & exist) == exist ? TG_NULL : found.taken[0];
            tap += taps;
            if (tap == window)
                tap = 0, channel += tg_max(used, 1);
            p.bias = c->last && channel >= channels && tap == 0 ? b : TG_NULL;
            tg_conv_product(&p);
        }
    }
}

/* The taps of a gather: those k of [0, taps) for which `numerator - k * dilation` is a multiple of the stride. They begin
 * at *k, which lies at *position, and are `k_step` apart. Returns their number. */
TG_INLINE int tg_conv_gather(int numerator, int taps, int stride, int dilation, int k_step, int *k, int *position)
{
    *k = 0;
    while (*k < k_step && (numerator - *k * dilation) % stride != 0)
        (*k)++;
    *position = (numerator - *k * dilation) / stride;
    return *k < k_step && *k < taps ? (taps - *k + k_step - 1) / k_step : 0;
}

/* Where in the image each tap of up to 16 outputs lies that any of them has, and which of them have it. */
#define TG_PLANE_TAPS 64
typedef struct {
    int count;
    int32_t x_at[TG_PLANE_TAPS], w_at[TG_PLANE_TAPS];
    tg_v_apart inside[TG_PLANE_TAPS];
} tg_conv_taps;

TG_INLINE void tg_conv_find(const tg_conv_map *c, const tg_conv_piece *piece, int pieces, tg_conv_taps *found)
{
    found->count = 0;
    for (int row = 0; row < c->rows; row++)
        for (int tap = 0; tap < c->taps; tap++) {
            const int below = c->at_h + c->tap_h * row, right = c->at_w + c->tap_w * tap, at = found->count;
            uint32_t inside = 0;
            for (int i = 0; i < pieces; i++) {
                const int h = below + c->lane_h * piece[i].h;
                int start, stop;
                tg_window_taps(right + c->lane_w * piece[i].w, c->lane_w, piece[i].count, 0, c->x_width, &start, &stop);
                if (h >= 0 && h < c->x_height && start < stop)
                    inside |= (tg_v_first(stop) & ~tg_v_first(start)) << piece[i].lane;
            }
            found->inside[at] = tg_v_apart_of(c->lane_w, inside);
            found->x_at[at] = (below + c->lane_h * piece[0].h) * c->x_row + right + c->lane_w * piece[0].w;
            found->w_at[at] = row * c->w_row + tap * c->w_tap;
            found->count += inside != 0;
        }
}

TG_TEMPLATE tg_v16 tg_conv_sum(const float *x, const float *w, const tg_conv_taps *taps, int lane, tg_v16 sum)
{
    for (int t = 0; t < taps->count; t++)
        sum = tg_v_fma_some(tg_v_set(w[taps->w_at[t]]),
                            tg_v_load_apart(x + taps->x_at[t], lane, taps->inside[t], tg_v_set(0.0f)), sum,
                            taps->inside[t].lanes);
    return sum;
}

/* One channel from one, `planes` times: outputs [start, stop) of each. Sixteen at a time, across rows where the rows of
 * the image follow each other as those of the map do. */
TG_SHARED void tg_conv_planes(const float *x, int x_by, const float *w, int w_by, const float *b, int b_by, float *y,
                              int y_by, int planes, const tg_conv_map *c, int start, int stop)
{
    const int is_flat = c->lane_h == 1 && c->lane_w == 1 && c->x_row == c->width;
    for (int at = start, count; at < stop; at += count) {
        tg_conv_piece piece[16];
        tg_conv_taps taps;
        int32_t y_at[16];
        count = tg_min(tg_min(16, stop - at), is_flat ? 16 : c->width - at % c->width);
        tg_conv_find(c, piece, tg_conv_pieces(c, at, count, piece, y_at), &taps);
        const int is_dense = y_at[count - 1] - y_at[0] == count - 1;
        const uint32_t exist = tg_v_first(count);
        for (int plane = 0; plane < planes; plane++) {
            const float *from = x + plane * x_by, *weight = w + plane * w_by;
            float *out = y + plane * y_by;
            tg_v16 sum = c->first   ? tg_v_set(0.0f)
                         : is_dense ? tg_v_load_some(out + y_at[0], exist)
                                    : tg_v_gather(out, y_at, exist);
            sum = c->lane_w == 1 ? tg_conv_sum(from, weight, &taps, 1, sum) : tg_conv_sum(from, weight, &taps, c->lane_w, sum);
            if (c->last && b != TG_NULL)
                sum = tg_v_add(sum, tg_v_set(b[plane * b_by]));
            if (is_dense)
                tg_v_store_some(out + y_at[0], exist, sum);
            else
                tg_v_scatter(out, y_at, exist, sum);
        }
    }
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
