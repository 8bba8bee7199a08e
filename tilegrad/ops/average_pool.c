/* AveragePool: a window's sum over (kh, kw), divided by the number of its counted taps. AveragePoolGrad: each image
 * element gathers, in order of (kh, kw), dy times the rounded reciprocal of that number. */
#include "tg_window.h"

typedef struct {
    int32_t n_c, n_oh, n_ow, n_kh, n_kw, at_oh, at_ow;
    int32_t stride_h, stride_w, dilation_h, dilation_w, pad_h, pad_w, low_h, low_w, high_h, high_w;
    int32_t x_s0, x_s1, x_n1, x_n2, x_o1, x_o2, y_s0, y_s1;
} tg_average_pool_args;

typedef struct {
    int32_t n_c, n_ih, n_iw, n_kh, n_kw, at_ih, at_iw;
    int32_t stride_h, stride_w, dilation_h, dilation_w, low_h, low_w, high_h, high_w;
    int32_t dy_s0, dy_s1, dy_n1, dy_n2, dy_o1, dy_o2, dx_s0, dx_s1;
} tg_average_pool_grad_args;

TG_INLINE int tg_counted_taps(int base, int step, int taps, int low, int high)
{
    int start, stop;
    tg_window_taps(base, step, taps, low, high, &start, &stop);
    return stop - start;
}

TG_KERNEL void tg_average_pool(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_average_pool_args *p,
                               int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_c * p->n_oh, core_id, core_count, &start, &stop);
    for (int unit = start; unit < stop; unit++) {
        int c = unit / p->n_oh, oh = unit - c * p->n_oh;
        int top = oh * p->stride_h + p->x_o1, kh_start, kh_stop, kw_start, kw_stop;
        tg_window_taps(top, p->dilation_h, p->n_kh, 0, p->x_n1, &kh_start, &kh_stop);
        int rows =
            tg_counted_taps((p->at_oh + oh) * p->stride_h - p->pad_h, p->dilation_h, p->n_kh, p->low_h, p->high_h);
        for (int ow = 0; ow < p->n_ow; ow++) {
            int left = ow * p->stride_w + p->x_o2;
            tg_window_taps(left, p->dilation_w, p->n_kw, 0, p->x_n2, &kw_start, &kw_stop);
            int columns =
                tg_counted_taps((p->at_ow + ow) * p->stride_w - p->pad_w, p->dilation_w, p->n_kw, p->low_w, p->high_w);
            float sum = 0.0f;
            for (int kh = kh_start; kh < kh_stop; kh++) {
                TG_MEM const float *taps = x + c * p->x_s0 + (top + kh * p->dilation_h) * p->x_s1 + left;
                for (int kw = kw_start; kw < kw_stop; kw++)
                    sum += taps[kw * p->dilation_w];
            }
            y[c * p->y_s0 + oh * p->y_s1 + ow] = sum / (float)(rows * columns);
        }
    }
}

TG_KERNEL void tg_average_pool_grad(TG_MEM const float *dy, TG_MEM float *dx, TG_ARG const tg_average_pool_grad_args *p,
                                    int core_id, int core_count)
{
    int start, stop, count = 1;
    float reciprocal = 1.0f;
    tg_share(p->n_c * p->n_ih, core_id, core_count, &start, &stop);
    for (int unit = start; unit < stop; unit++) {
        int c = unit / p->n_ih, ih = unit - c * p->n_ih;
        for (int iw = 0; iw < p->n_iw; iw++) {
            float sum = 0.0f;
            for (int kh = 0; kh < p->n_kh; kh++) {
                int above = ih - kh * p->dilation_h + p->dy_o1, oh = above / p->stride_h;
                if (above < 0 || oh >= p->dy_n1 || oh * p->stride_h != above)
                    continue;
                int rows =
                    tg_counted_taps(p->at_ih + ih - kh * p->dilation_h, p->dilation_h, p->n_kh, p->low_h, p->high_h);
                for (int kw = 0; kw < p->n_kw; kw++) {
                    int left = iw - kw * p->dilation_w + p->dy_o2, ow = left / p->stride_w;
                    if (left < 0 || ow >= p->dy_n2 || ow * p->stride_w != left)
                        continue;
                    int taps = rows * tg_counted_taps(p->at_iw + iw - kw * p->dilation_w, p->dilation_w, p->n_kw,
                                                      p->low_w, p->high_w);
                    if (taps != count) {
                        count = taps;
                        reciprocal = 1.0f / (float)count;
                    }
                    sum = TG_FMA(dy[c * p->dy_s0 + oh * p->dy_s1 + ow], reciprocal, sum);
                }
            }
            dx[c * p->dx_s0 + ih * p->dx_s1 + iw] = sum;
        }
    }
}
