/* Innermost loops for a core with hardware loops (Xpulp) that shares its FPU with another: where a multiply-add waits
 * for its turn, a load or an addition beside it costs nothing. So they stand between multiply-adds, and what a step
 * needs is loaded while the one before computes, as soon as a register is free. The order of the multiply-adds of each
 * output is that of the portable loops: so are the bits.
 *
 * Hardware loops need the chip, and instructions of four bytes; the simulator, and counting, run the portable loops. */
#ifndef TG_INNER_H
#define TG_INNER_H
#include "tg_block.h"
#include "tg_math.h"

#if defined(__riscv) && defined(TG_XPULP)

/* Several files have the same function: the linker keeps one of them. */
#define TG_ONCE __attribute__((weak, noinline, noclone))
#undef TG_APART
#define TG_APART TG_ONCE

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
#define TG_G_OUT_A [p0] "+&r"(a), [p1] "+&r"(p1), [p2] "+&r"(p2), [p3] "+&r"(p3)
#define TG_G_OUT_B [q0] "+&r"(b), [q1] "+&r"(q1), [q2] "+&r"(q2), [q3] "+&r"(q3)
#define TG_G_OUT_NN TG_G_OUT_A, [q0] "+&r"(b)
#define TG_G_OUT_NT TG_G_OUT_A, TG_G_OUT_B
#define TG_G_OUT_TN [p0] "+&r"(a), [q0] "+&r"(b)
#define TG_G_OUT_TT [p0] "+&r"(a), TG_G_OUT_B
TG_G_BLOCK(nn, TG_ALONG, TG_ACROSS, 54, TG_G_ROWS_OF_A, TG_G_OUT_NN)
TG_G_BLOCK(nt, TG_ALONG, TG_ALONG, 56, TG_G_ROWS_OF_A TG_G_ROWS_OF_B, TG_G_OUT_NT)
TG_G_BLOCK(tn, TG_ACROSS, TG_ACROSS, 52, , TG_G_OUT_TN)
TG_G_BLOCK(tt, TG_ACROSS, TG_ALONG, 54, TG_G_ROWS_OF_B, TG_G_OUT_TT)
#define TG_INNER_GEMM

/* ---- Rows of a matrix-vector product, both operands along k: four outputs, whose sums are in f0 to f3. A turn is four
 * k, x in f4 to f7 and the rows of b in f8 to f23; what the next k needs is loaded while this one computes. One to four
 * k are left behind the turns, in f4 and f8 to f11 from then on; nothing is read behind the last. */
#define TG_V_K(X, W0, W1, W2, W3, NEXT, N0, N1, N2, N3, AT)                                                            \
    TG_LINE("fmadd.s f0, f" #X ", f" #W0 ", f0") TG_LINE("flw f" #NEXT ", " #AT "(%[x])")                              \
    TG_LINE("fmadd.s f1, f" #X ", f" #W1 ", f1") TG_LINE("flw f" #N0 ", " #AT "(%[q0])")                               \
    TG_LINE("fmadd.s f2, f" #X ", f" #W2 ", f2") TG_LINE("flw f" #N1 ", " #AT "(%[q1])")                               \
    TG_LINE("fmadd.s f3, f" #X ", f" #W3 ", f3") TG_LINE("flw f" #N2 ", " #AT "(%[q2])")                               \
    TG_LINE("flw f" #N3 ", " #AT "(%[q3])")
#define TG_V_NEXT(BY)                                                                                                  \
    TG_LINE("addi %[x], %[x], " #BY) TG_LINE("addi %[q0], %[q0], " #BY) TG_LINE("addi %[q1], %[q1], " #BY)             \
    TG_LINE("addi %[q2], %[q2], " #BY) TG_LINE("addi %[q3], %[q3], " #BY)
#define TG_V_TURN                                                                                                      \
    TG_V_K(4, 8, 9, 10, 11, 5, 12, 13, 14, 15, 4) TG_V_K(5, 12, 13, 14, 15, 6, 16, 17, 18, 19, 8)                      \
    TG_V_K(6, 16, 17, 18, 19, 7, 20, 21, 22, 23, 12) TG_V_K(7, 20, 21, 22, 23, 4, 8, 9, 10, 11, 16) TG_V_NEXT(16)
#define TG_V_SUMS(OP)                                                                                                  \
    TG_LINE(OP " f0, 0(%[y0])") TG_LINE(OP " f1, 0(%[y1])") TG_LINE(OP " f2, 0(%[y2])") TG_LINE(OP " f3, 0(%[y3])")
TG_TEMPLATE void tg_inner_row(const float *x, const float *b, int b_by_n, float *y, int y_by_n, int n_k, int first)
{
    const float *q1 = b + b_by_n, *q2 = q1 + b_by_n, *q3 = q2 + b_by_n;
    float *y1 = y + y_by_n, *y2 = y1 + y_by_n, *y3 = y2 + y_by_n;
    int turns = (n_k - 1) >> 2, left = (n_k - 1) & 3;
    __asm__ volatile(
        TG_LINE("flw f4, 0(%[x])") TG_LINE("flw f8, 0(%[q0])") TG_LINE("flw f9, 0(%[q1])") TG_LINE("flw f10, 0(%[q2])")
        TG_LINE("flw f11, 0(%[q3])") TG_G_ZERO(0) TG_G_ZERO(1) TG_G_ZERO(2) TG_G_ZERO(3) TG_LINE("bnez %[first], 1f")
        TG_V_SUMS("flw") TG_LINE("1: beqz %[turns], 2f") TG_REPEAT("%[turns]", 41) TG_V_TURN TG_REPEATED
        TG_LINE("2: beqz %[left], 4f") TG_LINE("3: addi %[left], %[left], -1")
        TG_V_K(4, 8, 9, 10, 11, 5, 8, 9, 10, 11, 4) TG_V_NEXT(4) TG_LINE("fmv.s f4, f5") TG_LINE("bnez %[left], 3b")
        TG_LINE("4: fmadd.s f0, f4, f8, f0") TG_LINE("fmadd.s f1, f4, f9, f1") TG_LINE("fmadd.s f2, f4, f10, f2")
        TG_LINE("fmadd.s f3, f4, f11, f3") TG_V_SUMS("fsw")
        : [x] "+&r"(x), [q0] "+&r"(b), [q1] "+&r"(q1), [q2] "+&r"(q2), [q3] "+&r"(q3), [left] "+&r"(left)
        : [y0] "r"(y), [y1] "r"(y1), [y2] "r"(y2), [y3] "r"(y3), [turns] "r"(turns), [first] "r"(first)
        : TG_G_CLOBBERS);
}
/* The same where b lies across k: two k a turn, with x in f4 and f5, and rows of b in f8 to f15. */
#define TG_A_FMA(X, W0, W1, W2, W3, A, B, C)                                                                           \
    TG_LINE("fmadd.s f0, f" #X ", f" #W0 ", f0") A TG_LINE("fmadd.s f1, f" #X ", f" #W1 ", f1") B                      \
    TG_LINE("fmadd.s f2, f" #X ", f" #W2 ", f2") C TG_LINE("fmadd.s f3, f" #X ", f" #W3 ", f3")
#define TG_A_ROW(W0, W1, W2, W3)                                                                                       \
    TG_LINE("flw f" #W0 ", 0(%[q])") TG_LINE("flw f" #W1 ", 4(%[q])") TG_LINE("flw f" #W2 ", 8(%[q])")                 \
    TG_LINE("flw f" #W3 ", 12(%[q])")
#define TG_A_FIRST                                                                                                     \
    TG_A_FMA(4, 8, 9, 10, 11, TG_LINE("flw f5, 4(%[x])"), TG_LINE("add %[q], %[q], %[step]"), "")                      \
    TG_A_ROW(12, 13, 14, 15)
#define TG_A_SECOND                                                                                                    \
    TG_A_FMA(5, 12, 13, 14, 15, TG_LINE("addi %[x], %[x], 8"), TG_LINE("add %[q], %[q], %[step]"),                     \
             TG_LINE("flw f4, 0(%[x])"))                                                                               \
    TG_A_ROW(8, 9, 10, 11)
TG_TEMPLATE void tg_inner_row_across(const float *x, const float *b, int b_by_k, float *y, int y_by_n, int n_k,
                                     int first)
{
    float *y1 = y + y_by_n, *y2 = y1 + y_by_n, *y3 = y2 + y_by_n;
    __asm__ volatile(
        TG_LINE("flw f4, 0(%[x])") TG_A_ROW(8, 9, 10, 11) TG_G_ZERO(0) TG_G_ZERO(1) TG_G_ZERO(2) TG_G_ZERO(3)
        TG_LINE("bnez %[first], 1f") TG_V_SUMS("flw") TG_LINE("1: beqz %[turns], 2f") TG_REPEAT("%[turns]", 21)
        TG_A_FIRST TG_A_SECOND TG_REPEATED TG_LINE("2: beqz %[two], 3f") TG_A_FIRST
        TG_A_FMA(5, 12, 13, 14, 15, "", "", "") TG_LINE("j 4f") TG_LINE("3:") TG_A_FMA(4, 8, 9, 10, 11, "", "", "")
        TG_LINE("4:") TG_V_SUMS("fsw")
        : [x] "+&r"(x), [q] "+&r"(b)
        : [y0] "r"(y), [y1] "r"(y1), [y2] "r"(y2), [y3] "r"(y3), [turns] "r"((n_k - 1) >> 1), [two] "r"((n_k - 1) & 1),
          [step] "r"(4 * b_by_k), [first] "r"(first)
        : TG_G_CLOBBERS);
}
#define TG_INNER_ROW

/* ---- Convolutions with three taps in a row: four channels by four columns, channel by channel and row by row. Sums are
 * in f0 to f15, the row's six elements in f16 to f21, weights in the rest. RIGHT is for taps from left to right, LEFT for
 * the other way, as seen in a mirror: element 0 is then the rightmost. The outermost lane of the first tap (LOW) and of
 * the last (HIGH) may not exist. While a row computes, the place of the next one is found: a row or a channel further,
 * or, behind the last, the same again. */

#define TG_C_FMA(S, X, W) TG_LINE("fmadd.s " S ", " X ", " W ", " S)
#define TG_C_WITH(TEXT) TEXT
#define TG_C_WITHOUT(TEXT) ""
#define TG_C_RIGHT_00 "f0"
#define TG_C_RIGHT_01 "f1"
#define TG_C_RIGHT_02 "f2"
#define TG_C_RIGHT_03 "f3"
#define TG_C_RIGHT_10 "f4"
#define TG_C_RIGHT_11 "f5"
#define TG_C_RIGHT_12 "f6"
#define TG_C_RIGHT_13 "f7"
#define TG_C_RIGHT_20 "f8"
#define TG_C_RIGHT_21 "f9"
#define TG_C_RIGHT_22 "f10"
#define TG_C_RIGHT_23 "f11"
#define TG_C_RIGHT_30 "f12"
#define TG_C_RIGHT_31 "f13"
#define TG_C_RIGHT_32 "f14"
#define TG_C_RIGHT_33 "f15"
#define TG_C_LEFT_00 "f3"
#define TG_C_LEFT_01 "f2"
#define TG_C_LEFT_02 "f1"
#define TG_C_LEFT_03 "f0"
#define TG_C_LEFT_10 "f7"
#define TG_C_LEFT_11 "f6"
#define TG_C_LEFT_12 "f5"
#define TG_C_LEFT_13 "f4"
#define TG_C_LEFT_20 "f11"
#define TG_C_LEFT_21 "f10"
#define TG_C_LEFT_22 "f9"
#define TG_C_LEFT_23 "f8"
#define TG_C_LEFT_30 "f15"
#define TG_C_LEFT_31 "f14"
#define TG_C_LEFT_32 "f13"
#define TG_C_LEFT_33 "f12"
#define TG_C_RIGHT_X0 "0(%[x])"
#define TG_C_RIGHT_X1 "4(%[x])"
#define TG_C_RIGHT_X2 "8(%[x])"
#define TG_C_RIGHT_X3 "12(%[x])"
#define TG_C_RIGHT_X4 "16(%[x])"
#define TG_C_RIGHT_X5 "20(%[x])"
#define TG_C_LEFT_X0 "20(%[x])"
#define TG_C_LEFT_X1 "16(%[x])"
#define TG_C_LEFT_X2 "12(%[x])"
#define TG_C_LEFT_X3 "8(%[x])"
#define TG_C_LEFT_X4 "4(%[x])"
#define TG_C_LEFT_X5 "0(%[x])"
#define TG_C_ROW(D, LOW, HIGH)                                                                                         \
    LOW(TG_C_FMA(D##_00, "f16", "f30")) TG_LINE("flw f18, " D##_X2)                                                    \
    TG_C_FMA(D##_01, "f17", "f30") TG_LINE("flw f19, " D##_X3)                                                         \
    LOW(TG_C_FMA(D##_10, "f16", "f31")) TG_LINE("flw f24, 0(%[w2])")                                                   \
    TG_C_FMA(D##_11, "f17", "f31") TG_LINE("flw f25, 0(%[w3])")                                                        \
    TG_C_FMA(D##_02, "f18", "f30") TG_LINE("flw f20, " D##_X4)                                                         \
    TG_C_FMA(D##_03, "f19", "f30") TG_LINE("flw f26, 4(%[w0])")                                                        \
    TG_C_FMA(D##_12, "f18", "f31") TG_LINE("flw f27, 4(%[w1])")                                                        \
    TG_C_FMA(D##_13, "f19", "f31") TG_LINE("flw f28, 4(%[w2])")                                                        \
    LOW(TG_C_FMA(D##_20, "f16", "f24")) TG_LINE("flw f29, 4(%[w3])")                                                   \
    TG_C_FMA(D##_21, "f17", "f24") HIGH(TG_LINE("flw f21, " D##_X5))                                                   \
    TG_C_FMA(D##_22, "f18", "f24") TG_LINE("flw f22, 8(%[w0])")                                                        \
    TG_C_FMA(D##_23, "f19", "f24") TG_LINE("flw f23, 8(%[w1])")                                                        \
    LOW(TG_C_FMA(D##_30, "f16", "f25")) TG_LINE("addi %[left], %[left], -1")                                           \
    TG_C_FMA(D##_31, "f17", "f25") TG_LINE("addi %[row], %[row], -1")                                                  \
    TG_C_FMA(D##_32, "f18", "f25") TG_LINE("snez %[more], %[left]")                                                    \
    TG_C_FMA(D##_33, "f19", "f25") TG_LINE("seqz %[end], %[row]")                                                      \
    TG_C_FMA(D##_00, "f17", "f26") TG_LINE("flw f24, 8(%[w2])")                                                        \
    TG_C_FMA(D##_01, "f18", "f26") TG_LINE("flw f25, 8(%[w3])")                                                        \
    TG_C_FMA(D##_02, "f19", "f26") TG_LINE("neg %[more], %[more]")                                                     \
    TG_C_FMA(D##_03, "f20", "f26") TG_LINE("neg %[end], %[end]")                                                       \
    TG_C_FMA(D##_10, "f17", "f27") TG_LINE("and %[by], %[end], %[x_turn]")                                             \
    TG_C_FMA(D##_11, "f18", "f27") TG_LINE("add %[by], %[by], %[x_row]")                                               \
    TG_C_FMA(D##_12, "f19", "f27") TG_LINE("and %[by], %[by], %[more]")                                                \
    TG_C_FMA(D##_13, "f20", "f27") TG_LINE("add %[x], %[x], %[by]")                                                    \
    TG_C_FMA(D##_20, "f17", "f28") TG_LINE("and %[by], %[end], %[rows]")                                               \
    TG_C_FMA(D##_21, "f18", "f28") TG_LINE("add %[row], %[row], %[by]")                                                \
    TG_C_FMA(D##_22, "f19", "f28") TG_LINE("and %[by], %[end], %[w_turn]")                                             \
    TG_C_FMA(D##_23, "f20", "f28") TG_LINE("add %[by], %[by], %[w_row]")                                               \
    TG_C_FMA(D##_30, "f17", "f29") TG_LINE("and %[by], %[by], %[more]")                                                \
    TG_C_FMA(D##_31, "f18", "f29") TG_LINE("add %[w0], %[w0], %[by]")                                                  \
    TG_C_FMA(D##_32, "f19", "f29") TG_LINE("add %[w1], %[w1], %[by]")                                                  \
    TG_C_FMA(D##_33, "f20", "f29") TG_LINE("add %[w2], %[w2], %[by]")                                                  \
    TG_C_FMA(D##_00, "f18", "f22") TG_LINE("add %[w3], %[w3], %[by]")                                                  \
    TG_C_FMA(D##_01, "f19", "f22") LOW(TG_LINE("flw f16, " D##_X0))                                                    \
    TG_C_FMA(D##_02, "f20", "f22") TG_LINE("flw f17, " D##_X1)                                                         \
    HIGH(TG_C_FMA(D##_03, "f21", "f22")) TG_LINE("flw f30, 0(%[w0])")                                                  \
    TG_C_FMA(D##_10, "f18", "f23") TG_LINE("flw f31, 0(%[w1])") TG_C_FMA(D##_11, "f19", "f23")                         \
    TG_C_FMA(D##_12, "f20", "f23") HIGH(TG_C_FMA(D##_13, "f21", "f23")) TG_C_FMA(D##_20, "f18", "f24")                 \
    TG_C_FMA(D##_21, "f19", "f24") TG_C_FMA(D##_22, "f20", "f24") HIGH(TG_C_FMA(D##_23, "f21", "f24"))                 \
    TG_C_FMA(D##_30, "f18", "f25") TG_C_FMA(D##_31, "f19", "f25") TG_C_FMA(D##_32, "f20", "f25")                       \
    HIGH(TG_C_FMA(D##_33, "f21", "f25"))
/* `COUNT` is how many instructions a row is. */
#define TG_C_ROWS(D, LOW, HIGH, COUNT)                                                                                 \
    LOW(TG_LINE("flw f16, " D##_X0)) TG_LINE("flw f17, " D##_X1) TG_LINE("flw f30, 0(%[w0])")                          \
    TG_LINE("flw f31, 0(%[w1])") TG_REPEAT("%[left]", COUNT) TG_C_ROW(D, LOW, HIGH) TG_REPEATED

typedef struct {
    int total, rows;                   /* of channels times rows, and of a channel; at least one */
    int x_row, x_turn, w_row, w_turn;  /* bytes from row to row, and how many more from channel to channel */
    int w_out, y_out, first;
} tg_inner_conv;

#define TG_C_CALL(ALL_Y, TEXT)                                                                                         \
    __asm__ volatile(TG_LINE("beqz %[first], 1f") TG_G_ALL_ZERO TG_LINE("j 2f") TG_LINE("1:") ALL_Y("flw")        \
                     TG_LINE("2:") TEXT ALL_Y("fsw")                                                              \
                     : [x] "+&r"(x), [w0] "+&r"(w), [w1] "+&r"(w1), [w2] "+&r"(w2), [w3] "+&r"(w3), [left] "+&r"(left),\
                       [row] "+&r"(row), [more] "=&r"(more), [end] "=&r"(end), [by] "=&r"(by)                          \
                     : [y0] "r"(y), [y1] "r"(y1), [y2] "r"(y2), [y3] "r"(y3), [first] "r"(c->first),                   \
                       [rows] "r"(c->rows), [x_row] "r"(c->x_row), [x_turn] "r"(c->x_turn), [w_row] "r"(c->w_row),     \
                       [w_turn] "r"(c->w_turn)                                                                         \
                     : TG_G_CLOBBERS)
#define TG_C_BLOCK(NAME, D)                                                                                            \
    TG_APART void tg_inner_conv_##NAME(const float *x, const float *w, float *y, const tg_inner_conv *c, int outs,     \
                                       int has_low, int has_high)                                                      \
    {                                                                                                                  \
        const float *w1 = w + (outs > 1 ? c->w_out : 0), *w2 = w1 + (outs > 2 ? c->w_out : 0);                         \
        const float *w3 = w2 + (outs > 3 ? c->w_out : 0);                                                              \
        float *y1 = y + (outs > 1 ? c->y_out : 0), *y2 = y1 + (outs > 2 ? c->y_out : 0);                               \
        float *y3 = y2 + (outs > 3 ? c->y_out : 0);                                                                    \
        int left = c->total, row = c->rows, more, end, by;                                                             \
        if (has_low && has_high)                                                                                       \
            TG_C_CALL(TG_G_ALL_Y, TG_C_ROWS(D, TG_C_WITH, TG_C_WITH, 85));                                             \
        else if (has_high)                                                                                             \
            TG_C_CALL(TG_G_ALL_Y, TG_C_ROWS(D, TG_C_WITHOUT, TG_C_WITH, 80));                                          \
        else if (has_low)                                                                                              \
            TG_C_CALL(TG_G_ALL_Y, TG_C_ROWS(D, TG_C_WITH, TG_C_WITHOUT, 80));                                          \
        else                                                                                                           \
            TG_C_CALL(TG_G_ALL_Y, TG_C_ROWS(D, TG_C_WITHOUT, TG_C_WITHOUT, 75));                                       \
    }
TG_C_BLOCK(right, TG_C_RIGHT)
TG_C_BLOCK(left, TG_C_LEFT)
#define TG_INNER_CONV

/* ---- Gradients of convolutions with stride 2: every other output of a row sees the same taps, one or two of three. Four
 * channels by four such outputs, channel by channel and row by row, as above. Two taps: the first tap's elements are
 * f17 to f20, the second's, one to the left, f16 to f19; f20 or f16 may not exist. Sums are in f0 to f15, weights in f22
 * to f29. */
#define TG_S_TWO(LOW, HIGH)                                                                                            \
    TG_LINE("fmadd.s f0, f17, f22, f0") TG_LINE("flw f19, 12(%[x])")                                                   \
    TG_LINE("fmadd.s f1, f18, f22, f1") TG_LINE("flw f24, 0(%[w2])")                                                   \
    TG_LINE("fmadd.s f4, f17, f23, f4") HIGH(TG_LINE("flw f20, 16(%[x])"))                                             \
    TG_LINE("fmadd.s f5, f18, f23, f5") TG_LINE("flw f25, 0(%[w3])")                                                   \
    TG_LINE("fmadd.s f2, f19, f22, f2") LOW(TG_LINE("flw f16, 0(%[x])"))                                               \
    HIGH(TG_LINE("fmadd.s f3, f20, f22, f3")) TG_LINE("flw f26, 8(%[w0])")                                             \
    TG_LINE("fmadd.s f6, f19, f23, f6") TG_LINE("flw f27, 8(%[w1])")                                                   \
    HIGH(TG_LINE("fmadd.s f7, f20, f23, f7")) TG_LINE("flw f28, 8(%[w2])")                                             \
    TG_LINE("fmadd.s f8, f17, f24, f8") TG_LINE("flw f29, 8(%[w3])")                                                   \
    TG_LINE("fmadd.s f9, f18, f24, f9") TG_LINE("addi %[left], %[left], -1")                                           \
    TG_LINE("fmadd.s f10, f19, f24, f10") TG_LINE("addi %[row], %[row], -1")                                           \
    HIGH(TG_LINE("fmadd.s f11, f20, f24, f11")) TG_LINE("snez %[more], %[left]")                                       \
    TG_LINE("fmadd.s f12, f17, f25, f12") TG_LINE("seqz %[end], %[row]")                                               \
    TG_LINE("fmadd.s f13, f18, f25, f13") TG_LINE("neg %[more], %[more]")                                              \
    TG_LINE("fmadd.s f14, f19, f25, f14") TG_LINE("neg %[end], %[end]")                                                \
    HIGH(TG_LINE("fmadd.s f15, f20, f25, f15")) TG_LINE("and %[by], %[end], %[x_turn]")                                \
    LOW(TG_LINE("fmadd.s f0, f16, f26, f0")) TG_LINE("add %[by], %[by], %[x_row]")                                     \
    TG_LINE("fmadd.s f1, f17, f26, f1") TG_LINE("and %[by], %[by], %[more]")                                           \
    TG_LINE("fmadd.s f2, f18, f26, f2") TG_LINE("add %[x], %[x], %[by]")                                               \
    TG_LINE("fmadd.s f3, f19, f26, f3") TG_LINE("and %[by], %[end], %[rows]")                                          \
    LOW(TG_LINE("fmadd.s f4, f16, f27, f4")) TG_LINE("add %[row], %[row], %[by]")                                      \
    TG_LINE("fmadd.s f5, f17, f27, f5") TG_LINE("and %[by], %[end], %[w_turn]")                                        \
    TG_LINE("fmadd.s f6, f18, f27, f6") TG_LINE("add %[by], %[by], %[w_row]")                                          \
    TG_LINE("fmadd.s f7, f19, f27, f7") TG_LINE("and %[by], %[by], %[more]")                                           \
    LOW(TG_LINE("fmadd.s f8, f16, f28, f8")) TG_LINE("add %[w0], %[w0], %[by]")                                        \
    TG_LINE("fmadd.s f9, f17, f28, f9") TG_LINE("add %[w1], %[w1], %[by]")                                             \
    TG_LINE("fmadd.s f10, f18, f28, f10") TG_LINE("add %[w2], %[w2], %[by]")                                           \
    TG_LINE("fmadd.s f11, f19, f28, f11") TG_LINE("add %[w3], %[w3], %[by]")                                           \
    LOW(TG_LINE("fmadd.s f12, f16, f29, f12")) TG_LINE("flw f22, 0(%[w0])")                                            \
    TG_LINE("fmadd.s f13, f17, f29, f13") TG_LINE("flw f23, 0(%[w1])")                                                 \
    TG_LINE("fmadd.s f14, f18, f29, f14") TG_LINE("flw f17, 4(%[x])")                                                  \
    TG_LINE("fmadd.s f15, f19, f29, f15") TG_LINE("flw f18, 8(%[x])")
#define TG_S_ONE                                                                                                       \
    TG_LINE("fmadd.s f0, f16, f22, f0") TG_LINE("flw f24, 0(%[w2])")                                                   \
    TG_LINE("fmadd.s f1, f17, f22, f1") TG_LINE("flw f18, 8(%[x])")                                                    \
    TG_LINE("fmadd.s f4, f16, f23, f4") TG_LINE("flw f25, 0(%[w3])")                                                   \
    TG_LINE("fmadd.s f5, f17, f23, f5") TG_LINE("flw f19, 12(%[x])")                                                   \
    TG_LINE("fmadd.s f2, f18, f22, f2") TG_LINE("addi %[left], %[left], -1") TG_LINE("addi %[row], %[row], -1")        \
    TG_LINE("fmadd.s f3, f19, f22, f3") TG_LINE("snez %[more], %[left]") TG_LINE("seqz %[end], %[row]")                \
    TG_LINE("fmadd.s f6, f18, f23, f6") TG_LINE("neg %[more], %[more]") TG_LINE("neg %[end], %[end]")                  \
    TG_LINE("fmadd.s f7, f19, f23, f7") TG_LINE("and %[by], %[end], %[x_turn]") TG_LINE("add %[by], %[by], %[x_row]")  \
    TG_LINE("fmadd.s f8, f16, f24, f8") TG_LINE("and %[by], %[by], %[more]") TG_LINE("add %[x], %[x], %[by]")          \
    TG_LINE("fmadd.s f9, f17, f24, f9") TG_LINE("and %[by], %[end], %[rows]") TG_LINE("add %[row], %[row], %[by]")     \
    TG_LINE("fmadd.s f10, f18, f24, f10") TG_LINE("and %[by], %[end], %[w_turn]") TG_LINE("add %[by], %[by], %[w_row]")\
    TG_LINE("fmadd.s f11, f19, f24, f11") TG_LINE("and %[by], %[by], %[more]") TG_LINE("add %[w0], %[w0], %[by]")      \
    TG_LINE("fmadd.s f12, f16, f25, f12") TG_LINE("add %[w1], %[w1], %[by]") TG_LINE("add %[w2], %[w2], %[by]")        \
    TG_LINE("fmadd.s f13, f17, f25, f13") TG_LINE("add %[w3], %[w3], %[by]")                                           \
    TG_LINE("fmadd.s f14, f18, f25, f14") TG_LINE("flw f16, 0(%[x])") TG_LINE("flw f17, 4(%[x])")                      \
    TG_LINE("fmadd.s f15, f19, f25, f15") TG_LINE("flw f22, 0(%[w0])") TG_LINE("flw f23, 0(%[w1])")
#define TG_S_Y(OP, S0, S1, S2, S3, Y)                                                                                  \
    TG_LINE(OP " f" #S0 ", 0(%[" #Y "])") TG_LINE(OP " f" #S1 ", 8(%[" #Y "])")                                        \
    TG_LINE(OP " f" #S2 ", 16(%[" #Y "])") TG_LINE(OP " f" #S3 ", 24(%[" #Y "])")
#define TG_S_ALL_Y(OP)                                                                                                 \
    TG_S_Y(OP, 0, 1, 2, 3, y0) TG_S_Y(OP, 4, 5, 6, 7, y1) TG_S_Y(OP, 8, 9, 10, 11, y2) TG_S_Y(OP, 12, 13, 14, 15, y3)
#define TG_S_ROWS(BEGIN, ROW, COUNT) BEGIN TG_REPEAT("%[left]", COUNT) ROW TG_REPEATED
#define TG_S_BEGIN_TWO                                                                                                 \
    TG_LINE("flw f17, 4(%[x])") TG_LINE("flw f18, 8(%[x])") TG_LINE("flw f22, 0(%[w0])") TG_LINE("flw f23, 0(%[w1])")
#define TG_S_BEGIN_ONE                                                                                                 \
    TG_LINE("flw f16, 0(%[x])") TG_LINE("flw f17, 4(%[x])") TG_LINE("flw f22, 0(%[w0])") TG_LINE("flw f23, 0(%[w1])")
/* `x` is at the element of the last tap and the first output; `taps` are 1 or 2. */
TG_APART void tg_inner_gather(const float *x, const float *w, float *y, const tg_inner_conv *c, int outs, int taps,
                              int has_low, int has_high)
{
    const float *w1 = w + (outs > 1 ? c->w_out : 0), *w2 = w1 + (outs > 2 ? c->w_out : 0);
    const float *w3 = w2 + (outs > 3 ? c->w_out : 0);
    float *y1 = y + (outs > 1 ? c->y_out : 0), *y2 = y1 + (outs > 2 ? c->y_out : 0);
    float *y3 = y2 + (outs > 3 ? c->y_out : 0);
    int left = c->total, row = c->rows, more, end, by;
    if (taps == 1)
        TG_C_CALL(TG_S_ALL_Y, TG_S_ROWS(TG_S_BEGIN_ONE, TG_S_ONE, 43));
    else if (has_low && has_high)
        TG_C_CALL(TG_S_ALL_Y, TG_S_ROWS(TG_S_BEGIN_TWO, TG_S_TWO(TG_C_WITH, TG_C_WITH), 64));
    else if (has_low)
        TG_C_CALL(TG_S_ALL_Y, TG_S_ROWS(TG_S_BEGIN_TWO, TG_S_TWO(TG_C_WITH, TG_C_WITHOUT), 59));
    else if (has_high)
        TG_C_CALL(TG_S_ALL_Y, TG_S_ROWS(TG_S_BEGIN_TWO, TG_S_TWO(TG_C_WITHOUT, TG_C_WITH), 59));
    else
        TG_C_CALL(TG_S_ALL_Y, TG_S_ROWS(TG_S_BEGIN_TWO, TG_S_TWO(TG_C_WITHOUT, TG_C_WITHOUT), 54));
}
#define TG_INNER_GATHER

/* ---- Weight gradients of three neighbouring taps: four channels by three, over rows of whole blocks of four columns.
 * Sums are in f0 to f11, the image from f12 on, two columns of gradients in f18 to f25. Of a row, the first tap of the
 * first column (`low`) and the last tap of the last one (`high`) may be outside the image. What a block begins with is
 * loaded by the one before; behind a row, up to three elements that are not used. */
#define TG_W_BLOCK_1                                                                                                   \
    TG_LINE("beqz %[low], 3f") TG_LINE("fmadd.s f0, f18, f12, f0") TG_LINE("fmadd.s f3, f19, f12, f3")                 \
    TG_LINE("fmadd.s f6, f20, f12, f6") TG_LINE("fmadd.s f9, f21, f12, f9") TG_LINE("3:")                              \
    TG_LINE("fmadd.s f1, f18, f13, f1") TG_LINE("flw f15, 12(%[x])") TG_LINE("fmadd.s f4, f19, f13, f4")               \
    TG_LINE("flw f22, 4(%[d0])") TG_LINE("fmadd.s f7, f20, f13, f7") TG_LINE("flw f23, 4(%[d1])")                      \
    TG_LINE("fmadd.s f10, f21, f13, f10") TG_LINE("flw f24, 4(%[d2])") TG_LINE("fmadd.s f2, f18, f14, f2")             \
    TG_LINE("flw f25, 4(%[d3])") TG_LINE("fmadd.s f5, f19, f14, f5") TG_LINE("addi %[left], %[left], -1")              \
    TG_LINE("fmadd.s f8, f20, f14, f8") TG_LINE("seqz %[skips], %[left]") TG_LINE("fmadd.s f11, f21, f14, f11")        \
    TG_LINE("fmadd.s f0, f22, f13, f0") TG_LINE("flw f16, 16(%[x])") TG_LINE("fmadd.s f3, f23, f13, f3")               \
    TG_LINE("flw f18, 8(%[d0])") TG_LINE("fmadd.s f6, f24, f13, f6") TG_LINE("flw f19, 8(%[d1])")                      \
    TG_LINE("fmadd.s f9, f25, f13, f9") TG_LINE("flw f20, 8(%[d2])") TG_LINE("fmadd.s f1, f22, f14, f1")               \
    TG_LINE("flw f21, 8(%[d3])") TG_LINE("fmadd.s f4, f23, f14, f4") TG_LINE("and %[skips], %[skips], %[no_high]")     \
    TG_LINE("fmadd.s f7, f24, f14, f7") TG_LINE("fmadd.s f10, f25, f14, f10") TG_LINE("fmadd.s f2, f22, f15, f2")      \
    TG_LINE("fmadd.s f5, f23, f15, f5") TG_LINE("fmadd.s f8, f24, f15, f8") TG_LINE("fmadd.s f11, f25, f15, f11")      \
    TG_LINE("fmadd.s f0, f18, f14, f0") TG_LINE("flw f17, 20(%[x])") TG_LINE("fmadd.s f3, f19, f14, f3")               \
    TG_LINE("flw f22, 12(%[d0])") TG_LINE("fmadd.s f6, f20, f14, f6") TG_LINE("flw f23, 12(%[d1])")                    \
    TG_LINE("fmadd.s f9, f21, f14, f9") TG_LINE("flw f24, 12(%[d2])") TG_LINE("fmadd.s f1, f18, f15, f1")              \
    TG_LINE("flw f25, 12(%[d3])") TG_LINE("fmadd.s f4, f19, f15, f4") TG_LINE("addi %[x], %[x], 16")                   \
    TG_LINE("fmadd.s f7, f20, f15, f7") TG_LINE("addi %[d0], %[d0], 16") TG_LINE("fmadd.s f10, f21, f15, f10")         \
    TG_LINE("addi %[d1], %[d1], 16") TG_LINE("fmadd.s f2, f18, f16, f2") TG_LINE("addi %[d2], %[d2], 16")              \
    TG_LINE("fmadd.s f5, f19, f16, f5") TG_LINE("addi %[d3], %[d3], 16") TG_LINE("fmadd.s f8, f20, f16, f8")           \
    TG_LINE("fmadd.s f11, f21, f16, f11") TG_LINE("fmadd.s f0, f22, f15, f0") TG_LINE("flw f12, 0(%[x])")              \
    TG_LINE("fmadd.s f3, f23, f15, f3") TG_LINE("flw f13, 4(%[x])") TG_LINE("fmadd.s f6, f24, f15, f6")                \
    TG_LINE("flw f14, 8(%[x])") TG_LINE("fmadd.s f9, f25, f15, f9") TG_LINE("flw f18, 0(%[d0])")                       \
    TG_LINE("fmadd.s f1, f22, f16, f1") TG_LINE("flw f19, 0(%[d1])") TG_LINE("fmadd.s f4, f23, f16, f4")               \
    TG_LINE("flw f20, 0(%[d2])") TG_LINE("fmadd.s f7, f24, f16, f7") TG_LINE("flw f21, 0(%[d3])")                      \
    TG_LINE("fmadd.s f10, f25, f16, f10") TG_LINE("bnez %[skips], 4f") TG_LINE("fmadd.s f2, f22, f17, f2")             \
    TG_LINE("fmadd.s f5, f23, f17, f5") TG_LINE("fmadd.s f8, f24, f17, f8") TG_LINE("fmadd.s f11, f25, f17, f11")      \
    TG_LINE("4: li %[low], 1")
#define TG_W_BLOCK_2                                                                                                   \
    TG_LINE("beqz %[low], 3f") TG_LINE("fmadd.s f0, f18, f12, f0") TG_LINE("fmadd.s f3, f19, f12, f3")                 \
    TG_LINE("fmadd.s f6, f20, f12, f6") TG_LINE("fmadd.s f9, f21, f12, f9") TG_LINE("3:")                              \
    TG_LINE("fmadd.s f1, f18, f13, f1") TG_LINE("flw f15, 12(%[x])") TG_LINE("fmadd.s f4, f19, f13, f4")               \
    TG_LINE("flw f16, 16(%[x])") TG_LINE("fmadd.s f7, f20, f13, f7") TG_LINE("flw f22, 4(%[d0])")                      \
    TG_LINE("fmadd.s f10, f21, f13, f10") TG_LINE("flw f23, 4(%[d1])") TG_LINE("fmadd.s f2, f18, f14, f2")             \
    TG_LINE("flw f24, 4(%[d2])") TG_LINE("fmadd.s f5, f19, f14, f5") TG_LINE("flw f25, 4(%[d3])")                      \
    TG_LINE("fmadd.s f8, f20, f14, f8") TG_LINE("addi %[left], %[left], -1") TG_LINE("fmadd.s f11, f21, f14, f11")     \
    TG_LINE("seqz %[skips], %[left]") TG_LINE("fmadd.s f0, f22, f14, f0") TG_LINE("flw f17, 20(%[x])")                 \
    TG_LINE("fmadd.s f3, f23, f14, f3") TG_LINE("flw f26, 24(%[x])") TG_LINE("fmadd.s f6, f24, f14, f6")               \
    TG_LINE("flw f18, 8(%[d0])") TG_LINE("fmadd.s f9, f25, f14, f9") TG_LINE("flw f19, 8(%[d1])")                      \
    TG_LINE("fmadd.s f1, f22, f15, f1") TG_LINE("flw f20, 8(%[d2])") TG_LINE("fmadd.s f4, f23, f15, f4")               \
    TG_LINE("flw f21, 8(%[d3])") TG_LINE("fmadd.s f7, f24, f15, f7") TG_LINE("and %[skips], %[skips], %[no_high]")     \
    TG_LINE("fmadd.s f10, f25, f15, f10") TG_LINE("fmadd.s f2, f22, f16, f2") TG_LINE("fmadd.s f5, f23, f16, f5")      \
    TG_LINE("fmadd.s f8, f24, f16, f8") TG_LINE("fmadd.s f11, f25, f16, f11") TG_LINE("fmadd.s f0, f18, f16, f0")      \
    TG_LINE("flw f27, 28(%[x])") TG_LINE("fmadd.s f3, f19, f16, f3") TG_LINE("flw f28, 32(%[x])")                      \
    TG_LINE("fmadd.s f6, f20, f16, f6") TG_LINE("flw f22, 12(%[d0])") TG_LINE("fmadd.s f9, f21, f16, f9")              \
    TG_LINE("flw f23, 12(%[d1])") TG_LINE("fmadd.s f1, f18, f17, f1") TG_LINE("flw f24, 12(%[d2])")                    \
    TG_LINE("fmadd.s f4, f19, f17, f4") TG_LINE("flw f25, 12(%[d3])") TG_LINE("fmadd.s f7, f20, f17, f7")              \
    TG_LINE("addi %[x], %[x], 32") TG_LINE("fmadd.s f10, f21, f17, f10") TG_LINE("addi %[d0], %[d0], 16")              \
    TG_LINE("fmadd.s f2, f18, f26, f2") TG_LINE("addi %[d1], %[d1], 16") TG_LINE("fmadd.s f5, f19, f26, f5")           \
    TG_LINE("addi %[d2], %[d2], 16") TG_LINE("fmadd.s f8, f20, f26, f8") TG_LINE("addi %[d3], %[d3], 16")              \
    TG_LINE("fmadd.s f11, f21, f26, f11") TG_LINE("fmadd.s f0, f22, f26, f0") TG_LINE("flw f12, 0(%[x])")              \
    TG_LINE("fmadd.s f3, f23, f26, f3") TG_LINE("flw f13, 4(%[x])") TG_LINE("fmadd.s f6, f24, f26, f6")                \
    TG_LINE("flw f14, 8(%[x])") TG_LINE("fmadd.s f9, f25, f26, f9") TG_LINE("flw f18, 0(%[d0])")                       \
    TG_LINE("fmadd.s f1, f22, f27, f1") TG_LINE("flw f19, 0(%[d1])") TG_LINE("fmadd.s f4, f23, f27, f4")               \
    TG_LINE("flw f20, 0(%[d2])") TG_LINE("fmadd.s f7, f24, f27, f7") TG_LINE("flw f21, 0(%[d3])")                      \
    TG_LINE("fmadd.s f10, f25, f27, f10") TG_LINE("bnez %[skips], 4f") TG_LINE("fmadd.s f2, f22, f28, f2")             \
    TG_LINE("fmadd.s f5, f23, f28, f5") TG_LINE("fmadd.s f8, f24, f28, f8") TG_LINE("fmadd.s f11, f25, f28, f11")      \
    TG_LINE("4: li %[low], 1")
typedef struct {
    int blocks, rows;   /* of a row of the map, and how many such; at least one each */
    int x_row, d_row;   /* bytes from behind one row to the next */
    int d_out, dw_out;  /* elements from channel to channel */
    int no_low, no_high;
} tg_inner_weight;

#define TG_W_ALL(OP)                                                                                                   \
    TG_W_THREE(OP, 0, 1, 2, y0) TG_W_THREE(OP, 3, 4, 5, y1) TG_W_THREE(OP, 6, 7, 8, y2) TG_W_THREE(OP, 9, 10, 11, y3)
#define TG_W_THREE(OP, S0, S1, S2, Y)                                                                                  \
    TG_LINE(OP " f" #S0 ", 0(%[" #Y "])") TG_LINE(OP " f" #S1 ", 4(%[" #Y "])") TG_LINE(OP " f" #S2 ", 8(%[" #Y "])")
#define TG_W_ROWS(BLOCK, COUNT)                                                                                        \
    TG_LINE("2: mv %[left], %[blocks]") TG_LINE("xori %[low], %[no_low], 1") TG_LINE("beqz %[low], 5f")                \
    TG_LINE("flw f12, 0(%[x])") TG_LINE("5: flw f13, 4(%[x])") TG_LINE("flw f14, 8(%[x])")                             \
    TG_LINE("flw f18, 0(%[d0])") TG_LINE("flw f19, 0(%[d1])") TG_LINE("flw f20, 0(%[d2])")                             \
    TG_LINE("flw f21, 0(%[d3])")                                                                                       \
    TG_REPEAT("%[blocks]", COUNT) BLOCK TG_REPEATED TG_LINE("add %[x], %[x], %[x_row]")                                \
    TG_LINE("add %[d0], %[d0], %[d_row]") TG_LINE("add %[d1], %[d1], %[d_row]") TG_LINE("add %[d2], %[d2], %[d_row]")  \
    TG_LINE("add %[d3], %[d3], %[d_row]") TG_LINE("addi %[rows], %[rows], -1") TG_LINE("bnez %[rows], 2b")
#define TG_W_FUNCTION(STRIDE, COUNT)                                                                                   \
    TG_APART void tg_inner_weight_##STRIDE(const float *x, const float *dy, float *dw, const tg_inner_weight *p,       \
                                           int outs, int first)                                                        \
    {                                                                                                                  \
        const float *d1 = dy + (outs > 1 ? p->d_out : 0), *d2 = d1 + (outs > 2 ? p->d_out : 0);                        \
        const float *d3 = d2 + (outs > 3 ? p->d_out : 0);                                                              \
        float *y1 = dw + (outs > 1 ? p->dw_out : 0), *y2 = y1 + (outs > 2 ? p->dw_out : 0);                            \
        float *y3 = y2 + (outs > 3 ? p->dw_out : 0);                                                                   \
        int rows = p->rows, left, low, skips;                                                                          \
        __asm__ volatile(TG_LINE("beqz %[first], 1f") TG_G_ALL_ZERO TG_LINE("j 2f") TG_LINE("1:") TG_W_ALL("flw")      \
                         TG_W_ROWS(TG_W_BLOCK_##STRIDE, COUNT) TG_W_ALL("fsw")                                         \
                         : [x] "+&r"(x), [d0] "+&r"(dy), [d1] "+&r"(d1), [d2] "+&r"(d2), [d3] "+&r"(d3),               \
                           [rows] "+&r"(rows), [left] "=&r"(left), [low] "=&r"(low), [skips] "=&r"(skips)              \
                         : [y0] "r"(dw), [y1] "r"(y1), [y2] "r"(y2), [y3] "r"(y3), [first] "r"(first),                 \
                           [blocks] "r"(p->blocks), [x_row] "r"(p->x_row), [d_row] "r"(p->d_row),                      \
                           [no_low] "r"(p->no_low), [no_high] "r"(p->no_high)                                          \
                         : TG_G_CLOBBERS);                                                                             \
    }
TG_W_FUNCTION(1, 81)
TG_W_FUNCTION(2, 84)
#define TG_INNER_WEIGHT

/* ---- Planes of 3x3 convolutions with one channel on either side: strips of two or three columns, row after row of the
 * image. With stride 1 a row is read once, for three rows of outputs: it has the last taps of the one that is then
 * complete and stored (sums f26 to f28), the middle taps of the next (f23 to f25, which become those) and the first
 * taps of the one behind. Elements are in f16 to f22, a zero in f29, weights in any other registers. RIGHT is for taps from
 * left to right, LEFT for the other way, as seen in a mirror. */

#define TG_P_FMA(TO, E, W, FROM) TG_LINE("fmadd.s " TO ", " E ", %[w" #W "], " FROM)
/* The taps of one output, of which the first or the last may not exist, with what is done behind each. */
#define TG_P_ALL(TO, FROM, E0, E1, E2, W0, W1, W2, A, B, C)                                                            \
    TG_P_FMA(TO, E0, W0, FROM) A TG_P_FMA(TO, E1, W1, TO) B TG_P_FMA(TO, E2, W2, TO) C
#define TG_P_NO_LOW(TO, FROM, E0, E1, E2, W0, W1, W2, A, B, C)                                                         \
    A TG_P_FMA(TO, E1, W1, FROM) B TG_P_FMA(TO, E2, W2, TO) C
#define TG_P_NO_HIGH(TO, FROM, E0, E1, E2, W0, W1, W2, A, B, C)                                                        \
    TG_P_FMA(TO, E0, W0, FROM) A TG_P_FMA(TO, E1, W1, TO) B C
#define TG_P_LOW_TG_P_ALL TG_C_WITH
#define TG_P_LOW_TG_P_NO_LOW TG_C_WITHOUT
#define TG_P_HIGH_TG_P_ALL TG_C_WITH
#define TG_P_HIGH_TG_P_NO_HIGH TG_C_WITHOUT
/* Where elements and outputs lie: N is in bytes. */
#define TG_P_RIGHT(N) #N
#define TG_P_LEFT(N) "-" #N
#define TG_P_LOAD(E, D, N) TG_LINE("flw " E ", " D(N) "(%[x])")
#define TG_P_STORE(S, D, N) TG_LINE("fsw " S ", " D(N) "(%[y])")
#define TG_P_NEXT_X TG_G_ADD(x, "%[x_row]")
#define TG_P_NEXT_Y TG_G_ADD(y, "%[y_row]")
#define TG_P_STORE_3(D, S0, S1, S2) TG_P_STORE(S0, D, 0) TG_P_STORE(S1, D, 4) TG_P_STORE(S2, D, 8)
#define TG_P_STORE_2(D, S0, S1, S2) TG_P_STORE(S0, D, 0) TG_P_STORE(S1, D, 4)

/* Stride 1: elements of a row in f16 to f20. FIRST and LAST are the taps of the first column and of the last. */
#define TG_P1_E0(D, FIRST) TG_P_LOW_##FIRST(TG_P_LOAD("f16", D, 0))
#define TG_P1_E1(D) TG_P_LOAD("f17", D, 4)
#define TG_P1_E2(D) TG_P_LOAD("f18", D, 8)
#define TG_P1_E3_3(D, LAST) TG_P_LOAD("f19", D, 12)
#define TG_P1_E4_3(D, LAST) TG_P_HIGH_##LAST(TG_P_LOAD("f20", D, 16))
#define TG_P1_E3_2(D, LAST) TG_P_HIGH_##LAST(TG_P_LOAD("f19", D, 12))
#define TG_P1_E4_2(D, LAST) ""
#define TG_P1_BEGIN(D, FIRST) TG_P1_E0(D, FIRST) TG_P1_E1(D) TG_P1_E2(D)
#define TG_P1_REST(D, WIDTH, LAST) TG_P1_E3_##WIDTH(D, LAST) TG_P1_E4_##WIDTH(D, LAST)
/* The first taps, while the next row begins to be loaded; the middle ones; the last, with the rest of their row. */
#define TG_P1_FIRST_3(D, FIRST, LAST)                                                                                  \
    FIRST("f23", "f29", "f16", "f17", "f18", 0, 1, 2, "", "", "")                                                      \
    TG_P_ALL("f24", "f29", "f17", "f18", "f19", 0, 1, 2, TG_P1_E0(D, FIRST), TG_P1_E1(D), "")                          \
    LAST("f25", "f29", "f18", "f19", "f20", 0, 1, 2, TG_P1_E2(D), "", "")
#define TG_P1_FIRST_2(D, FIRST, LAST)                                                                                  \
    FIRST("f23", "f29", "f16", "f17", "f18", 0, 1, 2, "", "", "")                                                      \
    LAST("f24", "f29", "f17", "f18", "f19", 0, 1, 2, TG_P1_E0(D, FIRST) TG_P1_E1(D), TG_P1_E2(D), "")
#define TG_P1_MIDDLE_3(FIRST, LAST)                                                                                    \
    FIRST("f26", "f23", "f16", "f17", "f18", 3, 4, 5, "", TG_P_NEXT_X, "")                                             \
    TG_P_ALL("f27", "f24", "f17", "f18", "f19", 3, 4, 5, "", "", "")                                                   \
    LAST("f28", "f25", "f18", "f19", "f20", 3, 4, 5, "", "", "")
#define TG_P1_MIDDLE_2(FIRST, LAST)                                                                                    \
    FIRST("f26", "f23", "f16", "f17", "f18", 3, 4, 5, "", TG_P_NEXT_X, "")                                             \
    LAST("f27", "f24", "f17", "f18", "f19", 3, 4, 5, "", "", "")
#define TG_P1_LAST_3(D, FIRST, LAST)                                                                                   \
    FIRST("f26", "f26", "f16", "f17", "f18", 6, 7, 8, TG_P1_E3_3(D, LAST), TG_P1_E4_3(D, LAST), "")                    \
    TG_P_ALL("f27", "f27", "f17", "f18", "f19", 6, 7, 8, TG_P_STORE("f26", D, 0), "", "")                              \
    LAST("f28", "f28", "f18", "f19", "f20", 6, 7, 8, TG_P_STORE("f27", D, 4), "", TG_P_STORE("f28", D, 8))
#define TG_P1_LAST_2(D, FIRST, LAST)                                                                                   \
    FIRST("f26", "f26", "f16", "f17", "f18", 6, 7, 8, TG_P1_E3_2(D, LAST), "", "")                                     \
    LAST("f27", "f27", "f17", "f18", "f19", 6, 7, 8, TG_P_STORE("f26", D, 0), "", TG_P_STORE("f27", D, 4))
/* A strip: a turn is from the middle taps of a row to the last taps of the next, and has so many instructions. */
#define TG_P1_STRIP(D, WIDTH, FIRST, LAST, TURN)                                                                       \
    TG_G_ZERO(29) TG_G_ZERO(23) TG_G_ZERO(24) TG_G_ZERO(25) TG_P1_BEGIN(D, FIRST) TG_P1_REST(D, WIDTH, LAST)           \
    TG_LINE("beqz %[first], 1f") TG_P_NEXT_X TG_P1_FIRST_##WIDTH(D, FIRST, LAST) TG_P1_REST(D, WIDTH, LAST)            \
    TG_LINE("1: beqz %[turns], 2f") TG_REPEAT("%[turns]", TURN) TG_P1_MIDDLE_##WIDTH(FIRST, LAST)                      \
    TG_P1_FIRST_##WIDTH(D, FIRST, LAST) TG_P1_LAST_##WIDTH(D, FIRST, LAST) TG_P_NEXT_Y TG_REPEATED                     \
    TG_LINE("2:") TG_P1_MIDDLE_##WIDTH(FIRST, LAST) TG_LINE("beqz %[last], 3f") TG_P1_BEGIN(D, FIRST)                  \
    TG_P1_LAST_##WIDTH(D, FIRST, LAST) TG_LINE("j 4f") TG_LINE("3:") TG_P_STORE_##WIDTH(D, "f26", "f27", "f28")        \
    TG_LINE("4:")

/* Stride 2: every other row has the last taps of one row of outputs and the first of the next, so there is one set of
 * sums, f23 to f25. Elements in f16 to f22. */
#define TG_P2_E0(D, FIRST) TG_P_LOW_##FIRST(TG_P_LOAD("f16", D, 0))
#define TG_P2_E1(D) TG_P_LOAD("f17", D, 4)
#define TG_P2_E2(D) TG_P_LOAD("f18", D, 8)
#define TG_P2_E3(D) TG_P_LOAD("f19", D, 12)
#define TG_P2_E4_3(D, LAST) TG_P_LOAD("f20", D, 16)
#define TG_P2_E4_2(D, LAST) TG_P_HIGH_##LAST(TG_P_LOAD("f20", D, 16))
#define TG_P2_E5_3(D) TG_P_LOAD("f21", D, 20)
#define TG_P2_E5_2(D) ""
#define TG_P2_E6_3(D, LAST) TG_P_HIGH_##LAST(TG_P_LOAD("f22", D, 24))
#define TG_P2_E6_2(D, LAST) ""
#define TG_P2_BEGIN(D, FIRST) TG_P2_E0(D, FIRST) TG_P2_E1(D) TG_P2_E2(D)
#define TG_P2_REST(D, WIDTH, LAST)                                                                                     \
    TG_P2_E3(D) TG_P2_E4_##WIDTH(D, LAST) TG_P2_E5_##WIDTH(D) TG_P2_E6_##WIDTH(D, LAST)
#define TG_P2_FIRST_3(D, FIRST, LAST)                                                                                  \
    FIRST("f23", "f29", "f16", "f17", "f18", 0, 1, 2, "", TG_P_NEXT_X, "")                                             \
    TG_P_ALL("f24", "f29", "f18", "f19", "f20", 0, 1, 2, TG_P2_E0(D, FIRST), TG_P2_E1(D), TG_P2_E2(D))                 \
    LAST("f25", "f29", "f20", "f21", "f22", 0, 1, 2, "", "", "")
#define TG_P2_FIRST_2(D, FIRST, LAST)                                                                                  \
    FIRST("f23", "f29", "f16", "f17", "f18", 0, 1, 2, "", TG_P_NEXT_X, "")                                             \
    LAST("f24", "f29", "f18", "f19", "f20", 0, 1, 2, TG_P2_E0(D, FIRST), TG_P2_E1(D), TG_P2_E2(D))
#define TG_P2_MIDDLE_3(D, FIRST, LAST, E0, E1, E2)                                                                     \
    FIRST("f23", "f23", "f16", "f17", "f18", 3, 4, 5, TG_P2_E3(D), TG_P2_E4_3(D, LAST), TG_P2_E5_3(D))                 \
    TG_P_ALL("f24", "f24", "f18", "f19", "f20", 3, 4, 5, TG_P2_E6_3(D, LAST), TG_P_NEXT_X, E0)                         \
    LAST("f25", "f25", "f20", "f21", "f22", 3, 4, 5, E1, E2, "")
#define TG_P2_MIDDLE_2(D, FIRST, LAST, E0, E1, E2)                                                                     \
    FIRST("f23", "f23", "f16", "f17", "f18", 3, 4, 5, TG_P2_E3(D), TG_P2_E4_2(D, LAST), TG_P_NEXT_X)                   \
    LAST("f24", "f24", "f18", "f19", "f20", 3, 4, 5, E0, E1, E2)
#define TG_P2_LAST_3(D, FIRST, LAST)                                                                                   \
    FIRST("f23", "f23", "f16", "f17", "f18", 6, 7, 8, TG_P2_E3(D), TG_P2_E4_3(D, LAST), TG_P2_E5_3(D))                 \
    TG_P_ALL("f24", "f24", "f18", "f19", "f20", 6, 7, 8, TG_P2_E6_3(D, LAST), TG_P_STORE("f23", D, 0), "")             \
    LAST("f25", "f25", "f20", "f21", "f22", 6, 7, 8, TG_P_STORE("f24", D, 4), "", TG_P_STORE("f25", D, 8))
#define TG_P2_LAST_2(D, FIRST, LAST)                                                                                   \
    FIRST("f23", "f23", "f16", "f17", "f18", 6, 7, 8, TG_P2_E3(D), TG_P2_E4_2(D, LAST), "")                            \
    LAST("f24", "f24", "f18", "f19", "f20", 6, 7, 8, TG_P_STORE("f23", D, 0), "", TG_P_STORE("f24", D, 4))
#define TG_P2_STRIP(D, WIDTH, FIRST, LAST, TURN)                                                                       \
    TG_G_ZERO(29) TG_G_ZERO(23) TG_G_ZERO(24) TG_G_ZERO(25) TG_P2_BEGIN(D, FIRST) TG_LINE("beqz %[first], 1f")         \
    TG_P2_REST(D, WIDTH, LAST) TG_P2_FIRST_##WIDTH(D, FIRST, LAST)                                                     \
    TG_LINE("1: beqz %[turns], 2f") TG_REPEAT("%[turns]", TURN)                                                        \
    TG_P2_MIDDLE_##WIDTH(D, FIRST, LAST, TG_P2_E0(D, FIRST), TG_P2_E1(D), TG_P2_E2(D))                                 \
    TG_P2_LAST_##WIDTH(D, FIRST, LAST) TG_P_NEXT_Y TG_P2_FIRST_##WIDTH(D, FIRST, LAST) TG_REPEATED                     \
    TG_LINE("2:") TG_P2_MIDDLE_##WIDTH(D, FIRST, LAST, "", "", "") TG_LINE("beqz %[last], 3f") TG_P2_BEGIN(D, FIRST)   \
    TG_P2_LAST_##WIDTH(D, FIRST, LAST) TG_LINE("j 4f") TG_LINE("3:") TG_P_STORE_##WIDTH(D, "f23", "f24", "f25")        \
    TG_LINE("4:")

/* A plane of at least three columns: `first` and `last` say whether the first row of the first window and the last of
 * the last are there, `low` and `high` the same of columns, all as taps meet them. */
typedef struct {
    int x_row, y_row;  /* bytes */
    int rows, columns, first, last, low, high;
} tg_inner_plane;

#define TG_P_CALL(TEXT)                                                                                                \
    __asm__ volatile(TEXT                                                                                              \
                     : [x] "+&r"(at), [y] "+&r"(to)                                                                    \
                     : [w0] "f"(w0), [w1] "f"(w1), [w2] "f"(w2), [w3] "f"(w3), [w4] "f"(w4), [w5] "f"(w5),             \
                       [w6] "f"(w6), [w7] "f"(w7), [w8] "f"(w8), [x_row] "r"(x_row), [y_row] "r"(y_row),               \
                       [turns] "r"(turns), [first] "r"(first), [last] "r"(last)                                        \
                     : "f16", "f17", "f18", "f19", "f20", "f21", "f22", "f23", "f24", "f25", "f26", "f27", "f28",      \
                       "f29", "memory")
/* `x` is at the first column of the first window, also where that is not there, and at the first row that is. */
#define TG_P_FUNCTION(NAME, STRIP, STRIDE, D, TAP, T3, T3_ONE, T3_NONE, T2, T2_ONE)                                    \
    TG_APART void tg_inner_plane_##NAME(const float *x, const float *w, int w_row, float *y, const tg_inner_plane *p)  \
    {                                                                                                                  \
        const float *v = w + w_row, *u = v + w_row;                                                                    \
        const float w0 = w[0], w1 = w[1], w2 = w[2], w3 = v[0], w4 = v[1], w5 = v[2], w6 = u[0], w7 = u[1], w8 = u[2]; \
        const int x_row = p->x_row, y_row = p->y_row, turns = p->rows - 1, first = p->first, last = p->last;           \
        for (int left = p->columns, low = p->low; left > 0; low = 1) {                                                 \
            const int width = left == 2 || left == 4 ? 2 : 3, high = left > width || p->high;                          \
            const float *at = x;                                                                                       \
            float *to = y;                                                                                             \
            x += (TAP) * (STRIDE)*width;                                                                               \
            y += (TAP)*width;                                                                                          \
            left -= width;                                                                                             \
            if (width == 3 && low && high)                                                                             \
                TG_P_CALL(STRIP(D, 3, TG_P_ALL, TG_P_ALL, T3));                                                        \
            else if (width == 3 && low)                                                                                \
                TG_P_CALL(STRIP(D, 3, TG_P_ALL, TG_P_NO_HIGH, T3_ONE));                                                \
            else if (width == 3 && high)                                                                               \
                TG_P_CALL(STRIP(D, 3, TG_P_NO_LOW, TG_P_ALL, T3_ONE));                                                 \
            else if (width == 3)                                                                                       \
                TG_P_CALL(STRIP(D, 3, TG_P_NO_LOW, TG_P_NO_HIGH, T3_NONE));                                            \
            else if (low && high)                                                                                      \
                TG_P_CALL(STRIP(D, 2, TG_P_ALL, TG_P_ALL, T2));                                                        \
            else if (low)                                                                                              \
                TG_P_CALL(STRIP(D, 2, TG_P_ALL, TG_P_NO_HIGH, T2_ONE));                                                \
            else                                                                                                       \
                TG_P_CALL(STRIP(D, 2, TG_P_NO_LOW, TG_P_ALL, T2_ONE));                                                 \
        }                                                                                                              \
    }
TG_P_FUNCTION(right_1, TG_P1_STRIP, 1, TG_P_RIGHT, 1, 37, 33, 29, 26, 22)
TG_P_FUNCTION(left_1, TG_P1_STRIP, 1, TG_P_LEFT, -1, 37, 33, 29, 26, 22)
TG_P_FUNCTION(right_2, TG_P2_STRIP, 2, TG_P_RIGHT, 1, 47, 42, 37, 33, 28)
#define TG_INNER_PLANE

/* ---- Outer products of SGD: y(m,n) = fma(step, fma(u(m), v(n), 0), w(m,n)), each element read before it is written. What
 * is loaded next is where the register was stored from. */

/* Four rows by four columns, again and again to the right: u in f0 to f3, v in f4 to f7, w in f12 to f27. */
#define TG_O_QUAD                                                                                                      \
    TG_LINE("fmadd.s f28, f0, f4, f30") TG_LINE("addi %[v], %[v], 16") TG_LINE("fmadd.s f12, f31, f28, f12")           \
    TG_LINE("fmadd.s f29, f0, f5, f30") TG_LINE("fsw f12, 0(%[y0])") TG_LINE("fmadd.s f13, f31, f29, f13")             \
    TG_LINE("flw f12, 16(%[w0])") TG_LINE("fmadd.s f28, f0, f6, f30") TG_LINE("fsw f13, 4(%[y0])")                     \
    TG_LINE("fmadd.s f14, f31, f28, f14") TG_LINE("flw f13, 20(%[w0])") TG_LINE("fmadd.s f29, f0, f7, f30")            \
    TG_LINE("fsw f14, 8(%[y0])") TG_LINE("fmadd.s f15, f31, f29, f15") TG_LINE("flw f14, 24(%[w0])")                   \
    TG_LINE("fmadd.s f28, f1, f4, f30") TG_LINE("fsw f15, 12(%[y0])") TG_LINE("fmadd.s f16, f31, f28, f16")            \
    TG_LINE("flw f15, 28(%[w0])") TG_LINE("addi %[w0], %[w0], 16") TG_LINE("addi %[y0], %[y0], 16")                    \
    TG_LINE("fmadd.s f29, f1, f5, f30") TG_LINE("fsw f16, 0(%[y1])") TG_LINE("fmadd.s f17, f31, f29, f17")             \
    TG_LINE("flw f16, 16(%[w1])") TG_LINE("fmadd.s f28, f1, f6, f30") TG_LINE("fsw f17, 4(%[y1])")                     \
    TG_LINE("fmadd.s f18, f31, f28, f18") TG_LINE("flw f17, 20(%[w1])") TG_LINE("fmadd.s f29, f1, f7, f30")            \
    TG_LINE("fsw f18, 8(%[y1])") TG_LINE("fmadd.s f19, f31, f29, f19") TG_LINE("flw f18, 24(%[w1])")                   \
    TG_LINE("fmadd.s f28, f2, f4, f30") TG_LINE("fsw f19, 12(%[y1])") TG_LINE("fmadd.s f20, f31, f28, f20")            \
    TG_LINE("flw f19, 28(%[w1])") TG_LINE("addi %[w1], %[w1], 16") TG_LINE("addi %[y1], %[y1], 16")                    \
    TG_LINE("fmadd.s f29, f2, f5, f30") TG_LINE("fsw f20, 0(%[y2])") TG_LINE("fmadd.s f21, f31, f29, f21")             \
    TG_LINE("flw f20, 16(%[w2])") TG_LINE("fmadd.s f28, f2, f6, f30") TG_LINE("fsw f21, 4(%[y2])")                     \
    TG_LINE("fmadd.s f22, f31, f28, f22") TG_LINE("flw f21, 20(%[w2])") TG_LINE("fmadd.s f29, f2, f7, f30")            \
    TG_LINE("fsw f22, 8(%[y2])") TG_LINE("fmadd.s f23, f31, f29, f23") TG_LINE("flw f22, 24(%[w2])")                   \
    TG_LINE("fmadd.s f28, f3, f4, f30") TG_LINE("fsw f23, 12(%[y2])") TG_LINE("fmadd.s f24, f31, f28, f24")            \
    TG_LINE("flw f23, 28(%[w2])") TG_LINE("addi %[w2], %[w2], 16") TG_LINE("addi %[y2], %[y2], 16")                    \
    TG_LINE("flw f4, 0(%[v])") TG_LINE("fmadd.s f29, f3, f5, f30") TG_LINE("fsw f24, 0(%[y3])")                        \
    TG_LINE("fmadd.s f25, f31, f29, f25") TG_LINE("flw f24, 16(%[w3])") TG_LINE("flw f5, 4(%[v])")                     \
    TG_LINE("fmadd.s f28, f3, f6, f30") TG_LINE("fsw f25, 4(%[y3])") TG_LINE("fmadd.s f26, f31, f28, f26")             \
    TG_LINE("flw f25, 20(%[w3])") TG_LINE("flw f6, 8(%[v])") TG_LINE("fmadd.s f29, f3, f7, f30")                       \
    TG_LINE("fsw f26, 8(%[y3])") TG_LINE("fmadd.s f27, f31, f29, f27") TG_LINE("flw f26, 24(%[w3])")                   \
    TG_LINE("flw f7, 12(%[v])") TG_LINE("fsw f27, 12(%[y3])") TG_LINE("flw f27, 28(%[w3])")                            \
    TG_LINE("addi %[w3], %[w3], 16") TG_LINE("addi %[y3], %[y3], 16")
TG_TEMPLATE void tg_inner_outer(const float *u, const float *v, const float *w, int w_by_m, float *y, int y_by_m,
                                float step, int count)
{
    const uint32_t step_bits = tg_bits(step);
    const float *w1 = w + w_by_m, *w2 = w1 + w_by_m, *w3 = w2 + w_by_m;
    float *y1 = y + y_by_m, *y2 = y1 + y_by_m, *y3 = y2 + y_by_m;
    __asm__ volatile(
        TG_LINE("flw f0, 0(%[u])") TG_LINE("flw f1, 4(%[u])") TG_LINE("flw f2, 8(%[u])") TG_LINE("flw f3, 12(%[u])")
        TG_LINE("flw f4, 0(%[v])") TG_LINE("flw f5, 4(%[v])") TG_LINE("flw f6, 8(%[v])") TG_LINE("flw f7, 12(%[v])")
        TG_G_Y("flw", 12, 13, 14, 15, w0) TG_G_Y("flw", 16, 17, 18, 19, w1) TG_G_Y("flw", 20, 21, 22, 23, w2)
        TG_G_Y("flw", 24, 25, 26, 27, w3) TG_LINE("fmv.w.x f30, x0") TG_LINE("fmv.w.x f31, %[step]")
        TG_REPEAT("%[count]", 77) TG_O_QUAD TG_REPEATED
        : [v] "+&r"(v), [w0] "+&r"(w), [w1] "+&r"(w1), [w2] "+&r"(w2), [w3] "+&r"(w3), [y0] "+&r"(y), [y1] "+&r"(y1),
          [y2] "+&r"(y2), [y3] "+&r"(y3)
        : [u] "r"(u), [step] "r"(step_bits), [count] "r"(count)
        : TG_G_CLOBBERS);
}
#define TG_INNER_OUTER

/* Eight columns, row after row, with the sums s(n) of u(m) w(m,n) in f0 to f7: v in f8 to f15, w in f16 to f23. */
#define TG_D_ROW                                                                                                       \
    TG_LINE("fmadd.s f24, f26, f8, f27") TG_LINE("addi %[left], %[left], -1") TG_LINE("fmadd.s f0, f26, f16, f0")      \
    TG_LINE("snez %[more], %[left]") TG_LINE("fmadd.s f16, f28, f24, f16") TG_LINE("neg %[more], %[more]")             \
    TG_LINE("fmadd.s f25, f26, f9, f27") TG_LINE("and %[more], %[more], %[from_step]")                                 \
    TG_LINE("fmadd.s f1, f26, f17, f1") TG_LINE("add %[from], %[from], %[more]")                                       \
    TG_LINE("fmadd.s f17, f28, f25, f17") TG_LINE("fsw f16, 0(%[to])") TG_LINE("fmadd.s f24, f26, f10, f27")           \
    TG_LINE("flw f16, 0(%[from])") TG_LINE("fmadd.s f2, f26, f18, f2") TG_LINE("fsw f17, 4(%[to])")                    \
    TG_LINE("fmadd.s f18, f28, f24, f18") TG_LINE("flw f17, 4(%[from])") TG_LINE("fmadd.s f25, f26, f11, f27")         \
    TG_LINE("fsw f18, 8(%[to])") TG_LINE("fmadd.s f3, f26, f19, f3") TG_LINE("flw f18, 8(%[from])")                    \
    TG_LINE("fmadd.s f19, f28, f25, f19") TG_LINE("fmadd.s f24, f26, f12, f27") TG_LINE("fsw f19, 12(%[to])")          \
    TG_LINE("fmadd.s f4, f26, f20, f4") TG_LINE("flw f19, 12(%[from])") TG_LINE("fmadd.s f20, f28, f24, f20")          \
    TG_LINE("fmadd.s f25, f26, f13, f27") TG_LINE("fsw f20, 16(%[to])") TG_LINE("fmadd.s f5, f26, f21, f5")            \
    TG_LINE("flw f20, 16(%[from])") TG_LINE("fmadd.s f21, f28, f25, f21") TG_LINE("fmadd.s f24, f26, f14, f27")        \
    TG_LINE("fsw f21, 20(%[to])") TG_LINE("fmadd.s f6, f26, f22, f6") TG_LINE("flw f21, 20(%[from])")                  \
    TG_LINE("fmadd.s f22, f28, f24, f22") TG_LINE("addi %[u], %[u], 4") TG_LINE("fmadd.s f25, f26, f15, f27")          \
    TG_LINE("fsw f22, 24(%[to])") TG_LINE("fmadd.s f7, f26, f23, f7") TG_LINE("flw f26, 0(%[u])")                      \
    TG_LINE("fmadd.s f23, f28, f25, f23") TG_LINE("flw f22, 24(%[from])") TG_LINE("fsw f23, 28(%[to])")                \
    TG_LINE("flw f23, 28(%[from])") TG_LINE("add %[to], %[to], %[to_step]")
TG_TEMPLATE void tg_inner_dense(const float *u, const float *v, const float *w, int w_by_m, float *y, int y_by_m,
                                float *dx, float step, int first, int rows)
{
    const uint32_t step_bits = tg_bits(step);
    int left = rows, more;
    __asm__ volatile(
        TG_G_Y("flw", 8, 9, 10, 11, v0) TG_LINE("flw f12, 16(%[v0])") TG_LINE("flw f13, 20(%[v0])")
        TG_LINE("flw f14, 24(%[v0])") TG_LINE("flw f15, 28(%[v0])") TG_G_Y("flw", 16, 17, 18, 19, from)
        TG_LINE("flw f20, 16(%[from])") TG_LINE("flw f21, 20(%[from])") TG_LINE("flw f22, 24(%[from])")
        TG_LINE("flw f23, 28(%[from])") TG_LINE("fmv.w.x f28, %[step]") TG_LINE("fmv.w.x f27, x0")
        TG_LINE("flw f26, 0(%[u])") TG_LINE("beqz %[first], 1f") TG_G_ZERO(0) TG_G_ZERO(1) TG_G_ZERO(2) TG_G_ZERO(3)
        TG_G_ZERO(4) TG_G_ZERO(5) TG_G_ZERO(6) TG_G_ZERO(7) TG_LINE("j 2f") TG_LINE("1:")
        TG_G_Y("flw", 0, 1, 2, 3, dx) TG_LINE("flw f4, 16(%[dx])") TG_LINE("flw f5, 20(%[dx])")
        TG_LINE("flw f6, 24(%[dx])") TG_LINE("flw f7, 28(%[dx])") TG_LINE("2:")
        TG_REPEAT("%[left]", 48) TG_D_ROW TG_REPEATED
        TG_G_Y("fsw", 0, 1, 2, 3, dx) TG_LINE("fsw f4, 16(%[dx])") TG_LINE("fsw f5, 20(%[dx])")
        TG_LINE("fsw f6, 24(%[dx])") TG_LINE("fsw f7, 28(%[dx])")
        : [u] "+&r"(u), [from] "+&r"(w), [to] "+&r"(y), [left] "+&r"(left), [more] "=&r"(more)
        : [v0] "r"(v), [dx] "r"(dx), [from_step] "r"(4 * w_by_m), [to_step] "r"(4 * y_by_m), [step] "r"(step_bits),
          [first] "r"(first)
        : TG_G_CLOBBERS);
}
#define TG_INNER_DENSE

#endif
#endif
