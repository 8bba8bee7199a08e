/* The arguments of a matrix product, and what happens to its sums once the last k is in. */
#ifndef TG_GEMM_ARGS_H
#define TG_GEMM_ARGS_H
#include "tg_relu.h"

enum { TG_LINEAR, TG_RELU, TG_RELU_GRAD };

/* Strides in elements. `c` (may be null) is added after the last k: y = alpha * sum + beta * c, or the Relu of that. With
 * TG_RELU_GRAD, c is the output of a Relu: y = alpha * sum where that is above zero, else 0. */
typedef struct {
    int32_t n_m, n_n, n_k;
    int32_t a_by_m, a_by_k, b_by_k, b_by_n, c_by_m, c_by_n, y_by_m, y_by_n;
    int32_t first, last;
    float alpha, beta;
    int32_t activation;
} tg_gemm_args;

TG_TEMPLATE void tg_gemm_finish(TG_MEM const float *c, TG_MEM float *y, tg_gemm_args g, int m_start, int m_stop,
                                int n_start, int n_stop)
{
    if (!g.last || (g.alpha == 1.0f && c == TG_NULL && g.activation == TG_LINEAR))
        return;
    const int is_sum = g.alpha == 1.0f && g.beta == 1.0f && c != TG_NULL;
    for (int m = m_start; m < m_stop; m++) {
        TG_MEM float *out = y + m * g.y_by_m + n_start * g.y_by_n;
        TG_MEM const float *other = c == TG_NULL ? c : c + m * g.c_by_m + n_start * g.c_by_n;
        int left = n_stop - n_start;
        if (is_sum && g.activation == TG_LINEAR)
            for (; left > 0; left--, out += g.y_by_n, other += g.c_by_n)
                *out = *out + *other;
        else if (is_sum && g.activation == TG_RELU)
            for (; left > 0; left--, out += g.y_by_n, other += g.c_by_n)
                tg_relu_write(out, *out + *other, 1);
        else
            for (; left > 0; left--, out += g.y_by_n) {
                float sum = g.alpha == 1.0f ? *out : g.alpha * *out;
                if (c != TG_NULL) {
                    if (g.activation == TG_RELU_GRAD)
                        sum = tg_relu_grad_of(sum, *other);
                    else
                        sum = g.beta == 1.0f ? sum + *other : TG_FMA(g.beta, *other, sum);
                    other += g.c_by_n;
                }
                tg_relu_write(out, sum, g.activation == TG_RELU);
            }
    }
}

#endif
