/* MSELoss, L1Loss, BCEWithLogitsLoss: the mean over all elements of a function of prediction and target. The sum's order
 * is fixed: blocks of 64 elements in flat order, each added from +0, then the blocks' sums in order. Blocks are
 * independent, so they run on any core and overlap in the pipeline. */
#include "tg_loss.h"
#include "tg_math.h"

typedef struct {
    int32_t n_b, n_j;
    int32_t x_by_b, x_n0, t_by_b;
} tg_mean_loss_args;

/* TERM(x, t, acc): the accumulator with one element's term added. x_n0 is how many elements the tile has. */
#define TG_MEAN_LOSS(TERM)                                                                                             \
    int start, stop;                                                                                                   \
    tg_share(p->n_b, core_id, core_count, &start, &stop);                                                              \
    for (int b = start; b < stop; b++) {                                                                               \
        TG_MEM const float *in = x + b * p->x_by_b, *wanted = t + b * p->t_by_b;                                       \
        int n = tg_min(p->n_j, p->x_n0 - b * p->x_by_b);                                                               \
        float sum = 0.0f;                                                                                              \
        for (int j = 0; j < n; j++)                                                                                    \
            sum = TERM(in[j], wanted[j], sum);                                                                         \
        part[b] = sum;                                                                                                 \
    }

TG_INLINE float tg_squared_error(float x, float t, float sum)
{
    float error = x - t;
    return TG_FMA(error, error, sum);
}

TG_INLINE float tg_absolute_error(float x, float t, float sum) { return sum + tg_abs(x - t); }

/* -t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)) = softplus(x) - x t */
TG_INLINE float tg_binary_cross_entropy(float x, float t, float sum) { return sum + TG_FMA(-x, t, tg_softplus(x)); }

TG_KERNEL void tg_mse_loss(TG_MEM const float *x, TG_MEM const float *t, TG_MEM float *part,
                           TG_ARG const tg_mean_loss_args *p, int core_id, int core_count)
{
    TG_MEAN_LOSS(tg_squared_error)
}

TG_KERNEL void tg_l1_loss(TG_MEM const float *x, TG_MEM const float *t, TG_MEM float *part,
                          TG_ARG const tg_mean_loss_args *p, int core_id, int core_count)
{
    TG_MEAN_LOSS(tg_absolute_error)
}

TG_KERNEL void tg_bce_with_logits_loss(TG_MEM const float *x, TG_MEM const float *t, TG_MEM float *part,
                                       TG_ARG const tg_mean_loss_args *p, int core_id, int core_count)
{
    TG_MEAN_LOSS(tg_binary_cross_entropy)
}

TG_KERNEL void tg_mean_loss_total(TG_MEM const float *part, TG_MEM float *loss, TG_ARG const tg_loss_total_args *p,
                                  int core_id, int core_count)
{
    (void)core_count;
    tg_loss_sum(part, TG_NULL, loss, TG_NULL, p, core_id);
}

typedef struct {
    int32_t n_i;
    float count;
} tg_mean_loss_grad_args;

/* `scale` is dy / count. */
#define TG_MEAN_LOSS_GRAD(EXPRESSION)                                                                                  \
    int start, stop;                                                                                                   \
    tg_share(p->n_i, core_id, core_count, &start, &stop);                                                              \
    float scale = *dy / p->count;                                                                                      \
    for (int i = start; i < stop; i++)                                                                                 \
        dx[i] = EXPRESSION;

TG_KERNEL void tg_mse_loss_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *t, TG_MEM float *dx,
                                TG_ARG const tg_mean_loss_grad_args *p, int core_id, int core_count)
{
    TG_MEAN_LOSS_GRAD((2.0f * scale) * (x[i] - t[i]))
}

TG_KERNEL void tg_l1_loss_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *t, TG_MEM float *dx,
                               TG_ARG const tg_mean_loss_grad_args *p, int core_id, int core_count)
{
    TG_MEAN_LOSS_GRAD(x[i] > t[i] ? scale : x[i] < t[i] ? -scale : 0.0f)
}

TG_KERNEL void tg_bce_with_logits_loss_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *t,
                                            TG_MEM float *dx, TG_ARG const tg_mean_loss_grad_args *p, int core_id,
                                            int core_count)
{
    TG_MEAN_LOSS_GRAD(scale * (tg_sigmoid(x[i]) - t[i]))
}

typedef struct {
    int32_t n_b, n_j;
    int32_t x_by_b, x_n0, t_by_b;
    float delta;
} tg_huber_loss_args;

/* Half the square up to delta, and a line of slope delta beyond. */
#define TG_HUBER_ERROR(X, T, SUM) tg_huber_error(X, T, p->delta, SUM)

TG_INLINE float tg_huber_error(float x, float t, float delta, float sum)
{
    float apart = tg_abs(x - t);
    return apart <= delta ? TG_FMA(0.5f * apart, apart, sum) : TG_FMA(delta, apart - 0.5f * delta, sum);
}

TG_KERNEL void tg_huber_loss(TG_MEM const float *x, TG_MEM const float *t, TG_MEM float *part,
                             TG_ARG const tg_huber_loss_args *p, int core_id, int core_count)
{
    TG_MEAN_LOSS(TG_HUBER_ERROR)
}

typedef struct {
    int32_t n_i;
    float count, delta;
} tg_huber_loss_grad_args;

TG_INLINE float tg_clamped(float value, float limit)
{
    return value > limit ? limit : value < -limit ? -limit : value;
}

TG_KERNEL void tg_huber_loss_grad(TG_MEM const float *dy, TG_MEM const float *x, TG_MEM const float *t,
                                  TG_MEM float *dx, TG_ARG const tg_huber_loss_grad_args *p, int core_id,
                                  int core_count)
{
    TG_MEAN_LOSS_GRAD(scale * tg_clamped(x[i] - t[i], p->delta))
}
