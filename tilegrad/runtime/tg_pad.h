/* A copy between dimensions that do not coincide: y[i] = x[(turn * i + offset) / every] where that is an element of x,
 * `value` elsewhere. Pads and crops have every = 1; the gradient of a strided slice has its step there. */
#ifndef TG_PAD_H
#define TG_PAD_H
#include "tg_kernel.h"

/* The value is given by its bits. */
typedef struct {
    int32_t n_d0, n_d1, n_d2, n_d3, n_d4, n_d5;
    int32_t y_by_d0, y_by_d1, y_by_d2, y_by_d3, y_by_d4;
    int32_t x_o0, x_o1, x_o2, x_o3, x_o4, x_o5;
    int32_t x_n0, x_n1, x_n2, x_n3, x_n4, x_n5;
    int32_t x_s0, x_s1, x_s2, x_s3, x_s4;
    int32_t turn_0, turn_1, turn_2, turn_3, turn_4, turn_5;
    int32_t every_0, every_1, every_2, every_3, every_4, every_5;
    uint32_t value_low, value_high;
} tg_pad_args;

/* Position in x, or -1. */
TG_INLINE int tg_pad_position(int i, int turn, int offset, int every, int extent)
{
    int t = turn * i + offset;
    if (t < 0 || (every != 1 && t % every != 0))
        return -1;
    t = every == 1 ? t : t / every;
    return t < extent ? t : -1;
}

#define TG_PAD_OUTER(d)                                                                                                \
    position = rest % p->n_d##d;                                                                                       \
    rest /= p->n_d##d;                                                                                                 \
    iy += position * p->y_by_d##d;                                                                                     \
    position = tg_pad_position(position, p->turn_##d, p->x_o##d, p->every_##d, p->x_n##d);                             \
    is_inside &= position >= 0;                                                                                        \
    ix += position * p->x_s##d;

#define TG_PAD(TYPE, VALUE)                                                                                            \
    TYPE value = (TYPE)(VALUE);                                                                                        \
    int start, stop, count = p->n_d5;                                                                                  \
    tg_share(p->n_d0 * p->n_d1 * p->n_d2 * p->n_d3 * p->n_d4, core_id, core_count, &start, &stop);                     \
    for (int row = start; row < stop; row++) {                                                                         \
        int rest = row, ix = 0, iy = 0, is_inside = 1, position, from = 0, to = 0;                                     \
        TG_PAD_OUTER(4) TG_PAD_OUTER(3) TG_PAD_OUTER(2) TG_PAD_OUTER(1) TG_PAD_OUTER(0)                                \
        TG_MEM TYPE *target = y + iy;                                                                                  \
        if (is_inside && (p->turn_5 != 1 || p->every_5 != 1)) {                                                        \
            for (int j = 0; j < count; j++) {                                                                          \
                position = tg_pad_position(j, p->turn_5, p->x_o5, p->every_5, p->x_n5);                                \
                target[j] = position < 0 ? value : x[ix + position];                                                   \
            }                                                                                                          \
            continue;                                                                                                  \
        }                                                                                                              \
        if (is_inside) {                                                                                               \
            from = tg_min(tg_max(-p->x_o5, 0), count);                                                                 \
            to = tg_min(tg_max(p->x_n5 - p->x_o5, from), count);                                                       \
        }                                                                                                              \
        for (int j = 0; j < from; j++)                                                                                 \
            target[j] = value;                                                                                         \
        for (int j = from; j < to; j++)                                                                                \
            target[j] = x[ix + p->x_o5 + j];                                                                           \
        for (int j = to; j < count; j++)                                                                               \
            target[j] = value;                                                                                         \
    }

#endif
