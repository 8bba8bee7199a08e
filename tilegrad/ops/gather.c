/* Gather: y(o, j, i) = x(o, idx[j], i). GatherGrad: dx(o, r, i) sums dy(o, j, i) over the j that took row r, ascending. */
#include "tg_gather.h"

typedef struct {
    int32_t n_o, n_j, n_i, n_r, x_by_o, x_by_r, y_by_o, y_by_j;
    uint32_t missing;
} tg_gather_args;

typedef struct {
    int32_t n_o, n_r, n_i, n_j, at_r, of_r, dy_by_o, dy_by_j, dx_by_o, dx_by_r, first;
} tg_gather_grad_args;

#define TG_GATHER(TYPE)                                                                                                \
    int start, stop;                                                                                                   \
    tg_share(p->n_o * p->n_j, core_id, core_count, &start, &stop);                                                     \
    for (int row = start; row < stop; row++) {                                                                         \
        int o = row / p->n_j, j = row - o * p->n_j, r = tg_index(idx[j], p->n_r);                                      \
        TG_MEM TYPE *target = y + o * p->y_by_o + j * p->y_by_j;                                                       \
        if (r < 0)                                                                                                     \
            for (int i = 0; i < p->n_i; i++)                                                                           \
                target[i] = (TYPE)p->missing;                                                                          \
        else                                                                                                           \
            for (int i = 0; i < p->n_i; i++)                                                                           \
                target[i] = x[o * p->x_by_o + r * p->x_by_r + i];                                                      \
    }

#define TG_GATHER_GRAD                                                                                                 \
    int start, stop;                                                                                                   \
    tg_share(p->n_o * p->n_r, core_id, core_count, &start, &stop);                                                     \
    for (int row = start; row < stop; row++) {                                                                         \
        int o = row / p->n_r, r = row - o * p->n_r;                                                                    \
        TG_MEM float *target = dx + o * p->dx_by_o + r * p->dx_by_r;                                                   \
        TG_MEM const float *source = dy + o * p->dy_by_o;                                                              \
        if (p->first)                                                                                                  \
            for (int i = 0; i < p->n_i; i++)                                                                           \
                target[i] = 0.0f;                                                                                      \
        for (int j = 0; j < p->n_j; j++)                                                                               \
            if (tg_index(idx[j], p->of_r) == p->at_r + r)                                                              \
                for (int i = 0; i < p->n_i; i++)                                                                       \
                    target[i] += source[j * p->dy_by_j + i];                                                           \
    }

TG_KERNEL void tg_gather_b1_i64(TG_MEM const tg_b1 *restrict x, TG_MEM const int64_t *restrict idx, TG_MEM tg_b1 *restrict y,
                                TG_ARG const tg_gather_args *p, int core_id, int core_count)
{
    TG_GATHER(tg_b1)
}

TG_KERNEL void tg_gather_b2_i64(TG_MEM const tg_b2 *restrict x, TG_MEM const int64_t *restrict idx, TG_MEM tg_b2 *restrict y,
                                TG_ARG const tg_gather_args *p, int core_id, int core_count)
{
    TG_GATHER(tg_b2)
}

TG_KERNEL void tg_gather_b4_i64(TG_MEM const tg_b4 *restrict x, TG_MEM const int64_t *restrict idx, TG_MEM tg_b4 *restrict y,
                                TG_ARG const tg_gather_args *p, int core_id, int core_count)
{
    TG_GATHER(tg_b4)
}

TG_KERNEL void tg_gather_b8_i64(TG_MEM const tg_b8 *restrict x, TG_MEM const int64_t *restrict idx, TG_MEM tg_b8 *restrict y,
                                TG_ARG const tg_gather_args *p, int core_id, int core_count)
{
    TG_GATHER(tg_b8)
}

TG_KERNEL void tg_gather_b1_i32(TG_MEM const tg_b1 *restrict x, TG_MEM const int32_t *restrict idx, TG_MEM tg_b1 *restrict y,
                                TG_ARG const tg_gather_args *p, int core_id, int core_count)
{
    TG_GATHER(tg_b1)
}

TG_KERNEL void tg_gather_b2_i32(TG_MEM const tg_b2 *restrict x, TG_MEM const int32_t *restrict idx, TG_MEM tg_b2 *restrict y,
                                TG_ARG const tg_gather_args *p, int core_id, int core_count)
{
    TG_GATHER(tg_b2)
}

TG_KERNEL void tg_gather_b4_i32(TG_MEM const tg_b4 *restrict x, TG_MEM const int32_t *restrict idx, TG_MEM tg_b4 *restrict y,
                                TG_ARG const tg_gather_args *p, int core_id, int core_count)
{
    TG_GATHER(tg_b4)
}

TG_KERNEL void tg_gather_b8_i32(TG_MEM const tg_b8 *restrict x, TG_MEM const int32_t *restrict idx, TG_MEM tg_b8 *restrict y,
                                TG_ARG const tg_gather_args *p, int core_id, int core_count)
{
    TG_GATHER(tg_b8)
}

TG_KERNEL void tg_gather_grad_i64(TG_MEM const int64_t *restrict idx, TG_MEM const float *restrict dy,
                                  TG_MEM float *restrict dx, TG_ARG const tg_gather_grad_args *p, int core_id, int core_count)
{
    TG_GATHER_GRAD
}

TG_KERNEL void tg_gather_grad_i32(TG_MEM const int32_t *restrict idx, TG_MEM const float *restrict dy,
                                  TG_MEM float *restrict dx, TG_ARG const tg_gather_grad_args *p, int core_id, int core_count)
{
    TG_GATHER_GRAD
}
