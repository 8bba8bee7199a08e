/* SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss over x [n, c, s] and labels [n, s]. Rows (n, s) in parallel,
 * then one ordered sum. A label outside the classes makes its row, and so the loss, NaN; it is never used as an index. */
#include "tg_loss.h"
#include "tg_softmax.h"

typedef struct {
    int32_t n_n, n_c, n_s;
    int32_t x_by_n, x_by_c, label_by_n, prob_by_n, prob_by_c, loss_by_n, share_by_n;
    int32_t has_ignored, ignored;
} tg_nll_args;

/* The label's class weight: 0 for an ignored row, NaN for a label that is no class. */
TG_INLINE float tg_label_weight(int64_t label, int classes, int has_ignored, int ignored, TG_MEM const float *weight)
{
    if (has_ignored && label == ignored)
        return 0.0f;
    if (label < 0 || label >= classes)
        return TG_NAN;
    return weight == TG_NULL ? 1.0f : weight[label];
}

/* Statements run for each row of this core's share. */
#define TG_LABEL_ROWS(STATEMENT)                                                                                       \
    int start, stop;                                                                                                   \
    tg_share(p->n_n * p->n_s, core_id, core_count, &start, &stop);                                                     \
    for (int row = start; row < stop; row++) {                                                                         \
        int n = row / p->n_s, s = row - n * p->n_s;                                                                    \
        STATEMENT                                                                                                      \
    }

/* With `prob` the logits become log probabilities there; without it x is log probabilities already. */
TG_INLINE void tg_nll_row(TG_MEM const float *x, int64_t label, TG_MEM const float *weight, TG_MEM float *prob,
                          TG_MEM float *loss, TG_MEM float *share, TG_ARG const tg_nll_args *p)
{
    float w = tg_label_weight(label, p->n_c, p->has_ignored, p->ignored, weight);
    if (prob != TG_NULL)
        tg_log_softmax_row(x, p->x_by_c, prob, p->prob_by_c, p->n_c);
    int is_class = label >= 0 && label < p->n_c;
    float log_prob = !is_class ? 0.0f : prob != TG_NULL ? prob[label * p->prob_by_c] : x[label * p->x_by_c];
    *loss = w == 0.0f ? 0.0f : -(w * log_prob);
    if (share != TG_NULL)
        *share = w;
}

#define TG_NLL_ROW                                                                                                     \
    tg_nll_row(x + n * p->x_by_n + s, label[n * p->label_by_n + s], weight,                                            \
               prob == TG_NULL ? prob : prob + n * p->prob_by_n + s, loss + n * p->loss_by_n + s,                      \
               share == TG_NULL ? share : share + n * p->share_by_n + s, p);

TG_KERNEL void tg_nll_i32(TG_MEM const float *x, TG_MEM const int32_t *label, TG_MEM const float *weight,
                          TG_MEM float *prob, TG_MEM float *loss, TG_MEM float *share, TG_ARG const tg_nll_args *p,
                          int core_id, int core_count)
{
    TG_LABEL_ROWS(TG_NLL_ROW)
}

TG_KERNEL void tg_nll_i64(TG_MEM const float *x, TG_MEM const int64_t *label, TG_MEM const float *weight,
                          TG_MEM float *prob, TG_MEM float *loss, TG_MEM float *share, TG_ARG const tg_nll_args *p,
                          int core_id, int core_count)
{
    TG_LABEL_ROWS(TG_NLL_ROW)
}

TG_KERNEL void tg_nll_total(TG_MEM const float *part, TG_MEM const float *weight, TG_MEM float *loss,
                            TG_MEM float *total, TG_ARG const tg_loss_total_args *p, int core_id, int core_count)
{
    (void)core_count;
    tg_loss_sum(part, weight, loss, total, p, core_id);
}

typedef struct {
    int32_t n_i, classes;
    int32_t first, last;
    int32_t has_ignored, ignored;
} tg_label_weights_args;

/* The sum of all rows' weights, in order. */
#define TG_LABEL_WEIGHTS                                                                                               \
    (void)core_count;                                                                                                  \
    if (core_id != 0)                                                                                                  \
        return;                                                                                                        \
    float sum = p->first ? 0.0f : *total;                                                                              \
    for (int i = 0; i < p->n_i; i++)                                                                                   \
        sum = sum + tg_label_weight(label[i], p->classes, p->has_ignored, p->ignored, weight);                            \
    *total = sum;

TG_KERNEL void tg_label_weights_i32(TG_MEM const int32_t *label, TG_MEM const float *weight, TG_MEM float *total,
                                    TG_ARG const tg_label_weights_args *p, int core_id, int core_count)
{
    TG_LABEL_WEIGHTS
}

TG_KERNEL void tg_label_weights_i64(TG_MEM const int64_t *label, TG_MEM const float *weight, TG_MEM float *total,
                                    TG_ARG const tg_label_weights_args *p, int core_id, int core_count)
{
    TG_LABEL_WEIGHTS
}

typedef struct {
    int32_t n_n, n_c, n_s;
    int32_t dy_by_n, dy_by_s, prob_by_n, prob_by_c, label_by_n, dx_by_n, dx_by_c;
    int32_t has_ignored, ignored;
    float count;
} tg_nll_grad_args;

/* dx = factor * (exp(prob) - [c is the label]), factor = weight * (dy / divisor); without `prob` the exponential is
 * absent (the gradient of log probabilities). */
TG_INLINE void tg_nll_grad_row(float dy, TG_MEM const float *prob, int64_t label, TG_MEM const float *weight,
                               TG_MEM const float *total, TG_MEM float *dx, TG_ARG const tg_nll_grad_args *p)
{
    float w = tg_label_weight(label, p->n_c, p->has_ignored, p->ignored, weight);
    float factor = w == 0.0f ? 0.0f : w * (dy / (total == TG_NULL ? p->count : *total));
    for (int c = 0; c < p->n_c; c++) {
        float probability = prob == TG_NULL ? 0.0f : tg_exp(prob[c * p->prob_by_c]);
        dx[c * p->dx_by_c] = factor * (c == label ? probability - 1.0f : probability);
    }
}

#define TG_NLL_GRAD_ROW                                                                                                \
    tg_nll_grad_row(dy[n * p->dy_by_n + s * p->dy_by_s], prob == TG_NULL ? prob : prob + n * p->prob_by_n + s,         \
                    label[n * p->label_by_n + s], weight, total, dx + n * p->dx_by_n + s, p);

TG_KERNEL void tg_nll_grad_i32(TG_MEM const float *dy, TG_MEM const float *prob, TG_MEM const int32_t *label,
                               TG_MEM const float *weight, TG_MEM const float *total, TG_MEM float *dx,
                               TG_ARG const tg_nll_grad_args *p, int core_id, int core_count)
{
    TG_LABEL_ROWS(TG_NLL_GRAD_ROW)
}

TG_KERNEL void tg_nll_grad_i64(TG_MEM const float *dy, TG_MEM const float *prob, TG_MEM const int64_t *label,
                               TG_MEM const float *weight, TG_MEM const float *total, TG_MEM float *dx,
                               TG_ARG const tg_nll_grad_args *p, int core_id, int core_count)
{
    TG_LABEL_ROWS(TG_NLL_GRAD_ROW)
}

/* Label smoothing: of a row's weight the label keeps 1 - smoothing, and every class has smoothing / classes of its own.
 * A row's loss is -(kept * w[label] * log_prob[label] + spread * sum over c of w[c] * log_prob[c]), the sum in order. */
typedef struct {
    int32_t n_n, n_c, n_s;
    int32_t x_by_n, x_by_c, label_by_n, prob_by_n, prob_by_c, loss_by_n, share_by_n;
    int32_t has_ignored, ignored;
    float kept, spread;
} tg_smooth_nll_args;

TG_INLINE void tg_smooth_nll_row(TG_MEM const float *x, int64_t label, TG_MEM const float *weight, TG_MEM float *prob,
                                 TG_MEM float *loss, TG_MEM float *share, TG_ARG const tg_smooth_nll_args *p)
{
    float w = tg_label_weight(label, p->n_c, p->has_ignored, p->ignored, weight);
    tg_log_softmax_row(x, p->x_by_c, prob, p->prob_by_c, p->n_c);
    float sum = 0.0f;
    for (int c = 0; c < p->n_c; c++)
        sum = TG_FMA(weight == TG_NULL ? 1.0f : weight[c], prob[c * p->prob_by_c], sum);
    int is_class = label >= 0 && label < p->n_c;
    float chosen = is_class ? (p->kept * w) * prob[label * p->prob_by_c] : w;
    *loss = p->has_ignored && label == p->ignored ? 0.0f : -TG_FMA(p->spread, sum, chosen);
    if (share != TG_NULL)
        *share = w;
}

#define TG_SMOOTH_NLL_ROW                                                                                              \
    tg_smooth_nll_row(x + n * p->x_by_n + s, label[n * p->label_by_n + s], weight, prob + n * p->prob_by_n + s,        \
                      loss + n * p->loss_by_n + s, share == TG_NULL ? share : share + n * p->share_by_n + s, p);

TG_KERNEL void tg_smooth_nll_i32(TG_MEM const float *x, TG_MEM const int32_t *label, TG_MEM const float *weight,
                                 TG_MEM float *prob, TG_MEM float *loss, TG_MEM float *share,
                                 TG_ARG const tg_smooth_nll_args *p, int core_id, int core_count)
{
    TG_LABEL_ROWS(TG_SMOOTH_NLL_ROW)
}

TG_KERNEL void tg_smooth_nll_i64(TG_MEM const float *x, TG_MEM const int64_t *label, TG_MEM const float *weight,
                                 TG_MEM float *prob, TG_MEM float *loss, TG_MEM float *share,
                                 TG_ARG const tg_smooth_nll_args *p, int core_id, int core_count)
{
    TG_LABEL_ROWS(TG_SMOOTH_NLL_ROW)
}

typedef struct {
    int32_t n_n, n_c, n_s;
    int32_t dy_by_n, dy_by_s, prob_by_n, prob_by_c, label_by_n, dx_by_n, dx_by_c;
    int32_t has_ignored, ignored;
    float count, kept, spread;
} tg_smooth_nll_grad_args;

/* dx = dy / divisor * (fma(spread, sum of w, kept w[label]) * exp(prob) - spread w[c] - [c is the label] kept w[label]) */
TG_INLINE void tg_smooth_nll_grad_row(float dy, TG_MEM const float *prob, int64_t label, TG_MEM const float *weight,
                                      TG_MEM const float *total, TG_MEM float *dx,
                                      TG_ARG const tg_smooth_nll_grad_args *p)
{
    float kept = p->kept * tg_label_weight(label, p->n_c, p->has_ignored, p->ignored, weight);
    float sum = 0.0f;
    for (int c = 0; c < p->n_c; c++)
        sum = sum + (weight == TG_NULL ? 1.0f : weight[c]);
    float both = TG_FMA(p->spread, sum, kept);
    int is_ignored = p->has_ignored && label == p->ignored;
    float factor = is_ignored ? 0.0f : dy / (total == TG_NULL ? p->count : *total);
    for (int c = 0; c < p->n_c; c++) {
        float wanted = TG_FMA(p->spread, weight == TG_NULL ? 1.0f : weight[c], c == label ? kept : 0.0f);
        dx[c * p->dx_by_c] = is_ignored ? 0.0f : factor * TG_FMA(both, tg_exp(prob[c * p->prob_by_c]), -wanted);
    }
}

#define TG_SMOOTH_NLL_GRAD_ROW                                                                                         \
    tg_smooth_nll_grad_row(dy[n * p->dy_by_n + s * p->dy_by_s], prob + n * p->prob_by_n + s,                           \
                           label[n * p->label_by_n + s], weight, total, dx + n * p->dx_by_n + s, p);

TG_KERNEL void tg_smooth_nll_grad_i32(TG_MEM const float *dy, TG_MEM const float *prob, TG_MEM const int32_t *label,
                                      TG_MEM const float *weight, TG_MEM const float *total, TG_MEM float *dx,
                                      TG_ARG const tg_smooth_nll_grad_args *p, int core_id, int core_count)
{
    TG_LABEL_ROWS(TG_SMOOTH_NLL_GRAD_ROW)
}

TG_KERNEL void tg_smooth_nll_grad_i64(TG_MEM const float *dy, TG_MEM const float *prob, TG_MEM const int64_t *label,
                                      TG_MEM const float *weight, TG_MEM const float *total, TG_MEM float *dx,
                                      TG_ARG const tg_smooth_nll_grad_args *p, int core_id, int core_count)
{
    TG_LABEL_ROWS(TG_SMOOTH_NLL_GRAD_ROW)
}
