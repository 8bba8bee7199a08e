/* No innermost loops in instructions of the chip's: those of matrix products are in tg_gemm.h, and the others are left
 * to the compiler, as the portable header leaves them. */
#ifndef TG_INNER_H
#define TG_INNER_H
#endif
