/* Blocks of outputs held in registers: macros that repeat F for each row, or for each (row, column), of a block;
 * functions inlined so that literal arguments select the code, and functions kept apart so that their loops have all
 * registers and little code. */
#ifndef TG_BLOCK_H
#define TG_BLOCK_H
#include "tg_kernel.h"

#if defined(__GNUC__) && !defined(__OPENCL_VERSION__)
#define TG_TEMPLATE static inline __attribute__((always_inline))
#ifdef __clang__
#define TG_APART static __attribute__((noinline, unused))
#else
#define TG_APART static __attribute__((noinline, noclone, unused))
#endif
#else
#define TG_TEMPLATE static inline
#define TG_APART static inline
#endif

/* Whether the compiler knows here, after inlining, that E holds. */
#ifdef __GNUC__
#define TG_LITERALLY(E) (__builtin_constant_p(E) && (E))
#else
#define TG_LITERALLY(E) 0
#endif

#define TG_ROW4(F) F(0) F(1) F(2) F(3)
#define TG_ROW8(F) TG_ROW4(F) F(4) F(5) F(6) F(7)
#define TG_BLOCK(F)                                                                                                    \
    F(0, 0) F(0, 1) F(0, 2) F(0, 3) F(1, 0) F(1, 1) F(1, 2) F(1, 3)                                                    \
    F(2, 0) F(2, 1) F(2, 2) F(2, 3) F(3, 0) F(3, 1) F(3, 2) F(3, 3)

#endif
