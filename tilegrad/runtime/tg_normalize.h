/* The one idea behind all normalisations: x is [o, g, d, s]; statistics belong to g (batch) or to (o, g) (group,
 * instance, layer), the affine to (g, d).
 *
 *   y  = fma(x - mean, scale * inverse_deviation, bias)
 *   dx = fma(scale * inverse_deviation, dy, -fma(x - mean, tilt', shift'))      (see tg_normalize_grad)
 *
 * Variance is the mean of squared distances from the rounded mean (two passes). Means are a sum, s ascending, divided
 * by the count. `spread` is the inverse deviation throughout. Sums run over four rows at a time: independent accumulators that need not wait for each other. */
#ifndef TG_NORMALIZE_H
#define TG_NORMALIZE_H
#include "tg_block.h"
#include "tg_math.h"

TG_INLINE float tg_inverse_deviation(float variance, float epsilon) { return 1.0f / TG_SQRT(variance + epsilon); }

TG_INLINE float tg_add_square(float sum, float distance) { return TG_FMA(distance, distance, sum); }

/* out = fma(in - center, factor, added): eight elements a turn, loads first, since out may be in. */
TG_INLINE void tg_row_affine(TG_MEM const float *in, TG_MEM float *out, int n, float center, float factor, float added)
{
#define TG_AFFINE_LOAD(i) const float x##i = in[i] - center;
#define TG_AFFINE_STORE(i) out[i] = TG_FMA(x##i, factor, added);
    for (; n >= 8; n -= 8, in += 8, out += 8) {
        TG_ROW8(TG_AFFINE_LOAD)
        TG_ROW8(TG_AFFINE_STORE)
    }
    for (; n > 0; n--)
        *out++ = TG_FMA(*in++ - center, factor, added);
}

/* Where row `at` of [o, g, d] is, and the next. */
typedef struct {
    int o, g, d;
} tg_row_at;

TG_INLINE tg_row_at tg_row_locate(int at, int n_g, int n_d)
{
    int og = n_d == 1 ? at : at / n_d, o = og < n_g ? 0 : og / n_g;
    tg_row_at found = {o, og - o * n_g, at - og * n_d};
    return found;
}

TG_INLINE void tg_row_advance(tg_row_at *at, int n_g, int n_d)
{
    if (++at->d < n_d)
        return;
    at->d = 0;
    if (++at->g < n_g)
        return;
    at->g = 0;
    at->o++;
}

/* total[r] continues with the sum of row r of x, for `rows` rows of n elements. */
TG_INLINE void tg_rows_sum(TG_MEM const float *x, int x_by, int rows, int n, TG_MEM float *total, int total_by)
{
    int r = 0;
    for (; r + 4 <= rows; r += 4, x += 4 * x_by, total += 4 * total_by) {
        TG_MEM const float *x1 = x + x_by, *x2 = x1 + x_by, *x3 = x2 + x_by;
        float sum0 = total[0], sum1 = total[total_by], sum2 = total[2 * total_by], sum3 = total[3 * total_by];
        TG_UNROLLED for (int i = 0; i < n; i++) {
            sum0 = sum0 + x[i];
            sum1 = sum1 + x1[i];
            sum2 = sum2 + x2[i];
            sum3 = sum3 + x3[i];
        }
        total[0] = sum0, total[total_by] = sum1, total[2 * total_by] = sum2, total[3 * total_by] = sum3;
    }
    for (; r < rows; r++, x += x_by, total += total_by) {
        float sum = total[0];
        TG_UNROLLED for (int i = 0; i < n; i++)
            sum = sum + x[i];
        total[0] = sum;
    }
}

/* total[r] continues with the squared distances of row r from mean[r]. */
TG_INLINE void tg_rows_squares(TG_MEM const float *x, int x_by, TG_MEM const float *mean, int mean_by, int rows, int n,
                               TG_MEM float *total, int total_by)
{
    int r = 0;
    for (; r + 4 <= rows; r += 4, x += 4 * x_by, mean += 4 * mean_by, total += 4 * total_by) {
        TG_MEM const float *x1 = x + x_by, *x2 = x1 + x_by, *x3 = x2 + x_by;
        float mean0 = mean[0], mean1 = mean[mean_by], mean2 = mean[2 * mean_by], mean3 = mean[3 * mean_by];
        float sum0 = total[0], sum1 = total[total_by], sum2 = total[2 * total_by], sum3 = total[3 * total_by];
        TG_UNROLLED for (int i = 0; i < n; i++) {
            sum0 = tg_add_square(sum0, x[i] - mean0);
            sum1 = tg_add_square(sum1, x1[i] - mean1);
            sum2 = tg_add_square(sum2, x2[i] - mean2);
            sum3 = tg_add_square(sum3, x3[i] - mean3);
        }
        total[0] = sum0, total[total_by] = sum1, total[2 * total_by] = sum2, total[3 * total_by] = sum3;
    }
    for (; r < rows; r++, x += x_by, mean += mean_by, total += total_by) {
        float sum = total[0], center = mean[0];
        TG_UNROLLED for (int i = 0; i < n; i++)
            sum = tg_add_square(sum, x[i] - center);
        total[0] = sum;
    }
}

/* sum[r] continues with dy, dot[r] with dy * (x - mean[r]), over row r. */
TG_INLINE void tg_rows_dots(TG_MEM const float *dy, int dy_by, TG_MEM const float *x, int x_by,
                            TG_MEM const float *mean, int mean_by, int rows, int n, TG_MEM float *sum, int sum_by,
                            TG_MEM float *dot, int dot_by)
{
#define TG_DOTS_STEP(I, J)                                                                                             \
    sum##I = sum##I + dy##I[J];                                                                                        \
    dot##I = TG_FMA(dy##I[J], x##I[J] - mean##I, dot##I);
#define TG_DOTS_ROW(I)                                                                                                 \
    TG_MEM const float *dy##I = dy + (r + I) * dy_by, *x##I = x + (r + I) * x_by;                                      \
    float mean##I = mean[(r + I) * mean_by], sum##I = sum[(r + I) * sum_by], dot##I = dot[(r + I) * dot_by];
#define TG_DOTS_STORE(I) sum[(r + I) * sum_by] = sum##I, dot[(r + I) * dot_by] = dot##I;
    int r = 0;
    for (; r + 2 <= rows; r += 2) {
        TG_DOTS_ROW(0)
        TG_DOTS_ROW(1)
        int left = n;
        for (; left >= 4; left -= 4, dy0 += 4, dy1 += 4, x0 += 4, x1 += 4) {
            TG_DOTS_STEP(0, 0) TG_DOTS_STEP(1, 0) TG_DOTS_STEP(0, 1) TG_DOTS_STEP(1, 1)
            TG_DOTS_STEP(0, 2) TG_DOTS_STEP(1, 2) TG_DOTS_STEP(0, 3) TG_DOTS_STEP(1, 3)
        }
        for (; left > 0; left--, dy0++, dy1++, x0++, x1++) {
            TG_DOTS_STEP(0, 0) TG_DOTS_STEP(1, 0)
        }
        TG_DOTS_STORE(0)
        TG_DOTS_STORE(1)
    }
    for (; r < rows; r++) {
        TG_DOTS_ROW(0)
        int left = n;
        for (; left >= 4; left -= 4, dy0 += 4, x0 += 4) {
            TG_DOTS_STEP(0, 0) TG_DOTS_STEP(0, 1) TG_DOTS_STEP(0, 2) TG_DOTS_STEP(0, 3)
        }
        for (; left > 0; left--, dy0++, x0++) {
            TG_DOTS_STEP(0, 0)
        }
        TG_DOTS_STORE(0)
    }
}

typedef struct {
    int32_t n_o, n_g, n_k;
    int32_t x_by_o, x_by_g, mean_by_o, mean_by_g, total_by_o, total_by_g;
    int32_t first, last;
    int32_t finish; /* on the last tile: 1 divides by count, 2 also turns a variance into an inverse deviation */
    float count, epsilon;
} tg_row_statistics_args;

/* total [o, g] of x [o, g, k]: the sum, or with a mean the sum of squared distances from it. */
TG_INLINE void tg_row_statistics(TG_MEM const float *x, TG_MEM const float *mean, TG_MEM float *total,
                                 TG_ARG const tg_row_statistics_args *p, int core_id, int core_count)
{
    int at, stop;
    tg_share(p->n_o * p->n_g, core_id, core_count, &at, &stop);
    while (at < stop) {
        int o = at / p->n_g, g = at - o * p->n_g, rows = tg_min(stop - at, p->n_g - g);
        TG_MEM const float *in = x + o * p->x_by_o + g * p->x_by_g;
        TG_MEM float *out = total + o * p->total_by_o + g * p->total_by_g;
        for (int r = 0; p->first && r < rows; r++)
            out[r * p->total_by_g] = 0.0f;
        if (mean == TG_NULL)
            tg_rows_sum(in, p->x_by_g, rows, p->n_k, out, p->total_by_g);
        else
            tg_rows_squares(in, p->x_by_g, mean + o * p->mean_by_o + g * p->mean_by_g, p->mean_by_g, rows, p->n_k, out,
                            p->total_by_g);
        for (int r = 0; p->last && p->finish && r < rows; r++) {
            float value = out[r * p->total_by_g] / p->count;
            out[r * p->total_by_g] = p->finish == 1 ? value : tg_inverse_deviation(value, p->epsilon);
        }
        at += rows;
    }
}

typedef struct {
    int32_t n_o, n_g, n_d, n_s;
    int32_t x_by_o, x_by_g, x_by_d, y_by_o, y_by_g, y_by_d;
    int32_t mean_by_o, mean_by_g, spread_by_o, spread_by_g, scale_by_g, scale_by_d, bias_by_g, bias_by_d;
} tg_normalize_args;

TG_INLINE void tg_normalize(TG_MEM const float *x, TG_MEM const float *scale, TG_MEM const float *bias,
                            TG_MEM const float *mean, TG_MEM const float *spread, TG_MEM float *y,
                            TG_ARG const tg_normalize_args *p, int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_o * p->n_g * p->n_d, core_id, core_count, &start, &stop);
    if (start >= stop)
        return;
    /* One element a row, as behind a Gemm: the vector runs along the channels. */
    int is_flat = p->n_s == 1 && p->n_d == 1 && p->x_by_g == 1 && p->y_by_g == 1;
    tg_row_at at = tg_row_locate(start, p->n_g, p->n_d);
    for (int row = start, rows; row < stop; row += rows, tg_row_advance(&at, p->n_g, p->n_d)) {
        TG_MEM const float *in = x + at.o * p->x_by_o + at.g * p->x_by_g + at.d * p->x_by_d;
        TG_MEM float *out = y + at.o * p->y_by_o + at.g * p->y_by_g + at.d * p->y_by_d;
        TG_MEM const float *center = mean + at.o * p->mean_by_o + at.g * p->mean_by_g;
        TG_MEM const float *inverse = spread + at.o * p->spread_by_o + at.g * p->spread_by_g;
        TG_MEM const float *gain = scale + at.g * p->scale_by_g + at.d * p->scale_by_d;
        TG_MEM const float *offset = bias + at.g * p->bias_by_g + at.d * p->bias_by_d;
        rows = is_flat ? tg_min(stop - row, p->n_g - at.g) : 1;
        if (is_flat) {
            for (int i = 0; i < rows; i++)
                out[i] = TG_FMA(in[i] - center[i], gain[i] * inverse[i], offset[i]);
            at.g += rows - 1;
        } else {
            tg_row_affine(in, out, p->n_s, *center, *gain * *inverse, *offset);
        }
    }
}

typedef struct {
    int32_t n_o, n_g, n_d, n_s;
    int32_t dy_by_o, dy_by_g, dy_by_d, x_by_o, x_by_g, x_by_d, mean_by_o, mean_by_g, spread_by_o, spread_by_g;
    int32_t sum_by_o, sum_by_g, sum_by_d, dot_by_o, dot_by_g, dot_by_d;
    int32_t first, last;
} tg_normalize_dots_args;

/* sum [o, g, d] of dy and dot [o, g, d] of dy * (x - mean), times the inverse deviation, over s. */
TG_INLINE void tg_normalize_dots(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *mean,
                                 TG_MEM const float *spread, TG_MEM float *sum, TG_MEM float *dot,
                                 TG_ARG const tg_normalize_dots_args *p, int core_id, int core_count)
{
    int at, stop;
    tg_share(p->n_o * p->n_g * p->n_d, core_id, core_count, &at, &stop);
    int is_along_d = p->n_d > 1; /* rows run along d, which share a mean, or along g */
    int dy_by = is_along_d ? p->dy_by_d : p->dy_by_g, x_by = is_along_d ? p->x_by_d : p->x_by_g;
    int mean_by = is_along_d ? 0 : p->mean_by_g, inverse_by = is_along_d ? 0 : p->spread_by_g;
    int sum_by = is_along_d ? p->sum_by_d : p->sum_by_g, dot_by = is_along_d ? p->dot_by_d : p->dot_by_g;
    while (at < stop) {
        tg_row_at row = tg_row_locate(at, p->n_g, p->n_d);
        int o = row.o, g = row.g, d = row.d, rows = tg_min(stop - at, is_along_d ? p->n_d - d : p->n_g - g);
        TG_MEM const float *in = dy + o * p->dy_by_o + g * p->dy_by_g + d * p->dy_by_d;
        TG_MEM float *sums = sum + o * p->sum_by_o + g * p->sum_by_g + d * p->sum_by_d;
        for (int r = 0; p->first && r < rows; r++)
            sums[r * sum_by] = 0.0f;
        TG_MEM float *dots = dot + o * p->dot_by_o + g * p->dot_by_g + d * p->dot_by_d;
        TG_MEM const float *inverses = spread + o * p->spread_by_o + g * p->spread_by_g;
        for (int r = 0; p->first && r < rows; r++)
            dots[r * dot_by] = 0.0f;
        tg_rows_dots(in, dy_by, x + o * p->x_by_o + g * p->x_by_g + d * p->x_by_d, x_by,
                     mean + o * p->mean_by_o + g * p->mean_by_g, mean_by, rows, p->n_s, sums, sum_by, dots, dot_by);
        for (int r = 0; p->last && r < rows; r++)
            dots[r * dot_by] = dots[r * dot_by] * inverses[r * inverse_by];
        at += rows;
    }
}

typedef struct {
    int32_t n_o, n_c;
    int32_t sum_by_o, dot_by_o;
    int32_t first, last;
} tg_normalize_parameters_args;

/* dbias [c] and dscale [c]: sum [o, c] and dot [o, c] over o. Either may be absent. */
TG_INLINE void tg_normalize_parameters(TG_MEM const float *sum, TG_MEM const float *dot, TG_MEM float *dscale,
                                       TG_MEM float *dbias, TG_ARG const tg_normalize_parameters_args *p, int core_id,
                                       int core_count)
{
    int start, stop;
    tg_share(p->n_c, core_id, core_count, &start, &stop);
    for (int c = start; c < stop; c++) {
        float scale = dscale == TG_NULL || p->first ? 0.0f : dscale[c];
        float bias = dbias == TG_NULL || p->first ? 0.0f : dbias[c];
        for (int o = 0; dscale != TG_NULL && o < p->n_o; o++)
            scale = scale + dot[o * p->dot_by_o + c];
        for (int o = 0; dbias != TG_NULL && o < p->n_o; o++)
            bias = bias + sum[o * p->sum_by_o + c];
        if (dscale != TG_NULL)
            dscale[c] = scale;
        if (dbias != TG_NULL)
            dbias[c] = bias;
    }
}

typedef struct {
    int32_t n_o, n_g, n_d;
    int32_t sum_by_o, sum_by_g, dot_by_o, dot_by_g, scale_by_g, shift_by_o, tilt_by_o;
    float count;
} tg_normalize_moments_args;

/* shift [o, g], the mean of scale * dy, and tilt [o, g], that of scale * dy * normalised x, from the sums over s. */
TG_INLINE void tg_normalize_moments(TG_MEM const float *sum, TG_MEM const float *dot, TG_MEM const float *scale,
                                    TG_MEM float *shift, TG_MEM float *tilt, TG_ARG const tg_normalize_moments_args *p,
                                    int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_o * p->n_g, core_id, core_count, &start, &stop);
    for (int at = start; at < stop; at++) {
        int o = at / p->n_g, g = at - o * p->n_g;
        float sums = 0.0f, dots = 0.0f;
        for (int d = 0; d < p->n_d; d++) {
            sums = TG_FMA(scale[g * p->scale_by_g + d], sum[o * p->sum_by_o + g * p->sum_by_g + d], sums);
            dots = TG_FMA(scale[g * p->scale_by_g + d], dot[o * p->dot_by_o + g * p->dot_by_g + d], dots);
        }
        shift[o * p->shift_by_o + g] = sums / p->count;
        tilt[o * p->tilt_by_o + g] = dots / p->count;
    }
}

typedef struct {
    int32_t n_o, n_g, n_d, n_s;
    int32_t dy_by_o, dy_by_g, dy_by_d, x_by_o, x_by_g, x_by_d, mean_by_o, mean_by_g, spread_by_o, spread_by_g;
    int32_t scale_by_g, scale_by_d, shift_by_o, shift_by_g, tilt_by_o, tilt_by_g, dx_by_o, dx_by_g, dx_by_d;
} tg_normalize_grad_args;

/* dx = inverse * (scale dy - shift - normalised x * tilt), where shift and tilt are the means that the statistics pass
 * back. */
TG_INLINE void tg_normalize_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *scale,
                                 TG_MEM const float *mean, TG_MEM const float *spread, TG_MEM const float *shift,
                                 TG_MEM const float *tilt, TG_MEM float *dx, TG_ARG const tg_normalize_grad_args *p,
                                 int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_o * p->n_g * p->n_d, core_id, core_count, &start, &stop);
    if (start >= stop)
        return;
    tg_row_at at = tg_row_locate(start, p->n_g, p->n_d);
    for (int row = start; row < stop; row++, tg_row_advance(&at, p->n_g, p->n_d)) {
        TG_MEM const float *in = dy + at.o * p->dy_by_o + at.g * p->dy_by_g + at.d * p->dy_by_d;
        TG_MEM const float *from = x + at.o * p->x_by_o + at.g * p->x_by_g + at.d * p->x_by_d;
        TG_MEM float *out = dx + at.o * p->dx_by_o + at.g * p->dx_by_g + at.d * p->dx_by_d;
        float inverse = spread[at.o * p->spread_by_o + at.g * p->spread_by_g];
        float factor = scale[at.g * p->scale_by_g + at.d * p->scale_by_d] * inverse;
        float center = mean[at.o * p->mean_by_o + at.g * p->mean_by_g];
        float level = inverse * shift[at.o * p->shift_by_o + at.g * p->shift_by_g];
        float slope = (inverse * inverse) * tilt[at.o * p->tilt_by_o + at.g * p->tilt_by_g];
        TG_UNROLLED for (int i = 0; i < p->n_s; i++)
            out[i] = TG_FMA(factor, in[i], -TG_FMA(from[i] - center, slope, level));
    }
}

#endif
