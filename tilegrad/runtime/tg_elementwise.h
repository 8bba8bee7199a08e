/* Loops for kernels that compute each output element from the elements at the same (broadcast) position. */
#ifndef TG_ELEMENTWISE_H
#define TG_ELEMENTWISE_H
#include "tg_kernel.h"

/* Before a loop: its iterations are independent, even where an output lies exactly over an input. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__OPENCL_VERSION__)
#define TG_INDEPENDENT _Pragma("GCC ivdep")
#else
#define TG_INDEPENDENT
#endif

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
    int32_t type; /* of the elements, see tg_element.h */
    float alpha, beta;
} tg_broadcast_args;

/* The statement is run for each `i` of this core's share. */
#define TG_MAP(STATEMENT)                                                                                              \
    int start, stop;                                                                                                   \
    tg_share(p->n_i, core_id, core_count, &start, &stop);                                                              \
    TG_INDEPENDENT for (int i = start; i < stop; i++)                                                                  \
    {                                                                                                                  \
        STATEMENT                                                                                                      \
    }

/* y[i] = VALUE for each `i` of this core's share, where VALUE is an expression of v, or of u and v: elements of B, or of
 * A and B. A core without vectors takes eight elements a turn, all loads first, since y may lie exactly over an input. */
#if defined(__riscv) && !defined(__riscv_vector)
#define TG_STREAM1(TYPE, Y, B, VALUE) TG_STREAM_TURNS(TYPE, Y, B, B, TG_STREAM_NONE, VALUE)
#define TG_STREAM2(TYPE, Y, A, B, VALUE) TG_STREAM_TURNS(TYPE, Y, A, B, TG_STREAM_LOAD, VALUE)
#define TG_STREAM_NONE(STATEMENT)
#define TG_STREAM_LOAD(STATEMENT) STATEMENT
#define TG_STREAM_TURNS(TYPE, Y, A, B, IF_TWO, VALUE)                                                                  \
    int start, stop;                                                                                                   \
    tg_share(p->n_i, core_id, core_count, &start, &stop);                                                              \
    IF_TWO(TG_MEM const TYPE *from_a = (A) + start;)                                                                   \
    TG_MEM const TYPE *from_b = (B) + start;                                                                           \
    TG_MEM TYPE *to = (Y) + start;                                                                                     \
    int left = stop - start;                                                                                           \
    for (; left >= 8; left -= 8, to += 8) {                                                                            \
        IF_TWO(const TYPE u0 = from_a[0]; const TYPE u1 = from_a[1]; const TYPE u2 = from_a[2];                        \
               const TYPE u3 = from_a[3]; const TYPE u4 = from_a[4]; const TYPE u5 = from_a[5];                        \
               const TYPE u6 = from_a[6]; const TYPE u7 = from_a[7]; from_a += 8;)                                     \
        const TYPE v0 = from_b[0], v1 = from_b[1], v2 = from_b[2], v3 = from_b[3];                                     \
        const TYPE v4 = from_b[4], v5 = from_b[5], v6 = from_b[6], v7 = from_b[7];                                     \
        from_b += 8;                                                                                                   \
        TG_STREAM_ONE(TYPE, 0, IF_TWO, VALUE)                                                                          \
        TG_STREAM_ONE(TYPE, 1, IF_TWO, VALUE)                                                                          \
        TG_STREAM_ONE(TYPE, 2, IF_TWO, VALUE)                                                                          \
        TG_STREAM_ONE(TYPE, 3, IF_TWO, VALUE)                                                                          \
        TG_STREAM_ONE(TYPE, 4, IF_TWO, VALUE)                                                                          \
        TG_STREAM_ONE(TYPE, 5, IF_TWO, VALUE)                                                                          \
        TG_STREAM_ONE(TYPE, 6, IF_TWO, VALUE)                                                                          \
        TG_STREAM_ONE(TYPE, 7, IF_TWO, VALUE)                                                                          \
    }                                                                                                                  \
    for (; left > 0; left--, to++) {                                                                                   \
        IF_TWO(const TYPE u = *from_a++;)                                                                              \
        const TYPE v = *from_b++;                                                                                      \
        *to = (VALUE);                                                                                                 \
    }
#define TG_STREAM_ONE(TYPE, K, IF_TWO, VALUE)                                                                          \
    {                                                                                                                  \
        IF_TWO(const TYPE u = u##K;)                                                                                   \
        const TYPE v = v##K;                                                                                           \
        to[K] = (VALUE);                                                                                               \
    }
#else
#define TG_STREAM1(TYPE, Y, B, VALUE) TG_MAP(const TYPE v = (B)[i]; (Y)[i] = (VALUE);)
#define TG_STREAM2(TYPE, Y, A, B, VALUE) TG_MAP(const TYPE u = (A)[i]; const TYPE v = (B)[i]; (Y)[i] = (VALUE);)
#endif

/* The statement is run for each output element of this core's share, with `ia`, `ib`, `ic`, `iy` the element positions
 * in the operands; a kernel with fewer operands leaves the others unused. TG_BROADCAST has a loop over the last axis
 * for each pattern of unit strides, which the compiler then sees; TG_BROADCAST_COMPACT has one loop for all. */
#define TG_BROADCAST(STATEMENT)                                                                                        \
    TG_BROADCAST_ROWS(                                                                                                 \
        if (a5 == 1 && b5 == 1 && y5 == 1)                                                                             \
            TG_BROADCAST_RUN(1, 1, 1, STATEMENT)                                                                       \
        else if (a5 == 1 && b5 == 0 && y5 == 1)                                                                        \
            TG_BROADCAST_RUN(1, 0, 1, STATEMENT)                                                                       \
        else if (a5 == 0 && b5 == 1 && y5 == 1)                                                                        \
            TG_BROADCAST_RUN(0, 1, 1, STATEMENT)                                                                       \
        else                                                                                                           \
            TG_BROADCAST_RUN(a5, b5, y5, STATEMENT))

#define TG_BROADCAST_COMPACT(STATEMENT) TG_BROADCAST_ROWS(TG_BROADCAST_RUN(a5, b5, y5, STATEMENT))

#define TG_BROADCAST_ROWS(RUN)                                                                                         \
    const int a5 = p->a_by_d5, b5 = p->b_by_d5, c5 = p->c_by_d5, y5 = p->y_by_d5, n5 = p->n_d5;                        \
    int start, stop;                                                                                                   \
    tg_share(p->n_d0 * p->n_d1 * p->n_d2 * p->n_d3 * p->n_d4 * n5, core_id, core_count, &start, &stop);                \
    for (int done = start, row = start < stop ? start / n5 : 0, run; done < stop; done += run, row++) {                \
        const int skipped = done - row * n5;                                                                           \
        int i0 = 0, i1 = 0, i2 = 0, i3 = 0, i4 = row;                                                                  \
        TG_BROADCAST_CARRY(i4, i3, p->n_d4)                                                                            \
        TG_BROADCAST_CARRY(i3, i2, p->n_d3)                                                                            \
        TG_BROADCAST_CARRY(i2, i1, p->n_d2)                                                                            \
        TG_BROADCAST_CARRY(i1, i0, p->n_d1)                                                                            \
        const int at_a = TG_BROADCAST_AT(a) + skipped * a5, at_b = TG_BROADCAST_AT(b) + skipped * b5;                  \
        const int at_c = TG_BROADCAST_AT(c) + skipped * c5, at_y = TG_BROADCAST_AT(y) + skipped * y5;                  \
        run = tg_min(n5 - skipped, stop - done);                                                                       \
        RUN                                                                                                            \
    }

/* Divides only where there is something to carry. */
#define TG_BROADCAST_CARRY(LOW, HIGH, EXTENT)                                                                          \
    if (LOW >= EXTENT) {                                                                                               \
        HIGH = LOW / EXTENT;                                                                                           \
        LOW -= HIGH * EXTENT;                                                                                          \
    }

#define TG_BROADCAST_AT(X)                                                                                             \
    (i0 * p->X##_by_d0 + i1 * p->X##_by_d1 + i2 * p->X##_by_d2 + i3 * p->X##_by_d3 + i4 * p->X##_by_d4)

#define TG_BROADCAST_RUN(A5, B5, Y5, STATEMENT)                                                                        \
    TG_INDEPENDENT for (int j = 0; j < run; j++)                                                                       \
    {                                                                                                                  \
        const int ia = at_a + j * A5, ib = at_b + j * B5, ic = at_c + j * c5, iy = at_y + j * Y5;                      \
        (void)ia, (void)ib, (void)ic;                                                                                  \
        STATEMENT                                                                                                      \
    }

#endif
