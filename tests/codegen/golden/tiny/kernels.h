#ifndef TG_KERNELS_H
#define TG_KERNELS_H

/* Signatures of the kernels this model calls; the kernels themselves are in kernels/. */
#include "kernels/tg_elementwise.h"
#include "kernels/tg_gemm_args.h"
#include "kernels/tg_loss.h"

/* copy.c */
TG_KERNEL void tg_copy_b1(TG_MEM const tg_b1 *x, TG_MEM tg_b1 *y, TG_ARG const tg_map_args *p, int core_id,
                          int core_count);

/* gemm.c */
TG_KERNEL void tg_gemm_nn(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                          TG_ARG const tg_gemm_args *p, int core_id, int core_count);
TG_KERNEL void tg_gemm_tn(TG_MEM const float *a, TG_MEM const float *b, TG_MEM const float *c, TG_MEM float *y,
                          TG_ARG const tg_gemm_args *p, int core_id, int core_count);

/* in_place_accumulator.c */
TG_KERNEL void tg_accumulate(TG_MEM const float *buffer, TG_MEM const float *gradient, TG_MEM const uint8_t *overwrite,
                             TG_MEM float *updated, TG_ARG const tg_map_args *p, int core_id, int core_count);

/* matmul.c */
typedef struct {
    int32_t n_g0, n_g1, n_g2, n_m, n_n, n_k;
    int32_t a_by_g0, a_by_g1, a_by_g2, b_by_g0, b_by_g1, b_by_g2, y_by_g0, y_by_g1, y_by_g2;
    int32_t a_by_m, a_by_k, b_by_k, b_by_n, y_by_m;
    int32_t is_sum, first, last;
    float alpha;
} tg_matmul_args;
TG_KERNEL void tg_matmul_nn(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y,
                            TG_ARG const tg_matmul_args *p, int core_id, int core_count);
TG_KERNEL void tg_matmul_nt(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y,
                            TG_ARG const tg_matmul_args *p, int core_id, int core_count);
TG_KERNEL void tg_matmul_tn(TG_MEM const float *a, TG_MEM const float *b, TG_MEM float *y,
                            TG_ARG const tg_matmul_args *p, int core_id, int core_count);

/* momentum.c */
typedef struct {
    int32_t n_i, nesterov;
    float momentum, weight_decay;
} tg_momentum_args;
TG_KERNEL void tg_momentum(TG_MEM const float *w, TG_MEM const float *g, TG_MEM const float *v, TG_MEM const float *lr,
                           TG_MEM float *w_out, TG_MEM float *v_out, TG_ARG const tg_momentum_args *p, int core_id,
                           int core_count);

/* reduce.c */
typedef struct {
    int32_t n_o, n_r, n_i;
    int32_t x_by_o, x_by_r, y_by_o;
    int32_t first, last;
    float count;
} tg_reduce_args;
TG_KERNEL void tg_reduce_sum(TG_MEM const float *x, TG_MEM float *y, TG_ARG const tg_reduce_args *p, int core_id,
                             int core_count);

/* relu.c */
TG_KERNEL void tg_relu_grad(TG_MEM const float *dy, TG_MEM const float *y, TG_MEM float *dx,
                            TG_ARG const tg_map_args *p, int core_id, int core_count);

/* softmax_cross_entropy_loss.c */
typedef struct {
    int32_t n_n, n_c, n_s;
    int32_t x_by_n, x_by_c, label_by_n, prob_by_n, prob_by_c, loss_by_n, share_by_n;
    int32_t has_ignored, ignored;
} tg_nll_args;
typedef struct {
    int32_t n_n, n_c, n_s;
    int32_t dy_by_n, dy_by_s, prob_by_n, prob_by_c, label_by_n, dx_by_n, dx_by_c;
    int32_t has_ignored, ignored;
    float count;
} tg_nll_grad_args;
TG_KERNEL void tg_nll_i64(TG_MEM const float *x, TG_MEM const int64_t *label, TG_MEM const float *weight,
                          TG_MEM float *prob, TG_MEM float *loss, TG_MEM float *share, TG_ARG const tg_nll_args *p,
                          int core_id, int core_count);
TG_KERNEL void tg_nll_total(TG_MEM const float *part, TG_MEM const float *weight, TG_MEM float *loss,
                            TG_MEM float *total, TG_ARG const tg_loss_total_args *p, int core_id, int core_count);
TG_KERNEL void tg_nll_grad_i64(TG_MEM const float *dy, TG_MEM const float *prob, TG_MEM const int64_t *label,
                               TG_MEM const float *weight, TG_MEM const float *total, TG_MEM float *dx,
                               TG_ARG const tg_nll_grad_args *p, int core_id, int core_count);

#endif
