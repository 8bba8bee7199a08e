/* MaxPool: y and, if asked for, the flat position of each maximum in x. A NaN wins; of equal maxima the first.
 * MaxPoolGrad: each image element gathers, in order of (kh, kw), from the windows whose first maximum it is. */
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
                    if (WINS(value, best)) {                                                                           \
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

TG_INLINE int tg_is_maximum(float value, float maximum)
{
    return value == maximum || (value != value && maximum != maximum);
}

/* Whether no tap before (kh, kw) of its window holds the maximum too; it lies at (row, column). */
TG_INLINE int tg_is_first(TG_MEM const float *plane, TG_ARG const tg_max_pool_grad_args *p, int row, int column, int kh,
                          int kw, float maximum)
{
    for (int h = 0; h <= kh; h++) {
        int y = row - (kh - h) * p->dilation_h;
        if (y < 0)
            continue;
        for (int w = 0; w < (h < kh ? p->n_kw : kw); w++) {
            int x = column - (kw - w) * p->dilation_w;
            if (x >= 0 && x < p->x_n2 && tg_is_maximum(plane[y * p->x_s1 + x], maximum))
                return 0;
        }
    }
    return 1;
}

/* The taps through which windows see an image position: `tap` and every `step` further one, the first of them that of
 * window `window` (which may not exist), the next ones those of windows `back` before. */
typedef struct {
    int tap, step, window, back;
} tg_sighting;

TG_INLINE tg_sighting tg_sightings(int position, int stride, int dilation)
{
    tg_sighting s = {0, 1, 0, 0};
    while (s.step * dilation % stride != 0)
        s.step++;
    s.back = s.step * dilation / stride;
    for (; s.tap < s.step; s.tap++) {
        int top = position - s.tap * dilation;
        s.window = top / stride - (top % stride < 0);
        if (s.window * stride == top)
            return s;
    }
    s.window = -1; /* none at all */
    return s;
}

TG_KERNEL void tg_max_pool_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *y, TG_MEM float *dx,
                                TG_ARG const tg_max_pool_grad_args *p, int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_c * p->n_ih, core_id, core_count, &start, &stop);
    for (int unit = start; unit < stop; unit++) {
        int c = unit / p->n_ih, ih = unit - c * p->n_ih;
        int row = ih + (p->n_kh - 1) * p->dilation_h + p->x_o1;
        TG_MEM const float *plane = x + c * p->x_s0;
        tg_sighting h = tg_sightings(ih + p->dy_o1, p->stride_h, p->dilation_h);
        tg_sighting w = tg_sightings(p->dy_o2, p->stride_w, p->dilation_w);
        for (int iw = 0; iw < p->n_iw; iw++) {
            int column = iw + p->x_o2;
            float value = plane[row * p->x_s1 + column], sum = 0.0f;
            for (int kh = h.tap, oh = h.window; kh < p->n_kh; kh += h.step, oh -= h.back) {
                if ((unsigned)oh >= (unsigned)p->dy_n1)
                    continue;
                for (int kw = w.tap, ow = w.window; kw < p->n_kw; kw += w.step, ow -= w.back) {
                    if ((unsigned)ow >= (unsigned)p->dy_n2)
                        continue;
                    float maximum = y[c * p->y_s0 + oh * p->y_s1 + ow];
                    if (tg_is_maximum(value, maximum) && tg_is_first(plane, p, row, column, kh, kw, maximum))
                        sum += dy[c * p->dy_s0 + oh * p->dy_s1 + ow];
                }
            }
            if (p->dilation_w != 1)
                w = tg_sightings(iw + 1 + p->dy_o2, p->stride_w, p->dilation_w);
            else if (++w.tap == p->stride_w) { /* no division from column to column */
                w.tap = 0;
                w.window++;
            }
            dx[c * p->dx_s0 + ih * p->dx_s1 + iw] = sum;
        }
    }
}
