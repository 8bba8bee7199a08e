/* test: 3 trained tensors, loss cross_entropy, optimizer Momentum, batch 2.
 * A function is one node of the model, or its gradient; TG_RUN is one kernel call (tg_rt.h). */
#include <string.h>
#include "model.h"
#include "kernels.h"
#include "tg_rt.h"

/* Operands by byte offset: what is kept between calls, and what is not. */
#define STATE(offset) ((void *)(m->state + (offset)))
#define ARENA(offset) ((void *)(m->arena + (offset)))

const tg_tensor tg_tensors[TG_TENSOR_COUNT] = {
    {"w1", "parameter", 0, 80}, {"b1", "parameter", 80, 20}, {"w2", "parameter", 104, 60},
    {"tg.lazy_reset_grad", "hyper", 168, 1}, {"w2_grad.accumulation.buffer", "gradient", 208, 60},
    {"w1_grad.accumulation.buffer", "gradient", 272, 80}, {"b1_grad.accumulation.buffer", "gradient", 352, 20},
    {"tg.learning_rate", "hyper", 176, 4}, {"w1.momentum", "optimizer", 376, 80}, {"b1.momentum", "optimizer", 456, 20},
    {"w2.momentum", "optimizer", 480, 60}, {"tg.constant.0", "constant", 184, 4}, {"tg.constant.1", "constant", 192, 1},
    {"tg.constant.2", "constant", 200, 1}
};

static const tg_gemm_args gemm_args_0 = {
    .n_m = 2, .n_n = 5, .n_k = 4, .a_by_m = 4, .a_by_k = 1, .b_by_k = 5, .b_by_n = 1, .c_by_n = 1, .y_by_m = 5,
    .y_by_n = 1, .first = 1, .last = 1, .alpha = 1.0f, .beta = 1.0f, .activation = 1
};
static const tg_matmul_args matmul_args_0 = {
    .n_g0 = 1, .n_g1 = 1, .n_g2 = 1, .n_m = 2, .n_n = 3, .n_k = 5, .a_by_m = 5, .a_by_k = 1, .b_by_k = 3, .b_by_n = 1,
    .y_by_m = 3, .first = 1, .last = 1, .alpha = 1.0f
};
static const tg_nll_args nll_args_0 = {
    .n_n = 2, .n_c = 3, .n_s = 1, .x_by_n = 3, .x_by_c = 1, .label_by_n = 1, .prob_by_n = 3, .prob_by_c = 1,
    .loss_by_n = 1
};
static const tg_loss_total_args loss_total_args_0 = {.n_i = 2, .first = 1, .last = 1, .count = 2.0f};
static const tg_nll_grad_args nll_grad_args_0 = {
    .n_n = 2, .n_c = 3, .n_s = 1, .prob_by_n = 3, .prob_by_c = 1, .label_by_n = 1, .dx_by_n = 3, .dx_by_c = 1,
    .count = 2.0f
};
static const tg_matmul_args matmul_args_1 = {
    .n_g0 = 1, .n_g1 = 1, .n_g2 = 1, .n_m = 2, .n_n = 5, .n_k = 3, .a_by_m = 3, .a_by_k = 1, .b_by_k = 1, .b_by_n = 3,
    .y_by_m = 5, .first = 1, .last = 1, .alpha = 1.0f
};
static const tg_matmul_args matmul_args_2 = {
    .n_g0 = 1, .n_g1 = 1, .n_g2 = 1, .n_m = 5, .n_n = 3, .n_k = 2, .a_by_m = 1, .a_by_k = 5, .b_by_k = 3, .b_by_n = 1,
    .y_by_m = 3, .first = 1, .last = 1, .alpha = 1.0f
};
static const tg_map_args map_args_0 = {.n_i = 15};
static const tg_map_args map_args_1 = {.n_i = 10};
static const tg_gemm_args gemm_args_1 = {
    .n_m = 4, .n_n = 5, .n_k = 2, .a_by_m = 1, .a_by_k = 4, .b_by_k = 5, .b_by_n = 1, .y_by_m = 5, .y_by_n = 1,
    .first = 1, .last = 1, .alpha = 1.0f, .beta = 1.0f
};
static const tg_reduce_args reduce_args_0 = {
    .n_o = 1, .n_r = 2, .n_i = 5, .x_by_o = 10, .x_by_r = 5, .y_by_o = 5, .first = 1, .last = 1, .count = 2.0f
};
static const tg_map_args map_args_2 = {.n_i = 20};
static const tg_map_args map_args_3 = {.n_i = 5};
static const tg_map_args map_args_4 = {.n_i = 1};
static const tg_momentum_args momentum_args_0 = {.n_i = 20, .momentum = 0.9f};
static const tg_momentum_args momentum_args_1 = {.n_i = 5, .momentum = 0.9f};
static const tg_momentum_args momentum_args_2 = {.n_i = 15, .momentum = 0.9f};

/* ---- infer: Forward pass on the current parameters. */

/* /fc1/Gemm */
static void forward_0_fc1_Gemm(tg_model *m)
{
    /* GemmRelu, 40 MACs: a x[2,4], b w1[4,5], c b1[5], y active[2,5] */
    TG_RUN(tg_gemm_nn, &gemm_args_0, ARENA(144), STATE(0), STATE(80), ARENA(64));
}

/* /fc2/MatMul */
static void forward_1_fc2_MatMul(tg_model *m)
{
    /* MatMul, 30 MACs: a active[2,5], b w2[5,3], y logits[2,3] */
    TG_RUN(tg_matmul_nn, &matmul_args_0, ARENA(64), STATE(104), ARENA(176));
}

tg_status tg_infer(tg_model *m, const float *x, float *logits)
{
    memcpy(ARENA(144), x, 32);
    forward_0_fc1_Gemm(m);
    forward_1_fc2_MatMul(m);
    memcpy(logits, ARENA(176), 24);
    return TG_OK;
}

/* ---- step: One mini-batch: forward, loss, backward, gradients accumulated. */

/* loss/SoftmaxCrossEntropyLoss */
static void train_2_loss_SoftmaxCrossEntropyLoss(tg_model *m)
{
    /* SoftmaxCrossEntropyLoss 1/2: x logits[2,3], label labels[2], prob in place, loss loss.tmp0[2,1] */
    TG_RUN(tg_nll_i64, &nll_args_0, ARENA(176), ARENA(0), TG_NULL, ARENA(176), ARENA(16), TG_NULL);
    /* SoftmaxCrossEntropyLoss 2/2: part loss.tmp0[2,1], loss loss[] */
    TG_RUN(tg_nll_total, &loss_total_args_0, ARENA(16), TG_NULL, ARENA(200), TG_NULL);
}

/* Gradient of loss/SoftmaxCrossEntropyLoss */
static void backward_3_loss_SoftmaxCrossEntropyLoss(tg_model *m)
{
    /* SoftmaxCrossEntropyLossGrad: prob loss.1[2,3], label labels[2], dx in place */
    TG_RUN(tg_nll_grad_i64, &nll_grad_args_0, STATE(184), ARENA(176), ARENA(0), TG_NULL, TG_NULL, ARENA(176));
}

/* Gradient of /fc2/MatMul */
static void backward_4_fc2_MatMul(tg_model *m)
{
    /* FusedMatMul, 30 MACs: a logits_grad[2,3], b w2[5,3], y active_grad[2,5] */
    TG_RUN(tg_matmul_nt, &matmul_args_1, ARENA(176), STATE(104), ARENA(104));
    /* FusedMatMul, 30 MACs: a active[2,5], b logits_grad[2,3], y w2_grad[5,3] */
    TG_RUN(tg_matmul_tn, &matmul_args_2, ARENA(64), ARENA(176), ARENA(0));
    /* InPlaceAccumulatorV2: buffer w2_grad.accumulation.buffer[5,3], gradient w2_grad[5,3], updated in place */
    TG_RUN(tg_accumulate, &map_args_0, STATE(208), ARENA(0), STATE(168), STATE(208));
}

/* Gradient of /fc1/Gemm */
static void backward_5_fc1_Gemm(tg_model *m)
{
    /* ReluGrad: dy active_grad[2,5], y active[2,5], dx in place */
    TG_RUN(tg_relu_grad, &map_args_1, ARENA(104), ARENA(64), ARENA(104));
    /* Gemm, 40 MACs: a x[2,4], b /fc1/Gemm_Grad/ReluGrad[2,5], y w1_grad[4,5] */
    TG_RUN(tg_gemm_tn, &gemm_args_1, ARENA(144), ARENA(104), TG_NULL, ARENA(0));
    /* ReduceSum: x /fc1/Gemm_Grad/ReluGrad[2,5], y /fc1/Gemm_Grad/ReduceSum[1,5] */
    TG_RUN(tg_reduce_sum, &reduce_args_0, ARENA(104), ARENA(80));
    /* InPlaceAccumulatorV2: buffer w1_grad.accumulation.buffer[4,5], gradient w1_grad[4,5], updated in place */
    TG_RUN(tg_accumulate, &map_args_2, STATE(272), ARENA(0), STATE(168), STATE(272));
    /* InPlaceAccumulatorV2: buffer b1_grad.accumulation.buffer[5], gradient /fc1/Gemm_Grad/Reshape[5],
     * updated in place */
    TG_RUN(tg_accumulate, &map_args_3, STATE(352), ARENA(80), STATE(168), STATE(352));
}

/* end_of_step/Copy */
static void train_6_end_of_step_Copy(tg_model *m)
{
    /* Copy: x tg.constant.1[1], y tg.lazy_reset_grad.off[1] */
    TG_RUN(tg_copy_b1, &map_args_4, STATE(192), STATE(168));
}

tg_status tg_step(tg_model *m, const float *x, const int64_t *labels, float *loss)
{
    for (int i = 0; i < 2; i++) {
        if (labels[i] < 0 || labels[i] >= 3)
            return TG_BAD_LABEL;
    }
    memcpy(ARENA(144), x, 32);
    memcpy(ARENA(0), labels, 16);
    forward_0_fc1_Gemm(m);
    forward_1_fc2_MatMul(m);
    train_2_loss_SoftmaxCrossEntropyLoss(m);
    backward_3_loss_SoftmaxCrossEntropyLoss(m);
    backward_4_fc2_MatMul(m);
    backward_5_fc1_Gemm(m);
    train_6_end_of_step_Copy(m);
    memcpy(loss, ARENA(200), 4);
    return TG_OK;
}

/* ---- update: One optimizer step on the accumulated gradients; the next tg_step starts a new accumulation. */

/* Updates of parameters. */
static void update_0(tg_model *m)
{
    /* Momentum: w w1[4,5], g w1_grad.accumulation.buffer[4,5], v w1.momentum[4,5], w_out in place, v_out in place */
    TG_RUN(tg_momentum, &momentum_args_0, STATE(0), STATE(272), STATE(376), STATE(176), STATE(0), STATE(376));
    /* Momentum: w b1[5], g b1_grad.accumulation.buffer[5], v b1.momentum[5], w_out in place, v_out in place */
    TG_RUN(tg_momentum, &momentum_args_1, STATE(80), STATE(352), STATE(456), STATE(176), STATE(80), STATE(456));
    /* Momentum: w w2[5,3], g w2_grad.accumulation.buffer[5,3], v w2.momentum[5,3], w_out in place, v_out in place */
    TG_RUN(tg_momentum, &momentum_args_2, STATE(104), STATE(208), STATE(480), STATE(176), STATE(104), STATE(480));
    /* Copy: x tg.constant.2[1], y tg.lazy_reset_grad.on[1] */
    TG_RUN(tg_copy_b1, &map_args_4, STATE(200), STATE(168));
}

tg_status tg_update(tg_model *m)
{
    update_0(m);
    return TG_OK;
}

void tg_init(tg_model *m, void *state, void *arena, const void *image)
{
    m->state = (unsigned char *)state;
    m->arena = (unsigned char *)arena;
    memcpy(m->state, image, TG_IMAGE_BYTES);
    memset(m->state + TG_IMAGE_BYTES, 0, TG_STATE_BYTES - TG_IMAGE_BYTES);
}

void tg_read_tensor(const tg_model *m, int index, void *data)
{
    memcpy(data, m->state + tg_tensors[index].offset, tg_tensors[index].bytes);
}

void tg_write_tensor(tg_model *m, int index, const void *data)
{
    memcpy(m->state + tg_tensors[index].offset, data, tg_tensors[index].bytes);
}

#ifdef TG_STATIC_INSTANCE
tg_model *tg_static_instance(const void *image)
{
    static unsigned char state[TG_STATE_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
    static unsigned char arena[TG_ARENA_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
    static tg_model instance;
    tg_init(&instance, state, arena, image);
    return &instance;
}
#endif
