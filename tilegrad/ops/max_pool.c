/* MaxPool: y and, if asked for, the flat position of each maximum in x. A NaN wins; of equal maxima the first.
 * MaxPoolGrad: an image element sums, in order of (kh, kw), over the windows whose first maximum it is. */
#include "tg_window.h"

typedef struct {
    int32_t n_c, n_oh, n_ow, n_kh, n_kw, at_c, at_oh, at_ow;
    int32_t stride_h, stride_w, dilation_h, dilation_w, pad_h, pad_w;
    int32_t x_s0, x_s1, x_n1, x_n2, x_o1, x_o2, y_s0, y_s1, indices_s0, indices_s1;
    int32_t index_by_c, index_by_h, index_by_w;
} tg_max_pool_args;

typedef struct {
    int32_t n_c, n_ih, n_iw, n_kh, n_kw;
    int32_t stride_h, stride_w, dilation_h, dilation_w;
    int32_t dy_s0, dy_s1, dy_n1, dy_n2, dy_o1, dy_o2, y_s0, y_s1, x_s0, x_s1, x_n2, x_o1, x_o2, dx_s0, dx_s1;
} tg_max_pool_grad_args;

#define TG_GREATER(value, best) ((value) > (best))
#define TG_GREATER_OR_NAN(value, best) ((value) > (best) || (value) != (value))

#define TG_MAX_POOL(TYPE, WINS)                                                                                        \
    int start, stop;                                                                                                   \
    tg_share(p->n_c * p->n_oh, core_id, core_count, &start, &stop);                                                    \
    for (int row = start; row < stop; row++) {                                                                         \
        int c = row / p->n_oh, oh = row - c * p->n_oh;                                                                 \
        int top = oh * p->stride_h + p->x_o1, kh_start, kh_stop, kw_start, kw_stop;                                    \
        tg_window_taps(top, p->dilation_h, p->n_kh, 0, p->x_n1, &kh_start, &kh_stop);                                  \
        for (int ow = 0; ow < p->n_ow; ow++) {                                                                         \
            int left = ow * p->stride_w + p->x_o2, best_h = kh_start, best_w;                                          \
            tg_window_taps(left, p->dilation_w, p->n_kw, 0, p->x_n2, &kw_start, &kw_stop);                             \
            TG_MEM const TYPE *taps = x + c * p->x_s0 + (top + kh_start * p->dilation_h) * p->x_s1 + left;             \
            TYPE best = taps[kw_start * p->dilation_w];                                                                \
            best_w = kw_start;                                                                                         \
            for (int kh = kh_start; kh < kh_stop; kh++, taps += p->dilation_h * p->x_s1)                               \
                for (int kw = kw_start; kw < kw_stop; kw++) {                                                          \
                    TYPE value = taps[kw * p->dilation_w];                                                             \
                    if (!(value <= best) && WINS(value, best)) { /* one comparison for most */                         \
                        best = value;                                                                                  \
                        best_h = kh;                                                                                   \
                        best_w = kw;                                                                                   \
                    }                                                                                                  \
                }                                                                                                      \
            if (y != TG_NULL)                                                                                          \
                y[c * p->y_s0 + oh * p->y_s1 + ow] = best;                                                             \
            if (indices != TG_NULL) {                                                                                  \
                int h = (p->at_oh + oh) * p->stride_h + best_h * p->dilation_h - p->pad_h;                             \
                int w = (p->at_ow + ow) * p->stride_w + best_w * p->dilation_w - p->pad_w;                             \
                indices[c * p->indices_s0 + oh * p->indices_s1 + ow] =                                                 \
                    (int64_t)(p->at_c + c) * p->index_by_c + h * p->index_by_h + w * p->index_by_w;                    \
            }                                                                                                          \
        }                                                                                                              \
    }

TG_KERNEL void tg_max_pool(TG_MEM const float *x, TG_MEM float *y, TG_MEM int64_t *indices,
                           TG_ARG const tg_max_pool_args *p, int core_id, int core_count)
{
    TG_MAX_POOL(float, TG_GREATER_OR_NAN)
}

TG_KERNEL void tg_max_pool_u8(TG_MEM const uint8_t *x, TG_MEM uint8_t *y, TG_MEM int64_t *indices,
                              TG_ARG const tg_max_pool_args *p, int core_id, int core_count)
{
    TG_MAX_POOL(uint8_t, TG_GREATER)
}

TG_KERNEL void tg_max_pool_i8(TG_MEM const int8_t *x, TG_MEM int8_t *y, TG_MEM int64_t *indices,
                              TG_ARG const tg_max_pool_args *p, int core_id, int core_count)
{
    TG_MAX_POOL(int8_t, TG_GREATER)
}

/* A window's first maximum, found tap by tap: where it is from the first tap at `taps`, or -1 if it is at none of these.
 * `by_h` and `by_w` are steps from tap to tap. */
TG_INLINE int tg_first_maximum(TG_MEM const float *taps, int n_kh, int n_kw, int by_h, int by_w, float maximum)
{
    int row = 0;
    if (maximum != maximum) {
        for (; n_kh > 0; n_kh--, row += by_h)
            for (int kw = 0, at = row; kw < n_kw; kw++, at += by_w)
                if (taps[at] != taps[at])
                    return at;
        return -1;
    }
    for (; n_kh > 0; n_kh--, row += by_h)
        for (int kw = 0, at = row; kw < n_kw; kw++, at += by_w)
            if (taps[at] == maximum)
                return at;
    return -1;
}

/* Rows [start, stop) of one channel's image. Windows come last to first, so each element gets its sum in order. Places
 * in x are `row` and `column` further than in dx. */
TG_INLINE void tg_max_pool_grad_rows(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *y,
                                     TG_MEM float *dx, TG_ARG const tg_max_pool_grad_args *p, int start, int stop)
{
    const int row = (p->n_kh - 1) * p->dilation_h + p->x_o1, column = p->x_o2;
    const int by_h = p->dilation_h * p->x_s1, by_w = p->dilation_w, reach_w = (p->n_kw - 1) * p->dilation_w;
    for (int ih = start; ih < stop; ih++)
        for (int iw = 0; iw < p->n_iw; iw++)
            dx[ih * p->dx_s1 + iw] = 0.0f;
    int oh = stop - 1 + p->dy_o1;
    oh = oh < 0 ? -1 : tg_min(oh / p->stride_h, p->dy_n1 - 1);
    for (; oh >= 0; oh--) {
        int top = oh * p->stride_h - p->dy_o1, kh_start = 0, kh_stop = p->n_kh;
        if (top + (p->n_kh - 1) * p->dilation_h < start)
            break;
        while (kh_start < kh_stop && top + kh_start * p->dilation_h + row < 0)
            kh_start++;
        while (kh_stop > kh_start && top + (kh_stop - 1) * p->dilation_h >= stop)
            kh_stop--;
        if (kh_start >= kh_stop)
            continue;
        TG_MEM const float *first = x + (top + kh_start * p->dilation_h + row) * p->x_s1;
        for (int ow = p->dy_n2 - 1; ow >= 0; ow--) {
            int left = ow * p->stride_w - p->dy_o2 + column, kw_start = 0, kw_stop = p->n_kw;
            if (left < 0 || left + reach_w >= p->x_n2)
                tg_window_taps(left, p->dilation_w, p->n_kw, 0, p->x_n2, &kw_start, &kw_stop);
            left += kw_start * p->dilation_w;
            int at = tg_first_maximum(first + left, kh_stop - kh_start, kw_stop - kw_start, by_h, by_w,
                                      y[oh * p->y_s1 + ow]);
            if (at < 0)
                continue;
            int ih = top + kh_start * p->dilation_h, iw = left - column;
            for (; at >= by_h; at -= by_h) /* a row of taps is shorter than that */
                ih += p->dilation_h;
            iw += at;
            if (ih >= start && (unsigned)iw < (unsigned)p->n_iw)
                dx[ih * p->dx_s1 + iw] += dy[oh * p->dy_s1 + ow];
        }
    }
}

TG_KERNEL void tg_max_pool_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *y, TG_MEM float *dx,
                                TG_ARG const tg_max_pool_grad_args *p, int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_c * p->n_ih, core_id, core_count, &start, &stop);
    for (int unit = start, count; unit < stop; unit += count) {
        int c = unit / p->n_ih, ih = unit - c * p->n_ih;
        count = tg_min(p->n_ih - ih, stop - unit);
        tg_max_pool_grad_rows(dy + c * p->dy_s0, x + c * p->x_s0, y + c * p->y_s0, dx + c * p->dx_s0, p, ih, ih + count);
    }
}
