/* A strided copy over eight loops: every operator that only moves elements (Transpose, Slice, Concat, ...) is one or
 * more of these. A loop along which `x` is broadcast has stride 0; one that walks it backwards has a negative stride and
 * starts at the far end of the box `x` points to. */
#ifndef TG_COPY_H
#define TG_COPY_H
#include "tg_inner.h"
#include "tg_kernel.h"

typedef struct {
    int32_t n_d0, n_d1, n_d2, n_d3, n_d4, n_d5, n_d6, n_d7;
    int32_t x_by_d0, x_by_d1, x_by_d2, x_by_d3, x_by_d4, x_by_d5, x_by_d6, x_by_d7;
    int32_t y_by_d0, y_by_d1, y_by_d2, y_by_d3, y_by_d4, y_by_d5, y_by_d6, y_by_d7;
} tg_copy_args;

#define TG_COPY_START(d)                                                                                               \
    int i##d = rest % p->n_d##d;                                                                                       \
    rest /= p->n_d##d;                                                                                                 \
    ix += i##d * p->x_by_d##d - (p->x_by_d##d < 0 ? (p->n_d##d - 1) * p->x_by_d##d : 0);                               \
    iy += i##d * p->y_by_d##d;

#define TG_COPY_NEXT(d)                                                                                                \
    ix += p->x_by_d##d;                                                                                                \
    iy += p->y_by_d##d;                                                                                                \
    if (++i##d < p->n_d##d)                                                                                            \
        continue;                                                                                                      \
    ix -= p->n_d##d * p->x_by_d##d;                                                                                    \
    iy -= p->n_d##d * p->y_by_d##d;                                                                                    \
    i##d = 0;

/* This core's share: rows (all loops but the last), or a piece of every row where there are too few of them. */
#define TG_COPY_SHARE(TYPE)                                                                                            \
    int start = 0, stop = p->n_d0 * p->n_d1 * p->n_d2 * p->n_d3 * p->n_d4 * p->n_d5 * p->n_d6;                         \
    int from = 0, to = p->n_d7;                                                                                        \
    if (stop >= core_count)                                                                                            \
        tg_share(stop, core_id, core_count, &start, &stop);                                                            \
    else                                                                                                               \
        tg_share(to, core_id, core_count, &from, &to);                                                                 \
    if (start >= stop || from >= to)                                                                                   \
        return;                                                                                                        \
    int rest = start, x_step = p->x_by_d7, y_step = p->y_by_d7;                                                        \
    int ix = from * x_step - (x_step < 0 ? (p->n_d7 - 1) * x_step : 0), iy = from * y_step;                            \
    TG_COPY_START(6) TG_COPY_START(5) TG_COPY_START(4) TG_COPY_START(3)                                                \
    TG_COPY_START(2) TG_COPY_START(1) TG_COPY_START(0)                                                                 \
    for (int row = start; row < stop; row++) {                                                                         \
        TG_MEM const TYPE *source = x + ix;                                                                            \
        TG_MEM TYPE *target = y + iy;                                                                                  \
        int count = to - from;                                                                                         \
        if (x_step == 1 && y_step == 1)                                                                                \
            for (int j = 0; j < count; j++)                                                                            \
                target[j] = source[j];                                                                                 \
        else                                                                                                           \
            for (int j = 0; j < count; j++) {                                                                          \
                *target = *source;                                                                                     \
                source += x_step;                                                                                      \
                target += y_step;                                                                                      \
            }                                                                                                          \
        TG_COPY_NEXT(6) TG_COPY_NEXT(5) TG_COPY_NEXT(4) TG_COPY_NEXT(3)                                                \
        TG_COPY_NEXT(2) TG_COPY_NEXT(1) TG_COPY_NEXT(0)                                                                \
    }

/* It is long. Where the linker keeps one of several equal functions (a chip's tg_inner.h says so by TG_ONCE), kernels that
 * copy have it in common. */
#ifdef TG_ONCE
#define TG_COPY_APART(TYPE)                                                                                            \
    TG_ONCE void tg_copy_of_##TYPE(TG_MEM const TYPE *restrict x, TG_MEM TYPE *restrict y,                             \
                                   TG_ARG const tg_copy_args *p, int core_id, int core_count)                          \
    {                                                                                                                  \
        TG_COPY_SHARE(TYPE)                                                                                            \
    }
TG_COPY_APART(tg_b1)
TG_COPY_APART(tg_b2)
TG_COPY_APART(tg_b4)
TG_COPY_APART(tg_b8)
#define TG_COPY(TYPE) tg_copy_of_##TYPE(x, y, p, core_id, core_count);
#else
#define TG_COPY(TYPE) TG_COPY_SHARE(TYPE)
#endif

#endif
