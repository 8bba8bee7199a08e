/* SoftmaxCrossEntropyLossWithGrad over x [n, c, s] and labels [n, s]: a row's loss and dx = dy / count * (exp(prob) - [c is
 * the label]), with prob the row's log probabilities; both have the bits of nll and nll_grad. A label outside the classes
 * makes both NaN; it is never used as an index. One loop computes both rounds of exponentials, so that they are once in
 * the machine code. */
#include "tg_loss.h"
#include "tg_softmax.h"

typedef struct {
    int32_t n_n, n_c, n_s;
    int32_t x_by_n, x_by_c, label_by_n, loss_by_n, dx_by_n, dx_by_c;
    int32_t is_whole; /* there is one row, and what it has is the loss */
    float count;
} tg_nll_with_grad_args;

/* All of a row's sum, and the gradient of classes `first` up to `stop`. */
TG_INLINE void tg_nll_with_grad_row(TG_MEM const float *x, int64_t label, float dy, TG_MEM float *loss,
                                    TG_MEM float *dx, TG_ARG const tg_nll_with_grad_args *p, int first, int stop)
{
    const int x_by = p->x_by_c, wanted = label >= 0 && label < p->n_c ? (int)label : -1;
    const float w = wanted < 0 ? TG_NAN : 1.0f, largest = tg_row_max(x, x_by, p->n_c);
    float sum = 0.0f, shift = 0.0f, factor = 0.0f;
    TG_MEM float *out = TG_NULL;
    for (int c = 0, end = p->n_c;; c = first, end = stop, out = dx) {
        for (; c < end; c++) {
            /* x - max as it is where nothing is subtracted yet. */
            const float e = tg_exp((x[c * x_by] - largest) - shift);
            if (out == TG_NULL)
                sum = sum + e;
            else
                out[c * p->dx_by_c] = factor * (c == wanted ? e - 1.0f : e);
        }
        if (out != TG_NULL)
            return;
        shift = tg_log(sum);
        factor = w * (dy / p->count);
        if (first == 0) {
            const float part = -(w * (wanted < 0 ? 0.0f : (x[wanted * x_by] - largest) - shift));
            *loss = p->is_whole ? (0.0f + part) / p->count : part;
        }
    }
}

#define TG_NLL_WITH_GRAD                                                                                               \
    int start, stop;                                                                                                   \
    if (p->is_whole) { /* the cores share its classes */                                                               \
        tg_share(p->n_c, core_id, core_count, &start, &stop);                                                          \
        tg_nll_with_grad_row(x, *label, *dy, loss, dx, p, start, stop);                                                \
        return;                                                                                                        \
    }                                                                                                                  \
    tg_share(p->n_n * p->n_s, core_id, core_count, &start, &stop);                                                     \
    for (int row = start; row < stop; row++) {                                                                         \
        int n = row / p->n_s, s = row - n * p->n_s;                                                                    \
        tg_nll_with_grad_row(x + n * p->x_by_n + s, label[n * p->label_by_n + s], *dy, loss + n * p->loss_by_n + s,    \
                             dx + n * p->dx_by_n + s, p, 0, p->n_c);                                                   \
    }

TG_KERNEL void tg_nll_with_grad_i32(TG_MEM const float *x, TG_MEM const int32_t *label, TG_MEM const float *dy,
                                    TG_MEM float *loss, TG_MEM float *dx, TG_ARG const tg_nll_with_grad_args *p,
                                    int core_id, int core_count)
{
    TG_NLL_WITH_GRAD
}

TG_KERNEL void tg_nll_with_grad_i64(TG_MEM const float *x, TG_MEM const int64_t *label, TG_MEM const float *dy,
                                    TG_MEM float *loss, TG_MEM float *dx, TG_ARG const tg_nll_with_grad_args *p,
                                    int core_id, int core_count)
{
    TG_NLL_WITH_GRAD
}

TG_KERNEL void tg_nll_with_grad_total(TG_MEM const float *part, TG_MEM float *loss, TG_ARG const tg_loss_total_args *p,
                                      int core_id, int core_count)
{
    (void)core_count;
    tg_loss_sum(part, TG_NULL, loss, TG_NULL, p, core_id);
}
