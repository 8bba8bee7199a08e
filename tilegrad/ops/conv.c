/* Convolutions in their three directions: `conv` computes the map from image and weight, `conv_dx` the image from map
 * and weight (each image element gathers its own sum), `conv_dw` the weight from image and map. Taps that fall on
 * padding are skipped; a bias is added last. Sums run over (channel, kh, kw); for the weight over (n, oh, ow). */
#include "tg_kernel.h"

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
    int32_t n_c, n_n, n_p;
    int32_t dy_s0, dy_s1;
    int32_t first;
} tg_conv_db_args;

TG_KERNEL void tg_conv(TG_MEM const float *x, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *y,
                       TG_ARG const tg_conv_args *p, int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_n * p->n_g * p->n_o * p->n_oh, core_id, core_count, &start, &stop);
    for (int unit = start; unit < stop; unit++) {
        int oh = unit % p->n_oh, rest = unit / p->n_oh;
        int o = rest % p->n_o;
        rest /= p->n_o;
        int g = rest % p->n_g, n = rest / p->n_g;
        for (int ow = 0; ow < p->n_ow; ow++) {
            TG_MEM float *out = y + n * p->y_s0 + g * p->y_s1 + o * p->y_s2 + oh * p->y_s3 + ow;
            float sum = p->first ? 0.0f : *out;
            for (int i = 0; i < p->n_i; i++)
                for (int kh = 0; kh < p->n_kh; kh++) {
                    int ih = oh * p->stride_h + kh * p->dilation_h + p->x_o3;
                    if (ih < 0 || ih >= p->x_n3)
                        continue;
                    for (int kw = 0; kw < p->n_kw; kw++) {
                        int iw = ow * p->stride_w + kw * p->dilation_w + p->x_o4;
                        if (iw >= 0 && iw < p->x_n4)
                            sum = TG_FMA(x[n * p->x_s0 + g * p->x_s1 + i * p->x_s2 + ih * p->x_s3 + iw],
                                         w[g * p->w_s0 + o * p->w_s1 + i * p->w_s2 + kh * p->w_s3 + kw], sum);
                    }
                }
            *out = p->last && b != TG_NULL ? sum + b[g * p->b_s0 + o] : sum;
        }
    }
}

TG_KERNEL void tg_conv_dx(TG_MEM const float *dy, TG_MEM const float *w, TG_MEM const float *b, TG_MEM float *dx,
                          TG_ARG const tg_conv_dx_args *p, int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_n * p->n_g * p->n_i * p->n_ih, core_id, core_count, &start, &stop);
    for (int unit = start; unit < stop; unit++) {
        int ih = unit % p->n_ih, rest = unit / p->n_ih;
        int i = rest % p->n_i;
        rest /= p->n_i;
        int g = rest % p->n_g, n = rest / p->n_g;
        for (int iw = 0; iw < p->n_iw; iw++) {
            TG_MEM float *out = dx + n * p->dx_s0 + g * p->dx_s1 + i * p->dx_s2 + ih * p->dx_s3 + iw;
            float sum = p->first ? 0.0f : *out;
            for (int o = 0; o < p->n_o; o++)
                for (int kh = 0; kh < p->n_kh; kh++) {
                    int above = ih - kh * p->dilation_h + p->dy_o3, oh = above / p->stride_h;
                    if (above < 0 || oh >= p->dy_n3 || oh * p->stride_h != above)
                        continue;
                    for (int kw = 0; kw < p->n_kw; kw++) {
                        int left = iw - kw * p->dilation_w + p->dy_o4, ow = left / p->stride_w;
                        if (left >= 0 && ow < p->dy_n4 && ow * p->stride_w == left)
                            sum = TG_FMA(dy[n * p->dy_s0 + g * p->dy_s1 + o * p->dy_s2 + oh * p->dy_s3 + ow],
                                         w[g * p->w_s0 + o * p->w_s1 + i * p->w_s2 + kh * p->w_s3 + kw], sum);
                    }
                }
            *out = p->last && b != TG_NULL ? sum + b[g * p->b_s0 + i] : sum;
        }
    }
}

TG_KERNEL void tg_conv_dw(TG_MEM const float *x, TG_MEM const float *dy, TG_MEM float *dw,
                          TG_ARG const tg_conv_dw_args *p, int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_g * p->n_o * p->n_i, core_id, core_count, &start, &stop);
    for (int unit = start; unit < stop; unit++) {
        int i = unit % p->n_i, rest = unit / p->n_i;
        int o = rest % p->n_o, g = rest / p->n_o;
        for (int kh = 0; kh < p->n_kh; kh++)
            for (int kw = 0; kw < p->n_kw; kw++) {
                TG_MEM float *out = dw + g * p->dw_s0 + o * p->dw_s1 + i * p->dw_s2 + kh * p->dw_s3 + kw;
                float sum = p->first ? 0.0f : *out;
                for (int n = 0; n < p->n_n; n++)
                    for (int oh = 0; oh < p->n_oh; oh++) {
                        int ih = oh * p->stride_h + kh * p->dilation_h + p->x_o3;
                        if (ih < 0 || ih >= p->x_n3)
                            continue;
                        for (int ow = 0; ow < p->n_ow; ow++) {
                            int iw = ow * p->stride_w + kw * p->dilation_w + p->x_o4;
                            if (iw >= 0 && iw < p->x_n4)
                                sum = TG_FMA(dy[n * p->dy_s0 + g * p->dy_s1 + o * p->dy_s2 + oh * p->dy_s3 + ow],
                                             x[n * p->x_s0 + g * p->x_s1 + i * p->x_s2 + ih * p->x_s3 + iw], sum);
                        }
                    }
                *out = sum;
            }
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
