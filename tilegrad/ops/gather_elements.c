/* GatherElements: y(p, j, q) = x(p, idx(p, j, q), q) with two loops p before the axis and two loops q after it; the
 * indices may cover only part of the data. GatherElementsGrad: dx sums, over j ascending, the dy that took the element. */
#include "tg_gather.h"

typedef struct {
    int32_t n_p0, n_p1, n_j, n_q0, n_q1, n_r;
    int32_t x_by_p0, x_by_p1, x_by_r, x_by_q0, idx_by_p0, idx_by_p1, idx_by_j, idx_by_q0;
    int32_t y_by_p0, y_by_p1, y_by_j, y_by_q0;
    uint32_t missing;
} tg_gather_elements_args;

typedef struct {
    int32_t n_p0, n_p1, n_r, n_q0, n_q1, n_j, at_r, of_r;
    int32_t dx_by_p0, dx_by_p1, dx_by_r, dx_by_q0, dy_by_p0, dy_by_p1, dy_by_j, dy_by_q0;
    int32_t idx_by_p0, idx_by_p1, idx_by_j, idx_by_q0, idx_n0, idx_n1, idx_n3, idx_n4, first;
} tg_gather_elements_grad_args;

/* Loops over this core's rows (p0, p1, M, q0). */
#define TG_GATHER_ROWS(M)                                                                                              \
    int start, stop;                                                                                                   \
    tg_share(p->n_p0 * p->n_p1 * p->n_##M * p->n_q0, core_id, core_count, &start, &stop);                              \
    for (int row = start; row < stop; row++) {                                                                         \
        int q0 = row % p->n_q0, M = row / p->n_q0 % p->n_##M, p1 = row / p->n_q0 / p->n_##M % p->n_p1,                 \
            p0 = row / p->n_q0 / p->n_##M / p->n_p1;

#define TG_GATHER_ELEMENTS(TYPE)                                                                                       \
    TG_GATHER_ROWS(j)                                                                                                  \
        for (int q1 = 0; q1 < p->n_q1; q1++) {                                                                         \
            int r = tg_index(idx[p0 * p->idx_by_p0 + p1 * p->idx_by_p1 + j * p->idx_by_j + q0 * p->idx_by_q0 + q1],    \
                             p->n_r);                                                                                  \
            y[p0 * p->y_by_p0 + p1 * p->y_by_p1 + j * p->y_by_j + q0 * p->y_by_q0 + q1] =                              \
                r < 0 ? (TYPE)p->missing                                                                               \
                      : x[p0 * p->x_by_p0 + p1 * p->x_by_p1 + r * p->x_by_r + q0 * p->x_by_q0 + q1];                   \
        }                                                                                                              \
    }

#define TG_GATHER_ELEMENTS_GRAD                                                                                        \
    TG_GATHER_ROWS(r)                                                                                                  \
        for (int q1 = 0; q1 < p->n_q1; q1++) {                                                                         \
            TG_MEM float *out = dx + p0 * p->dx_by_p0 + p1 * p->dx_by_p1 + r * p->dx_by_r + q0 * p->dx_by_q0 + q1;     \
            int is_taken = p0 < p->idx_n0 && p1 < p->idx_n1 && q0 < p->idx_n3 && q1 < p->idx_n4;                       \
            float sum = p->first ? 0.0f : *out;                                                                        \
            for (int j = 0; is_taken && j < p->n_j; j++)                                                               \
                if (tg_index(idx[p0 * p->idx_by_p0 + p1 * p->idx_by_p1 + j * p->idx_by_j + q0 * p->idx_by_q0 + q1],    \
                             p->of_r) == p->at_r + r)                                                                  \
                    sum += dy[p0 * p->dy_by_p0 + p1 * p->dy_by_p1 + j * p->dy_by_j + q0 * p->dy_by_q0 + q1];           \
            *out = sum;                                                                                                \
        }                                                                                                              \
    }

TG_KERNEL void tg_gather_elements_b1_i64(TG_MEM const tg_b1 *restrict x, TG_MEM const int64_t *restrict idx,
                                         TG_MEM tg_b1 *restrict y, TG_ARG const tg_gather_elements_args *p, int core_id,
                                         int core_count)
{
    TG_GATHER_ELEMENTS(tg_b1)
}

TG_KERNEL void tg_gather_elements_b2_i64(TG_MEM const tg_b2 *restrict x, TG_MEM const int64_t *restrict idx,
                                         TG_MEM tg_b2 *restrict y, TG_ARG const tg_gather_elements_args *p, int core_id,
                                         int core_count)
{
    TG_GATHER_ELEMENTS(tg_b2)
}

TG_KERNEL void tg_gather_elements_b4_i64(TG_MEM const tg_b4 *restrict x, TG_MEM const int64_t *restrict idx,
                                         TG_MEM tg_b4 *restrict y, TG_ARG const tg_gather_elements_args *p, int core_id,
                                         int core_count)
{
    TG_GATHER_ELEMENTS(tg_b4)
}

TG_KERNEL void tg_gather_elements_b8_i64(TG_MEM const tg_b8 *restrict x, TG_MEM const int64_t *restrict idx,
                                         TG_MEM tg_b8 *restrict y, TG_ARG const tg_gather_elements_args *p, int core_id,
                                         int core_count)
{
    TG_GATHER_ELEMENTS(tg_b8)
}

TG_KERNEL void tg_gather_elements_b1_i32(TG_MEM const tg_b1 *restrict x, TG_MEM const int32_t *restrict idx,
                                         TG_MEM tg_b1 *restrict y, TG_ARG const tg_gather_elements_args *p, int core_id,
                                         int core_count)
{
    TG_GATHER_ELEMENTS(tg_b1)
}

TG_KERNEL void tg_gather_elements_b2_i32(TG_MEM const tg_b2 *restrict x, TG_MEM const int32_t *restrict idx,
                                         TG_MEM tg_b2 *restrict y, TG_ARG const tg_gather_elements_args *p, int core_id,
                                         int core_count)
{
    TG_GATHER_ELEMENTS(tg_b2)
}

TG_KERNEL void tg_gather_elements_b4_i32(TG_MEM const tg_b4 *restrict x, TG_MEM const int32_t *restrict idx,
                                         TG_MEM tg_b4 *restrict y, TG_ARG const tg_gather_elements_args *p, int core_id,
                                         int core_count)
{
    TG_GATHER_ELEMENTS(tg_b4)
}

TG_KERNEL void tg_gather_elements_b8_i32(TG_MEM const tg_b8 *restrict x, TG_MEM const int32_t *restrict idx,
                                         TG_MEM tg_b8 *restrict y, TG_ARG const tg_gather_elements_args *p, int core_id,
                                         int core_count)
{
    TG_GATHER_ELEMENTS(tg_b8)
}

TG_KERNEL void tg_gather_elements_grad_i64(TG_MEM const float *restrict dy, TG_MEM const int64_t *restrict idx,
                                           TG_MEM float *restrict dx, TG_ARG const tg_gather_elements_grad_args *p, int core_id,
                                           int core_count)
{
    TG_GATHER_ELEMENTS_GRAD
}

TG_KERNEL void tg_gather_elements_grad_i32(TG_MEM const float *restrict dy, TG_MEM const int32_t *restrict idx,
                                           TG_MEM float *restrict dx, TG_ARG const tg_gather_elements_grad_args *p, int core_id,
                                           int core_count)
{
    TG_GATHER_ELEMENTS_GRAD
}
