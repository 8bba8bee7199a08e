/* MaxPoolTap: which tap of its window, counted in order of (kh, kw), each maximum is; of equal ones the first.
 * MaxPoolTapGrad: an image element sums, in order of (kh, kw), over the windows whose maximum it is. */
#include "tg_window.h"

typedef struct {
    int32_t n_c, n_oh, n_ow, n_kh, n_kw, stride_h, stride_w, dilation_h, dilation_w;
    int32_t x_s0, x_s1, x_n1, x_n2, x_o1, x_o2, y_s0, y_s1, tap_s0, tap_s1;
} tg_max_pool_tap_args;

typedef struct {
    int32_t n_c, n_ih, n_iw, n_kh, n_kw, stride_h, stride_w, dilation_h, dilation_w;
    int32_t dy_s0, dy_s1, dy_n1, dy_n2, dy_o1, dy_o2, tap_s0, tap_s1, dx_s0, dx_s1;
} tg_max_pool_tap_grad_args;

TG_INLINE int tg_tap_of(TG_MEM const float *x, float maximum, int top, int left, TG_ARG const tg_max_pool_tap_args *p)
{
    int kh_start, kh_stop, kw_start, kw_stop;
    tg_window_taps(top, p->dilation_h, p->n_kh, 0, p->x_n1, &kh_start, &kh_stop);
    tg_window_taps(left, p->dilation_w, p->n_kw, 0, p->x_n2, &kw_start, &kw_stop);
    for (int kh = kh_start; kh < kh_stop; kh++)
        for (int kw = kw_start; kw < kw_stop; kw++) {
            const float value = x[(top + kh * p->dilation_h) * p->x_s1 + left + kw * p->dilation_w];
            if (value == maximum || (value != value && maximum != maximum))
                return kh * p->n_kw + kw;
        }
    return 0;
}

TG_KERNEL void tg_max_pool_tap(TG_MEM const float *x, TG_MEM const float *y, TG_MEM uint8_t *tap,
                               TG_ARG const tg_max_pool_tap_args *p, int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_c * p->n_oh, core_id, core_count, &start, &stop);
    for (int row = start; row < stop; row++) {
        const int c = row / p->n_oh, oh = row - c * p->n_oh;
        for (int ow = 0; ow < p->n_ow; ow++)
            tap[c * p->tap_s0 + oh * p->tap_s1 + ow] =
                (uint8_t)tg_tap_of(x + c * p->x_s0, y[c * p->y_s0 + oh * p->y_s1 + ow], oh * p->stride_h + p->x_o1,
                                   ow * p->stride_w + p->x_o2, p);
    }
}

TG_KERNEL void tg_max_pool_tap_grad(TG_MEM const float *dy, TG_MEM const uint8_t *tap, TG_MEM float *dx,
                                    TG_ARG const tg_max_pool_tap_grad_args *p, int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_c * p->n_ih, core_id, core_count, &start, &stop);
    for (int row = start; row < stop; row++) {
        const int c = row / p->n_ih, ih = row - c * p->n_ih;
        for (int iw = 0; iw < p->n_iw; iw++) {
            float sum = 0.0f;
            for (int kh = 0; kh < p->n_kh; kh++) {
                const int h = ih - kh * p->dilation_h + p->dy_o1, oh = h / p->stride_h;
                if (h < 0 || oh * p->stride_h != h || oh >= p->dy_n1)
                    continue;
                for (int kw = 0; kw < p->n_kw; kw++) {
                    const int w = iw - kw * p->dilation_w + p->dy_o2, ow = w / p->stride_w;
                    if (w < 0 || ow * p->stride_w != w || ow >= p->dy_n2)
                        continue;
                    if (tap[c * p->tap_s0 + oh * p->tap_s1 + ow] == kh * p->n_kw + kw)
                        sum += dy[c * p->dy_s0 + oh * p->dy_s1 + ow];
                }
            }
            dx[c * p->dx_s0 + ih * p->dx_s1 + iw] = sum;
        }
    }
}
