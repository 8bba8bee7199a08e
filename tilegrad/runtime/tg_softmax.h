/* One row of a softmax: n elements, `x_by` and `y_by` apart. y may be x. The sum of exponentials starts at +0 and adds
 * in index order; the row's largest element is subtracted first, so nothing overflows. */
#ifndef TG_SOFTMAX_H
#define TG_SOFTMAX_H
#include "tg_math.h"

TG_INLINE float tg_row_max(TG_MEM const float *x, int x_by, int n)
{
    float largest = -TG_INFINITY;
    for (int i = 0; i < n; i++)
        largest = x[i * x_by] > largest ? x[i * x_by] : largest;
    return largest;
}

/* y = exp(x - max) times the rounded reciprocal of their sum. */
TG_INLINE void tg_softmax_row(TG_MEM const float *x, int x_by, TG_MEM float *y, int y_by, int n)
{
    float largest = tg_row_max(x, x_by, n), sum = 0.0f;
    for (int i = 0; i < n; i++)
        y[i * y_by] = tg_exp(x[i * x_by] - largest);
    for (int i = 0; i < n; i++)
        sum = sum + y[i * y_by];
    float scale = 1.0f / sum;
    for (int i = 0; i < n; i++)
        y[i * y_by] = y[i * y_by] * scale;
}

/* y = (x - max) - log(sum of exp(x - max)). */
TG_INLINE void tg_log_softmax_row(TG_MEM const float *x, int x_by, TG_MEM float *y, int y_by, int n)
{
    float largest = tg_row_max(x, x_by, n), sum = 0.0f;
    for (int i = 0; i < n; i++)
        sum = sum + tg_exp(x[i * x_by] - largest);
    float shift = tg_log(sum);
    for (int i = 0; i < n; i++)
        y[i * y_by] = (x[i * x_by] - largest) - shift;
}

#endif
