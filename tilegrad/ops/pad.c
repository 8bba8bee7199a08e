/* Pad. The constant form is tg_pad.h; in the other modes every position maps to a source (reflect 1, edge 2, wrap 3).
 * PadGrad sums what was copied from each element, in ascending order of position. */
#include "tg_pad.h"

typedef struct {
    int32_t n_d0, n_d1, n_d2, n_d3, at_d0, at_d1, at_d2, at_d3, n_r0, n_r1, n_r2, n_r3;
    int32_t x_s0, x_s1, x_s2, x_s3, y_by_d0, y_by_d1, y_by_d2;
    int32_t is_padded_0, is_padded_1, is_padded_2, is_padded_3, before_0, before_1, before_2, before_3, mode;
} tg_pad_mapped_args;

typedef struct {
    int32_t n_d0, n_d1, n_d2, n_d3, at_d0, at_d1, at_d2, at_d3, n_r0, n_r1, n_r2, n_r3, of_d0, of_d1, of_d2, of_d3;
    int32_t dy_s0, dy_s1, dy_s2, dy_s3, dx_by_d0, dx_by_d1, dx_by_d2;
    int32_t is_padded_0, is_padded_1, is_padded_2, is_padded_3, before_0, before_1, before_2, before_3, mode;
} tg_pad_grad_args;

TG_INLINE int tg_pad_modulo(int a, int b)
{
    int rest = a % b;
    return rest < 0 ? rest + b : rest;
}

/* Where position t (0 is the first element before padding) comes from, in a dimension of `extent`. */
TG_INLINE int tg_pad_source(int t, int extent, int mode)
{
    if (mode == 2)
        return tg_min(tg_max(t, 0), extent - 1);
    if (mode == 3)
        return tg_pad_modulo(t, extent);
    if (extent == 1)
        return 0;
    t = tg_pad_modulo(t, 2 * extent - 2);
    return t < extent ? t : 2 * extent - 2 - t;
}

/* The first position from t on that comes from element i; `stop` where there is none. */
TG_INLINE int tg_pad_next(int t, int i, int extent, int stop, int mode)
{
    if (mode == 2) {
        if (t < i)
            t = i == 0 ? t : i;
        else if (t > i && i != extent - 1)
            t = stop;
    } else if (mode == 3 || extent == 1) {
        t += tg_pad_modulo(i - t, extent);
    } else {
        int period = 2 * extent - 2;
        t += tg_min(tg_pad_modulo(i - t, period), tg_pad_modulo(-i - t, period));
    }
    return tg_min(t, stop);
}

#define TG_PAD_SOURCE(d, i) (p->is_padded_##d ? tg_pad_source(p->at_d##d + (i)-p->before_##d, p->n_r##d, p->mode) : (i))

#define TG_PAD_MAPPED(TYPE)                                                                                            \
    int start, stop;                                                                                                   \
    tg_share(p->n_d0 * p->n_d1 * p->n_d2, core_id, core_count, &start, &stop);                                         \
    for (int row = start; row < stop; row++) {                                                                         \
        int i2 = row % p->n_d2, i1 = row / p->n_d2 % p->n_d1, i0 = row / p->n_d2 / p->n_d1;                            \
        TG_MEM const TYPE *source = x + TG_PAD_SOURCE(0, i0) * p->x_s0 + TG_PAD_SOURCE(1, i1) * p->x_s1 +              \
                                    TG_PAD_SOURCE(2, i2) * p->x_s2;                                                    \
        TG_MEM TYPE *target = y + i0 * p->y_by_d0 + i1 * p->y_by_d1 + i2 * p->y_by_d2;                                 \
        for (int j = 0; j < p->n_d3; j++)                                                                              \
            target[j] = source[TG_PAD_SOURCE(3, j)];                                                                   \
    }

TG_KERNEL void tg_pad_constant_b1(TG_MEM const tg_b1 *restrict x, TG_MEM tg_b1 *restrict y,
                                  TG_ARG const tg_pad_args *p, int core_id, int core_count)
{
    TG_PAD(tg_b1, p->value_low)
}

TG_KERNEL void tg_pad_constant_b2(TG_MEM const tg_b2 *restrict x, TG_MEM tg_b2 *restrict y,
                                  TG_ARG const tg_pad_args *p, int core_id, int core_count)
{
    TG_PAD(tg_b2, p->value_low)
}

TG_KERNEL void tg_pad_constant_b4(TG_MEM const tg_b4 *restrict x, TG_MEM tg_b4 *restrict y,
                                  TG_ARG const tg_pad_args *p, int core_id, int core_count)
{
    TG_PAD(tg_b4, p->value_low)
}

TG_KERNEL void tg_pad_constant_b8(TG_MEM const tg_b8 *restrict x, TG_MEM tg_b8 *restrict y,
                                  TG_ARG const tg_pad_args *p, int core_id, int core_count)
{
    TG_PAD(tg_b8, (uint64_t)p->value_high << 32 | p->value_low)
}

TG_KERNEL void tg_pad_mapped_b1(TG_MEM const tg_b1 *restrict x, TG_MEM tg_b1 *restrict y,
                                TG_ARG const tg_pad_mapped_args *p, int core_id, int core_count)
{
    TG_PAD_MAPPED(tg_b1)
}

TG_KERNEL void tg_pad_mapped_b2(TG_MEM const tg_b2 *restrict x, TG_MEM tg_b2 *restrict y,
                                TG_ARG const tg_pad_mapped_args *p, int core_id, int core_count)
{
    TG_PAD_MAPPED(tg_b2)
}

TG_KERNEL void tg_pad_mapped_b4(TG_MEM const tg_b4 *restrict x, TG_MEM tg_b4 *restrict y,
                                TG_ARG const tg_pad_mapped_args *p, int core_id, int core_count)
{
    TG_PAD_MAPPED(tg_b4)
}

TG_KERNEL void tg_pad_mapped_b8(TG_MEM const tg_b8 *restrict x, TG_MEM tg_b8 *restrict y,
                                TG_ARG const tg_pad_mapped_args *p, int core_id, int core_count)
{
    TG_PAD_MAPPED(tg_b8)
}

/* For each position q of dimension d that comes from element i (a plain dimension has one). */
#define TG_PAD_EACH(q, d, i)                                                                                           \
    for (int stop##d = p->is_padded_##d ? p->n_r##d - p->before_##d : (i) + 1,                                         \
             q##_at = p->is_padded_##d ? tg_pad_next(-p->before_##d, p->at_d##d + (i), p->of_d##d, stop##d, p->mode)   \
                                       : (i),                                                                          \
             q = q##_at + p->before_##d;                                                                               \
         q##_at < stop##d;                                                                                             \
         q##_at = p->is_padded_##d ? tg_pad_next(q##_at + 1, p->at_d##d + (i), p->of_d##d, stop##d, p->mode) : stop##d,\
             q = q##_at + p->before_##d)

TG_KERNEL void tg_pad_grad(TG_MEM const float *restrict dy, TG_MEM float *restrict dx, TG_ARG const tg_pad_grad_args *p,
                           int core_id, int core_count)
{
    int start, stop;
    tg_share(p->n_d0 * p->n_d1 * p->n_d2, core_id, core_count, &start, &stop);
    for (int row = start; row < stop; row++) {
        int i2 = row % p->n_d2, i1 = row / p->n_d2 % p->n_d1, i0 = row / p->n_d2 / p->n_d1;
        for (int i3 = 0; i3 < p->n_d3; i3++) {
            float sum = 0.0f;
            TG_PAD_EACH(q0, 0, i0)
            TG_PAD_EACH(q1, 1, i1)
            TG_PAD_EACH(q2, 2, i2)
            TG_PAD_EACH(q3, 3, i3)
            sum += dy[q0 * p->dy_s0 + q1 * p->dy_s1 + q2 * p->dy_s2 + q3 * p->dy_s3];
            dx[i0 * p->dx_by_d0 + i1 * p->dx_by_d1 + i2 * p->dx_by_d2 + i3] = sum;
        }
    }
}
