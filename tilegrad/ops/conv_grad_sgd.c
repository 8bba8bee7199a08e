/* ConvGradSGD: y = fma(-lr, g, w), where g is the weight gradient of a convolution with windows of three columns
 * (`conv_dw` in ops/conv.c makes it alone). Sums run over (n, oh, ow); taps that fall on padding are skipped. The cores
 * share (group, four output channels, input channel, window row); each element is read before it is written, so y may
 * be w. */
#include "tg_block.h"
#include "tg_inner.h"
#include "tg_window.h"

typedef struct {
    int32_t n_n, n_g, n_o, n_i, n_oh, n_ow, n_kh;
    int32_t stride_h, stride_w, dilation_h;
    int32_t x_s0, x_s1, x_s2, x_s3, x_n3, x_n4, x_o3, x_o4;
    int32_t dy_s0, dy_s1, dy_s2, dy_s3, w_s0, w_s1, w_s2, w_s3, y_s0, y_s1, y_s2, y_s3;
} tg_conv_grad_sgd_args;

/* The three taps of window row kh for up to four channels, `outs`. `x` is at the input channel, `dy` at the first output
 * channel, `w` and `y` at (kh, 0). `stride` is a literal. */
TG_TEMPLATE void tg_conv_grad_sgd_block(TG_MEM const float *x, TG_MEM const float *dy, TG_MEM const float *w,
                                        TG_MEM float *y, TG_ARG const tg_conv_grad_sgd_args *p, float step, int stride,
                                        int outs, int kh)
{
#define TG_CGS_ROW3(F, i) F(i, 0) F(i, 1) F(i, 2)
#define TG_CGS_ALL(F) TG_CGS_ROW3(F, 0) TG_CGS_ROW3(F, 1) TG_CGS_ROW3(F, 2) TG_CGS_ROW3(F, 3)
#define TG_CGS_ZERO(i, j) float s##i##j = 0.0f;
#define TG_CGS_POINTER(i) TG_MEM const float *d##i = dy_row + tg_min(i, outs - 1) * p->dy_s2;
#define TG_CGS_GRADIENT(i) const float g##i = d##i[l];
#define TG_CGS_NEXT(i) d##i += count;
#define TG_CGS_ADD(i, j) s##i##j = TG_FMA(g##i, v, s##i##j);
#define TG_CGS_TAP(j, CONDITION)                                                                                       \
    if (CONDITION) {                                                                                                   \
        const float v = x_row[at + l * stride + j];                                                                    \
        TG_CGS_ADD(0, j) TG_CGS_ADD(1, j) TG_CGS_ADD(2, j) TG_CGS_ADD(3, j)                                            \
    }
#define TG_CGS_COLUMN(L, LOW, HIGH)                                                                                    \
    {                                                                                                                  \
        const int l = L;                                                                                               \
        TG_ROW4(TG_CGS_GRADIENT)                                                                                       \
        TG_CGS_TAP(0, LOW)                                                                                             \
        TG_CGS_TAP(1, 1)                                                                                               \
        TG_CGS_TAP(2, HIGH)                                                                                            \
    }
#define TG_CGS_STEP(i, j)                                                                                              \
    if (i < outs)                                                                                                      \
        y[i * p->y_s1 + j] = TG_FMA(step, s##i##j, w[i * p->w_s1 + j]);
    int oh_start, oh_stop, room = p->x_n4 - 2 - 3 * stride - p->x_o4; /* to the last place for four columns at once */
    int blocks = p->x_o4 < -1 || room < 0 ? 0 : tg_min(p->n_ow / 4, room / (4 * stride) + 1);
    tg_window_taps(kh * p->dilation_h + p->x_o3, p->stride_h, p->n_oh, 0, p->x_n3, &oh_start, &oh_stop);
    const int x_first = (oh_start * p->stride_h + kh * p->dilation_h + p->x_o3) * p->x_s3;
#ifdef TG_INNER_WEIGHT
    if (oh_start < oh_stop && p->n_n > 0 && blocks > 0 && 4 * blocks == p->n_ow) {
        const tg_inner_weight c = {blocks,
                                   oh_stop - oh_start,
                                   4 * (p->stride_h * p->x_s3 - 4 * stride * blocks),
                                   4 * (p->dy_s3 - 4 * blocks),
                                   p->dy_s2,
                                   3,
                                   p->x_o4 < 0,
                                   p->x_o4 + (p->n_ow - 1) * stride + 2 >= p->x_n4};
        float sums[12];
        for (int n = 0; n < p->n_n; n++) {
            const float *from = x + n * p->x_s0 + p->x_o4 + x_first;
            const float *gradient = dy + n * p->dy_s0 + oh_start * p->dy_s3;
            if (stride == 1)
                tg_inner_weight_1(from, gradient, sums, &c, outs, n == 0);
            else
                tg_inner_weight_2(from, gradient, sums, &c, outs, n == 0);
        }
        const float *sum = sums;
        for (int i = 0; i < outs; i++, sum += 3, w += p->w_s1, y += p->y_s1) {
            const float w0 = w[0], w1 = w[1], w2 = w[2];
            const float o0 = TG_FMA(step, sum[0], w0), o1 = TG_FMA(step, sum[1], w1), o2 = TG_FMA(step, sum[2], w2);
            y[0] = o0;
            y[1] = o1;
            y[2] = o2;
        }
        return;
    }
#endif
    TG_CGS_ALL(TG_CGS_ZERO)
    for (int n = 0; n < p->n_n; n++)
        for (int oh = oh_start; oh < oh_stop; oh++) {
            TG_MEM const float *dy_row = dy + n * p->dy_s0 + oh * p->dy_s3;
            TG_MEM const float *x_row = x + n * p->x_s0 + x_first + (oh - oh_start) * p->stride_h * p->x_s3;
            TG_ROW4(TG_CGS_POINTER)
            int at = p->x_o4;
            for (int block = 0, count = 4; block < blocks; block++, at += 4 * stride) {
                const int has_low = at >= 0, has_high = at + 3 * stride + 2 < p->x_n4;
                TG_CGS_COLUMN(0, has_low, 1)
                TG_CGS_COLUMN(1, 1, 1)
                TG_CGS_COLUMN(2, 1, 1)
                TG_CGS_COLUMN(3, 1, has_high)
                TG_ROW4(TG_CGS_NEXT)
            }
            for (int column = 4 * blocks, count = 1, l = 0; column < p->n_ow; column++, at += stride) {
                TG_ROW4(TG_CGS_GRADIENT)
                TG_CGS_TAP(0, (unsigned)at < (unsigned)p->x_n4)
                TG_CGS_TAP(1, (unsigned)(at + 1) < (unsigned)p->x_n4)
                TG_CGS_TAP(2, (unsigned)(at + 2) < (unsigned)p->x_n4)
                TG_ROW4(TG_CGS_NEXT)
            }
        }
    TG_CGS_ALL(TG_CGS_STEP)
}

TG_KERNEL void tg_conv_grad_sgd(TG_MEM const float *x, TG_MEM const float *dy, TG_MEM const float *w,
                                TG_MEM const float *lr, TG_MEM float *y, TG_ARG const tg_conv_grad_sgd_args *p,
                                int core_id, int core_count)
{
    const float step = -*lr;
    int start, stop, blocks = (p->n_o + 3) / 4;
    tg_share(p->n_g * blocks * p->n_i * p->n_kh, core_id, core_count, &start, &stop);
    if (start >= stop)
        return;
    int kh = start % p->n_kh, i = start / p->n_kh % p->n_i, block = start / (p->n_kh * p->n_i) % blocks;
    int group = start / (p->n_kh * p->n_i * blocks);
    for (int unit = start; unit < stop; unit++) {
        int o = block * 4, outs = tg_min(4, p->n_o - o);
        TG_MEM const float *from = x + group * p->x_s1 + i * p->x_s2;
        TG_MEM const float *gradient = dy + group * p->dy_s1 + o * p->dy_s2;
        TG_MEM const float *weight = w + group * p->w_s0 + o * p->w_s1 + i * p->w_s2 + kh * p->w_s3;
        TG_MEM float *out = y + group * p->y_s0 + o * p->y_s1 + i * p->y_s2 + kh * p->y_s3;
        if (p->stride_w == 1)
            tg_conv_grad_sgd_block(from, gradient, weight, out, p, step, 1, outs, kh);
        else
            tg_conv_grad_sgd_block(from, gradient, weight, out, p, step, 2, outs, kh);
        if (++kh < p->n_kh)
            continue;
        kh = 0;
        if (++i < p->n_i)
            continue;
        i = 0;
        if (++block < blocks)
            continue;
        block = 0;
        group++;
    }
}
