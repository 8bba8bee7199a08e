/* test: 3 trained tensors, loss cross_entropy, optimizer Momentum, batch 2.
 * A function is one node of the model, or its gradient; TG_RUN is one kernel call (tg_rt.h). */
#include <string.h>
#include "model.h"
#include "kernels.h"
#include "tg_image.h"
#include "tg_rt.h"

/* clang-format off */
const tg_tensor tg_tensors[TG_TENSOR_COUNT] = {
    {"w1", "parameter", 0, 80},
    {"b1", "parameter", 80, 20},
    {"w2", "parameter", 104, 60},
    {"tg.lazy_reset_grad", "hyper", 168, 1},
    {"w2_grad.accumulation.buffer", "gradient", 208, 60},
    {"w1_grad.accumulation.buffer", "gradient", 272, 80},
    {"b1_grad.accumulation.buffer", "gradient", 352, 20},
    {"tg.learning_rate", "hyper", 176, 4},
    {"w1.momentum", "optimizer", 376, 80},
    {"b1.momentum", "optimizer", 456, 20},
    {"w2.momentum", "optimizer", 480, 60},
    {"tg.constant.0", "constant", 184, 4},
    {"tg.constant.1", "constant", 192, 1},
    {"tg.constant.2", "constant", 200, 1},
};
/* clang-format on */

/* Where tensors are, in bytes: those that are kept (S_), and those that are not (A_). */
enum { S_w1 = 0, S_b1 = 80, S_w2 = 104, S_tg_constant_0 = 184, S_w2_grad_accumulation_buffer = 208 };
enum { S_tg_lazy_reset_grad = 168, S_w1_grad_accumulation_buffer = 272, S_b1_grad_accumulation_buffer = 352 };
enum { S_tg_constant_1 = 192, S_w1_momentum = 376, S_tg_learning_rate = 176, S_b1_momentum = 456, S_w2_momentum = 480 };
enum { S_tg_constant_2 = 200, A_x = 144, A_active = 64, A_logits = 176, A_labels = 0, A_loss_1 = 176 };
enum { A_loss_tmp0 = 16, A_loss = 200, A_logits_grad = 176, A_active_grad = 104, A_w2_grad = 0 };
enum { A_fc1_Gemm_Grad_ReluGrad = 104, A_w1_grad = 0, A_fc1_Gemm_Grad_ReduceSum = 80, A_fc1_Gemm_Grad_Reshape = 80 };
#define STATE(tensor) ((void *)(m->state + S_##tensor))
#define ARENA(tensor) ((void *)(m->arena + A_##tensor))
#define ARGS(type, name, ...) static const type name = {__VA_ARGS__}

/* ---- infer: Forward pass on the current parameters. */

/* /fc1/Gemm */
static void forward_0_fc1_Gemm(tg_model *m)
{
    /* GemmRelu, 40 MACs: a x[2,4], b w1[4,5], c b1[5], y active[2,5] */
    ARGS(tg_gemm_args, args, .n_m = 2, .n_n = 5, .n_k = 4, .a_by_m = 4, .a_by_k = 1, .b_by_k = 5, .b_by_n = 1,
         .c_by_n = 1, .y_by_m = 5, .y_by_n = 1, .first = 1, .last = 1, .alpha = 1.0f, .beta = 1.0f, .activation = 1);
    TG_RUN(tg_gemm_nn, &args, ARENA(x), STATE(w1), STATE(b1), ARENA(active));
}

/* /fc2/MatMul */
static void forward_1_fc2_MatMul(tg_model *m)
{
    /* MatMul, 30 MACs: a active[2,5], b w2[5,3], y logits[2,3] */
    ARGS(tg_matmul_args, args, .n_g0 = 1, .n_g1 = 1, .n_g2 = 1, .n_m = 2, .n_n = 3, .n_k = 5, .a_by_m = 5, .a_by_k = 1,
         .b_by_k = 3, .b_by_n = 1, .y_by_m = 3, .first = 1, .last = 1, .alpha = 1.0f);
    TG_RUN(tg_matmul_nn, &args, ARENA(active), STATE(w2), ARENA(logits));
}

tg_status tg_infer(tg_model *m, const float *x, float *logits)
{
    if (m == NULL || m->state == NULL)
        return TG_NOT_READY;
    if (x == NULL || logits == NULL)
        return TG_NULL_POINTER;
    memcpy(ARENA(x), x, 32);
    forward_0_fc1_Gemm(m);
    forward_1_fc2_MatMul(m);
    memcpy(logits, ARENA(logits), 24);
    return TG_OK;
}

/* ---- step: One mini-batch: forward, loss, backward, gradients accumulated. */

/* loss/SoftmaxCrossEntropyLoss */
static void train_2_loss_SoftmaxCrossEntropyLoss(tg_model *m)
{
    /* SoftmaxCrossEntropyLoss 1/2: x logits[2,3], label labels[2], prob in place, loss loss.tmp0[2,1] */
    ARGS(tg_nll_args, args, .n_n = 2, .n_c = 3, .n_s = 1, .x_by_n = 3, .x_by_c = 1, .label_by_n = 1, .prob_by_n = 3,
         .prob_by_c = 1, .loss_by_n = 1);
    TG_RUN(tg_nll_i64, &args, ARENA(logits), ARENA(labels), TG_NULL, ARENA(loss_1), ARENA(loss_tmp0), TG_NULL);
    /* SoftmaxCrossEntropyLoss 2/2: part loss.tmp0[2,1], loss loss[] */
    ARGS(tg_loss_total_args, args_2, .n_i = 2, .first = 1, .last = 1, .count = 2.0f);
    TG_RUN(tg_nll_total, &args_2, ARENA(loss_tmp0), TG_NULL, ARENA(loss), TG_NULL);
}

/* Gradient of loss/SoftmaxCrossEntropyLoss */
static void backward_3_loss_SoftmaxCrossEntropyLoss(tg_model *m)
{
    /* SoftmaxCrossEntropyLossGrad: prob loss.1[2,3], label labels[2], dx in place */
    ARGS(tg_nll_grad_args, args, .n_n = 2, .n_c = 3, .n_s = 1, .prob_by_n = 3, .prob_by_c = 1, .label_by_n = 1,
         .dx_by_n = 3, .dx_by_c = 1, .count = 2.0f);
    TG_RUN(tg_nll_grad_i64, &args, STATE(tg_constant_0), ARENA(loss_1), ARENA(labels), TG_NULL, TG_NULL,
           ARENA(logits_grad));
}

/* Gradient of /fc2/MatMul */
static void backward_4_fc2_MatMul(tg_model *m)
{
    /* FusedMatMul, 30 MACs: a logits_grad[2,3], b w2[5,3], y active_grad[2,5] */
    ARGS(tg_matmul_args, args, .n_g0 = 1, .n_g1 = 1, .n_g2 = 1, .n_m = 2, .n_n = 5, .n_k = 3, .a_by_m = 3, .a_by_k = 1,
         .b_by_k = 1, .b_by_n = 3, .y_by_m = 5, .first = 1, .last = 1, .alpha = 1.0f);
    TG_RUN(tg_matmul_nt, &args, ARENA(logits_grad), STATE(w2), ARENA(active_grad));
    /* FusedMatMul, 30 MACs: a active[2,5], b logits_grad[2,3], y w2_grad[5,3] */
    ARGS(tg_matmul_args, args_2, .n_g0 = 1, .n_g1 = 1, .n_g2 = 1, .n_m = 5, .n_n = 3, .n_k = 2, .a_by_m = 1,
         .a_by_k = 5, .b_by_k = 3, .b_by_n = 1, .y_by_m = 3, .first = 1, .last = 1, .alpha = 1.0f);
    TG_RUN(tg_matmul_tn, &args_2, ARENA(active), ARENA(logits_grad), ARENA(w2_grad));
    /* InPlaceAccumulatorV2: buffer w2_grad.accumulation.buffer[5,3], gradient w2_grad[5,3], updated in place */
    ARGS(tg_map_args, args_3, .n_i = 15);
    TG_RUN(tg_accumulate, &args_3, STATE(w2_grad_accumulation_buffer), ARENA(w2_grad), STATE(tg_lazy_reset_grad),
           STATE(w2_grad_accumulation_buffer));
}

/* Gradient of /fc1/Gemm */
static void backward_5_fc1_Gemm(tg_model *m)
{
    /* ReluGrad: dy active_grad[2,5], y active[2,5], dx in place */
    ARGS(tg_map_args, args, .n_i = 10);
    TG_RUN(tg_relu_grad, &args, ARENA(active_grad), ARENA(active), ARENA(fc1_Gemm_Grad_ReluGrad));
    /* Gemm, 40 MACs: a x[2,4], b /fc1/Gemm_Grad/ReluGrad[2,5], y w1_grad[4,5] */
    ARGS(tg_gemm_args, args_2, .n_m = 4, .n_n = 5, .n_k = 2, .a_by_m = 1, .a_by_k = 4, .b_by_k = 5, .b_by_n = 1,
         .y_by_m = 5, .y_by_n = 1, .first = 1, .last = 1, .alpha = 1.0f, .beta = 1.0f);
    TG_RUN(tg_gemm_tn, &args_2, ARENA(x), ARENA(fc1_Gemm_Grad_ReluGrad), TG_NULL, ARENA(w1_grad));
    /* ReduceSum: x /fc1/Gemm_Grad/ReluGrad[2,5], y /fc1/Gemm_Grad/ReduceSum[1,5] */
    ARGS(tg_reduce_args, args_3, .n_o = 1, .n_r = 2, .n_i = 5, .x_by_o = 10, .x_by_r = 5, .y_by_o = 5, .first = 1,
         .last = 1, .count = 2.0f);
    TG_RUN(tg_reduce_sum, &args_3, ARENA(fc1_Gemm_Grad_ReluGrad), ARENA(fc1_Gemm_Grad_ReduceSum));
    /* InPlaceAccumulatorV2: buffer w1_grad.accumulation.buffer[4,5], gradient w1_grad[4,5], updated in place */
    ARGS(tg_map_args, args_4, .n_i = 20);
    TG_RUN(tg_accumulate, &args_4, STATE(w1_grad_accumulation_buffer), ARENA(w1_grad), STATE(tg_lazy_reset_grad),
           STATE(w1_grad_accumulation_buffer));
    /* InPlaceAccumulatorV2: buffer b1_grad.accumulation.buffer[5], gradient /fc1/Gemm_Grad/Reshape[5],
     * updated in place */
    ARGS(tg_map_args, args_5, .n_i = 5);
    TG_RUN(tg_accumulate, &args_5, STATE(b1_grad_accumulation_buffer), ARENA(fc1_Gemm_Grad_Reshape),
           STATE(tg_lazy_reset_grad), STATE(b1_grad_accumulation_buffer));
}

ARGS(tg_map_args, map_args_0, .n_i = 1);

/* end_of_step/Copy */
static void train_6_end_of_step_Copy(tg_model *m)
{
    /* Copy: x tg.constant.1[1], y tg.lazy_reset_grad.off[1] */
    TG_RUN(tg_copy_b1, &map_args_0, STATE(tg_constant_1), STATE(tg_lazy_reset_grad));
}

tg_status tg_step(tg_model *m, const float *x, const int64_t *labels, float *loss)
{
    if (m == NULL || m->state == NULL)
        return TG_NOT_READY;
    if (x == NULL || labels == NULL || loss == NULL)
        return TG_NULL_POINTER;
    for (int i = 0; i < 2; i++) {
        if (labels[i] < 0 || labels[i] >= 3)
            return TG_BAD_LABEL;
    }
    memcpy(ARENA(x), x, 32);
    memcpy(ARENA(labels), labels, 16);
    forward_0_fc1_Gemm(m);
    forward_1_fc2_MatMul(m);
    train_2_loss_SoftmaxCrossEntropyLoss(m);
    backward_3_loss_SoftmaxCrossEntropyLoss(m);
    backward_4_fc2_MatMul(m);
    backward_5_fc1_Gemm(m);
    train_6_end_of_step_Copy(m);
    memcpy(loss, ARENA(loss), 4);
    return TG_OK;
}

/* ---- update: One optimizer step on the accumulated gradients; the next tg_step starts a new accumulation. */

/* Updates of parameters. */
static void update_0(tg_model *m)
{
    /* Momentum: w w1[4,5], g w1_grad.accumulation.buffer[4,5], v w1.momentum[4,5], w_out in place, v_out in place */
    ARGS(tg_momentum_args, args, .n_i = 20, .momentum = 0.9f);
    TG_RUN(tg_momentum, &args, STATE(w1), STATE(w1_grad_accumulation_buffer), STATE(w1_momentum),
           STATE(tg_learning_rate), STATE(w1), STATE(w1_momentum));
    /* Momentum: w b1[5], g b1_grad.accumulation.buffer[5], v b1.momentum[5], w_out in place, v_out in place */
    ARGS(tg_momentum_args, args_2, .n_i = 5, .momentum = 0.9f);
    TG_RUN(tg_momentum, &args_2, STATE(b1), STATE(b1_grad_accumulation_buffer), STATE(b1_momentum),
           STATE(tg_learning_rate), STATE(b1), STATE(b1_momentum));
    /* Momentum: w w2[5,3], g w2_grad.accumulation.buffer[5,3], v w2.momentum[5,3], w_out in place, v_out in place */
    ARGS(tg_momentum_args, args_3, .n_i = 15, .momentum = 0.9f);
    TG_RUN(tg_momentum, &args_3, STATE(w2), STATE(w2_grad_accumulation_buffer), STATE(w2_momentum),
           STATE(tg_learning_rate), STATE(w2), STATE(w2_momentum));
    /* Copy: x tg.constant.2[1], y tg.lazy_reset_grad.on[1] */
    TG_RUN(tg_copy_b1, &map_args_0, STATE(tg_constant_2), STATE(tg_lazy_reset_grad));
}

tg_status tg_update(tg_model *m)
{
    if (m == NULL || m->state == NULL)
        return TG_NOT_READY;
    update_0(m);
    return TG_OK;
}

/* Until an instance has its memories, nothing runs on it. */
static tg_status check_memory(tg_model *m, const void *state, const void *arena)
{
    if (m == NULL)
        return TG_NULL_POINTER;
    m->state = NULL;
    m->arena = NULL;
    if (state == NULL || arena == NULL)
        return TG_NULL_POINTER;
    if (((uintptr_t)state | (uintptr_t)arena) % TG_ALIGNMENT != 0)
        return TG_MISALIGNED;
    if ((uintptr_t)state < (uintptr_t)arena + TG_ARENA_BYTES && (uintptr_t)arena < (uintptr_t)state + TG_STATE_BYTES)
        return TG_OVERLAPPING;
    return TG_OK;
}

static void attach(tg_model *m, void *state, void *arena)
{
    m->state = (unsigned char *)state;
    m->arena = (unsigned char *)arena;
}

tg_status tg_init(tg_model *m, void *state, void *arena, const void *image, size_t image_bytes)
{
    tg_status status = check_memory(m, state, arena);
    if (status == TG_OK)
        status = tg_check_image(image, image_bytes, NULL);
    if (status != TG_OK)
        return status;
    attach(m, state, arena);
    memcpy(m->state, (const unsigned char *)image + TG_HEADER_BYTES, TG_IMAGE_BYTES);
    memset(m->state + TG_IMAGE_BYTES, 0, TG_STATE_BYTES - TG_IMAGE_BYTES);
    return TG_OK;
}

tg_status tg_init_in_place(tg_model *m, void *state, void *arena, const void *header, size_t image_bytes)
{
    tg_status status = check_memory(m, state, arena);
    if (status == TG_OK)
        status = tg_check_image(header, image_bytes, state);
    if (status != TG_OK)
        return status;
    attach(m, state, arena);
    memset(m->state + TG_IMAGE_BYTES, 0, TG_STATE_BYTES - TG_IMAGE_BYTES);
    return TG_OK;
}

static tg_status check_tensor(const tg_model *m, int index, const void *data, size_t bytes)
{
    if (m == NULL || m->state == NULL)
        return TG_NOT_READY;
    if (index < 0 || index >= TG_TENSOR_COUNT)
        return TG_BAD_INDEX;
    if (data == NULL)
        return TG_NULL_POINTER;
    return bytes == tg_tensors[index].bytes ? TG_OK : TG_BAD_SIZE;
}

tg_status tg_read_tensor(const tg_model *m, int index, void *data, size_t bytes)
{
    tg_status status = check_tensor(m, index, data, bytes);
    if (status != TG_OK)
        return status;
    memcpy(data, m->state + tg_tensors[index].offset, bytes);
    return TG_OK;
}

tg_status tg_write_tensor(tg_model *m, int index, const void *data, size_t bytes)
{
    tg_status status = check_tensor(m, index, data, bytes);
    if (status != TG_OK)
        return status;
    memcpy(m->state + tg_tensors[index].offset, data, bytes);
    return TG_OK;
}

tg_status tg_get_learning_rate(const tg_model *m, float *rate) { return tg_read_tensor(m, 7, rate, sizeof *rate); }

tg_status tg_set_learning_rate(tg_model *m, float rate)
{
    if (m == NULL || m->state == NULL)
        return TG_NOT_READY;
    if (!(rate >= 0.0f && rate <= 3.40282347e+38f))
        return TG_BAD_NUMBER;
    return tg_write_tensor(m, 7, &rate, sizeof rate);
}

#ifdef TG_STATIC_INSTANCE
tg_status tg_static_instance(tg_model **m, const void *image, size_t image_bytes)
{
    static unsigned char state[TG_STATE_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
    static unsigned char arena[TG_ARENA_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
    static tg_model instance;
    if (m == NULL)
        return TG_NULL_POINTER;
    *m = &instance;
    return tg_init(&instance, state, arena, image, image_bytes);
}
#endif
