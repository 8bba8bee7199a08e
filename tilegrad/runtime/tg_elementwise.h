/* Loops for kernels that compute each output element from the elements at the same (broadcast) position. */
#ifndef TG_ELEMENTWISE_H
#define TG_ELEMENTWISE_H
#include "tg_kernel.h"

/* All operands have the output's shape: one flat loop. `alpha`, `beta` are the operator's constants. */
typedef struct {
    int32_t n_i;
    float alpha, beta;
} tg_map_args;

/* Operands of any broadcast: six axes, each operand with its own element stride per axis (0 where broadcast). */
typedef struct {
    int32_t n_d0, n_d1, n_d2, n_d3, n_d4, n_d5;
    int32_t a_by_d0, a_by_d1, a_by_d2, a_by_d3, a_by_d4, a_by_d5;
    int32_t b_by_d0, b_by_d1, b_by_d2, b_by_d3, b_by_d4, b_by_d5;
    int32_t c_by_d0, c_by_d1, c_by_d2, c_by_d3, c_by_d4, c_by_d5;
    int32_t y_by_d0, y_by_d1, y_by_d2, y_by_d3, y_by_d4, y_by_d5;
    float alpha, beta;
} tg_broadcast_args;

/* The statement is run for each `i` of this core's share. */
#define TG_MAP(STATEMENT)                                                                                              \
    int start, stop;                                                                                                   \
    tg_share(p->n_i, core_id, core_count, &start, &stop);                                                              \
    for (int i = start; i < stop; i++) {                                                                               \
        STATEMENT                                                                                                      \
    }

/* The statement is run for each output element of this core's share of rows, with `ia`, `ib`, `ic`, `iy` the element
 * positions in the operands. Operands that a kernel does not have simply leave their index unused. */
#define TG_BROADCAST(STATEMENT)                                                                                        \
    int start, stop;                                                                                                   \
    tg_share(p->n_d0 * p->n_d1 * p->n_d2 * p->n_d3 * p->n_d4, core_id, core_count, &start, &stop);                     \
    for (int row = start; row < stop; row++) {                                                                         \
        int rest = row;                                                                                                \
        int i4 = rest % p->n_d4;                                                                                       \
        rest /= p->n_d4;                                                                                               \
        int i3 = rest % p->n_d3;                                                                                       \
        rest /= p->n_d3;                                                                                               \
        int i2 = rest % p->n_d2;                                                                                       \
        rest /= p->n_d2;                                                                                               \
        int i1 = rest % p->n_d1, i0 = rest / p->n_d1;                                                                  \
        int ia = i0 * p->a_by_d0 + i1 * p->a_by_d1 + i2 * p->a_by_d2 + i3 * p->a_by_d3 + i4 * p->a_by_d4;              \
        int ib = i0 * p->b_by_d0 + i1 * p->b_by_d1 + i2 * p->b_by_d2 + i3 * p->b_by_d3 + i4 * p->b_by_d4;              \
        int ic = i0 * p->c_by_d0 + i1 * p->c_by_d1 + i2 * p->c_by_d2 + i3 * p->c_by_d3 + i4 * p->c_by_d4;              \
        int iy = i0 * p->y_by_d0 + i1 * p->y_by_d1 + i2 * p->y_by_d2 + i3 * p->y_by_d3 + i4 * p->y_by_d4;              \
        for (int j = 0; j < p->n_d5; j++) {                                                                            \
            STATEMENT                                                                                                  \
            ia += p->a_by_d5;                                                                                          \
            ib += p->b_by_d5;                                                                                          \
            ic += p->c_by_d5;                                                                                          \
            iy += p->y_by_d5;                                                                                          \
        }                                                                                                              \
        (void)ia;                                                                                                      \
        (void)ib;                                                                                                      \
        (void)ic;                                                                                                      \
    }

#endif
