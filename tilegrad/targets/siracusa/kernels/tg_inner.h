/* Innermost loops for a core with hardware loops (Xpulp) that shares its FPU with another: where a multiply-add waits
 * for its turn, a load or an addition beside it costs nothing. So they stand between multiply-adds, and what a step
 * needs is loaded while the one before computes, as soon as a register is free. The order of the multiply-adds of each
 * output is that of the portable loops: so are the bits.
 *
 * Hardware loops need the chip, and instructions of four bytes; the simulator, and counting, run the portable loops. */
#ifndef TG_INNER_H
#define TG_INNER_H
#include "tg_block.h"

#if defined(__riscv) && defined(TG_XPULP)

#define TG_LINE(TEXT) TEXT "\n\t"
/* What follows, up to TG_REPEATED, so many instructions (a number), is done `COUNT` times (a register, not 0). */
#define TG_REPEAT(COUNT, INSTRUCTIONS)                                                                                 \
    TG_LINE(".balign 4") TG_LINE(".option push") TG_LINE(".option norvc")                                              \
    TG_LINE(".insn i 0x7b, 4, x0, " COUNT ", 2 * (" #INSTRUCTIONS ")")
#define TG_REPEATED TG_LINE(".option pop")

/* ---- 4x4 blocks of a matrix product. Sums are in f0 to f15; a and b of this k in f16 to f23, of the next in f24 to f31,
 * and the other way round a k later. */

#define TG_G_FMA(S, A, B) TG_LINE("fmadd.s f" #S ", f" #A ", f" #B ", f" #S)
/* One k, with A0 to A3, B0 to B3. What the next needs is loaded meanwhile, one instruction after each multiply-add: `A`
 * and `B` are how the operands lie, `K` whether it is the first or the second k of a turn. */
#define TG_G_STEP(A, B, K, A0, A1, A2, A3, B0, B1, B2, B3)                                                             \
    TG_G_FMA(0, A0, B0) A##_##K##_BEFORE(p) TG_G_FMA(1, A0, B1) B##_##K##_BEFORE(q)                                    \
    TG_G_FMA(2, A0, B2) A##_##K(p, 0) TG_G_FMA(3, A0, B3) B##_##K(q, 0)                                                \
    TG_G_FMA(4, A1, B0) A##_##K(p, 1) TG_G_FMA(5, A1, B1) B##_##K(q, 1)                                                \
    TG_G_FMA(6, A1, B2) A##_##K(p, 2) TG_G_FMA(7, A1, B3) B##_##K(q, 2)                                                \
    TG_G_FMA(8, A2, B0) A##_##K(p, 3) TG_G_FMA(9, A2, B1) B##_##K(q, 3)                                                \
    TG_G_FMA(10, A2, B2) A##_##K##_BEHIND(p, 1) TG_G_FMA(11, A2, B3) B##_##K##_BEHIND(q, 1)                            \
    TG_G_FMA(12, A3, B0) A##_##K##_BEHIND(p, 2) TG_G_FMA(13, A3, B1) B##_##K##_BEHIND(q, 2)                            \
    TG_G_FMA(14, A3, B2) A##_##K##_BEHIND(p, 3) TG_G_FMA(15, A3, B3) B##_##K##_BEHIND(q, 3)
#define TG_G_FIRST_STEP(A, B) TG_G_STEP(A, B, FIRST, 16, 17, 18, 19, 20, 21, 22, 23)
#define TG_G_SECOND_STEP(A, B) TG_G_STEP(A, B, SECOND, 24, 25, 26, 27, 28, 29, 30, 31)

/* What is loaded: for the second k of a turn (by the first) or for the first. */
#define TG_G_LOAD(REGISTER, POINTER, AT) TG_LINE("flw " REGISTER ", " #AT "(%[" #POINTER "])")
#define TG_G_ADD(POINTER, BY) TG_LINE("add %[" #POINTER "], %[" #POINTER "], " BY)
#define TG_G_FIRST_p0 "f16"
#define TG_G_FIRST_p1 "f17"
#define TG_G_FIRST_p2 "f18"
#define TG_G_FIRST_p3 "f19"
#define TG_G_FIRST_q0 "f20"
#define TG_G_FIRST_q1 "f21"
#define TG_G_FIRST_q2 "f22"
#define TG_G_FIRST_q3 "f23"
#define TG_G_SECOND_p0 "f24"
#define TG_G_SECOND_p1 "f25"
#define TG_G_SECOND_p2 "f26"
#define TG_G_SECOND_p3 "f27"
#define TG_G_SECOND_q0 "f28"
#define TG_G_SECOND_q1 "f29"
#define TG_G_SECOND_q2 "f30"
#define TG_G_SECOND_q3 "f31"

/* Along k: four pointers, which step once a turn, the first of them before its load. */
#define TG_ALONG(P, i) TG_G_LOAD(TG_G_FIRST_##P##i, P##i, 0)
#define TG_ALONG_FIRST(P, i) TG_G_LOAD(TG_G_SECOND_##P##i, P##i, 4)
#define TG_ALONG_FIRST_BEFORE(P) ""
#define TG_ALONG_FIRST_BEHIND(P, i) ""
#define TG_ALONG_SECOND(P, i) TG_ALONG_SECOND_##i(P)
#define TG_ALONG_SECOND_0(P) TG_G_LOAD(TG_G_FIRST_##P##0, P##0, 0)
#define TG_ALONG_SECOND_1(P) TG_G_LOAD(TG_G_FIRST_##P##1, P##1, 8)
#define TG_ALONG_SECOND_2(P) TG_G_LOAD(TG_G_FIRST_##P##2, P##2, 8)
#define TG_ALONG_SECOND_3(P) TG_G_LOAD(TG_G_FIRST_##P##3, P##3, 8)
#define TG_ALONG_SECOND_BEFORE(P) TG_G_ADD(P##0, "8")
#define TG_ALONG_SECOND_BEHIND(P, i) TG_G_ADD(P##i, "8")
/* Across k: one pointer, which steps before the loads. */
#define TG_ACROSS(P, i) TG_G_LOAD(TG_G_FIRST_##P##i, P##0, (4 * i))
#define TG_ACROSS_FIRST(P, i) TG_G_LOAD(TG_G_SECOND_##P##i, P##0, (4 * i))
#define TG_ACROSS_FIRST_BEFORE(P) TG_G_ADD(P##0, "%[" #P "_step]")
#define TG_ACROSS_FIRST_BEHIND(P, i) ""
#define TG_ACROSS_SECOND(P, i) TG_G_LOAD(TG_G_FIRST_##P##i, P##0, (4 * i))
#define TG_ACROSS_SECOND_BEFORE(P) TG_G_ADD(P##0, "%[" #P "_step]")
#define TG_ACROSS_SECOND_BEHIND(P, i) ""
/* The last k: nothing more is loaded. */
#define TG_NOTHING_FIRST(P, i) ""
#define TG_NOTHING_FIRST_BEFORE(P) ""
#define TG_NOTHING_FIRST_BEHIND(P, i) ""
#define TG_NOTHING_SECOND(P, i) ""
#define TG_NOTHING_SECOND_BEFORE(P) ""
#define TG_NOTHING_SECOND_BEHIND(P, i) ""

/* Sums begin at zero or at y, and end there. */
#define TG_G_ZERO(S) TG_LINE("fmv.w.x f" #S ", x0")
#define TG_G_ALL_ZERO                                                                                                  \
    TG_G_ZERO(0) TG_G_ZERO(1) TG_G_ZERO(2) TG_G_ZERO(3) TG_G_ZERO(4) TG_G_ZERO(5) TG_G_ZERO(6) TG_G_ZERO(7)            \
    TG_G_ZERO(8) TG_G_ZERO(9) TG_G_ZERO(10) TG_G_ZERO(11) TG_G_ZERO(12) TG_G_ZERO(13) TG_G_ZERO(14) TG_G_ZERO(15)
#define TG_G_Y(OP, S0, S1, S2, S3, Y)                                                                                  \
    TG_LINE(OP " f" #S0 ", 0(%[" #Y "])") TG_LINE(OP " f" #S1 ", 4(%[" #Y "])")                                        \
    TG_LINE(OP " f" #S2 ", 8(%[" #Y "])") TG_LINE(OP " f" #S3 ", 12(%[" #Y "])")
#define TG_G_ALL_Y(OP)                                                                                                 \
    TG_G_Y(OP, 0, 1, 2, 3, y0) TG_G_Y(OP, 4, 5, 6, 7, y1) TG_G_Y(OP, 8, 9, 10, 11, y2) TG_G_Y(OP, 12, 13, 14, 15, y3)
#define TG_G_CLOBBERS                                                                                                  \
    "f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8", "f9", "f10", "f11", "f12", "f13", "f14", "f15", "f16",       \
        "f17", "f18", "f19", "f20", "f21", "f22", "f23", "f24", "f25", "f26", "f27", "f28", "f29", "f30", "f31", "memory"

/* Steps of a block, in elements; a block has at least one k. */
typedef struct {
    int a_by_m, a_by_k, b_by_k, b_by_n, y_by_m, n_k, first;
} tg_inner_steps;

/* `A` and `B` are how the operands lie, `TURN` how many instructions two k are, `OUTPUTS` the pointers. The last k, or
 * the last two, are behind the loop. */
#define TG_G_BLOCK(NAME, A, B, TURN, ROWS, OUTPUTS)                                                                    \
    TG_TEMPLATE void tg_inner_gemm_##NAME(const float *a, const float *b, float *y, const tg_inner_steps *g)           \
    {                                                                                                                  \
        ROWS float *y1 = y + g->y_by_m, *y2 = y1 + g->y_by_m, *y3 = y2 + g->y_by_m;                                    \
        __asm__ volatile(                                                                                              \
            TG_LINE("beqz %[first], 1f") TG_G_ALL_ZERO TG_LINE("j 2f") TG_LINE("1:") TG_G_ALL_Y("flw") TG_LINE("2:")   \
            A(p, 0) A(p, 1) A(p, 2) A(p, 3) B(q, 0) B(q, 1) B(q, 2) B(q, 3) TG_LINE("beqz %[turns], 3f")               \
            TG_REPEAT("%[turns]", TURN) TG_G_FIRST_STEP(A, B) TG_G_SECOND_STEP(A, B) TG_REPEATED                       \
            TG_LINE("3: beqz %[two], 4f") TG_G_FIRST_STEP(A, B) TG_G_SECOND_STEP(TG_NOTHING, TG_NOTHING)               \
            TG_LINE("j 5f") TG_LINE("4:") TG_G_FIRST_STEP(TG_NOTHING, TG_NOTHING) TG_LINE("5:") TG_G_ALL_Y("fsw")      \
            : OUTPUTS                                                                                                  \
            : [y0] "r"(y), [y1] "r"(y1), [y2] "r"(y2), [y3] "r"(y3), [first] "r"(g->first),                            \
              [turns] "r"((g->n_k - 1) >> 1), [two] "r"((g->n_k - 1) & 1), [p_step] "r"(4 * g->a_by_k),                \
              [q_step] "r"(4 * g->b_by_k)                                                                              \
            : TG_G_CLOBBERS);                                                                                          \
    }
#define TG_G_ROWS_OF_A const float *p1 = a + g->a_by_m, *p2 = p1 + g->a_by_m, *p3 = p2 + g->a_by_m;
#define TG_G_ROWS_OF_B const float *q1 = b + g->b_by_n, *q2 = q1 + g->b_by_n, *q3 = q2 + g->b_by_n;
#define TG_G_OUT_A [p0] "+r"(a), [p1] "+r"(p1), [p2] "+r"(p2), [p3] "+r"(p3)
#define TG_G_OUT_B [q0] "+r"(b), [q1] "+r"(q1), [q2] "+r"(q2), [q3] "+r"(q3)
#define TG_G_OUT_NN TG_G_OUT_A, [q0] "+r"(b)
#define TG_G_OUT_NT TG_G_OUT_A, TG_G_OUT_B
#define TG_G_OUT_TN [p0] "+r"(a), [q0] "+r"(b)
#define TG_G_OUT_TT [p0] "+r"(a), TG_G_OUT_B
TG_G_BLOCK(nn, TG_ALONG, TG_ACROSS, 54, TG_G_ROWS_OF_A, TG_G_OUT_NN)
TG_G_BLOCK(nt, TG_ALONG, TG_ALONG, 56, TG_G_ROWS_OF_A TG_G_ROWS_OF_B, TG_G_OUT_NT)
TG_G_BLOCK(tn, TG_ACROSS, TG_ACROSS, 52, , TG_G_OUT_TN)
TG_G_BLOCK(tt, TG_ACROSS, TG_ALONG, 54, TG_G_ROWS_OF_B, TG_G_OUT_TT)
#define TG_INNER_GEMM

#endif
#endif
