/* Relu on the bits of floats, which order positive ones as integers: no comparison in the FPU, no branch. */
#ifndef TG_RELU_H
#define TG_RELU_H
#include "tg_block.h"
#include "tg_math.h"

/* A value from an integer register is moved to a float register once, not again for each of its uses. */
#if defined(__riscv_flen) && !defined(__riscv_vector) && defined(__GNUC__) && !defined(__OPENCL_VERSION__)
#define TG_IN_FLOAT_REGISTER(x) __asm__("" : "+f"(x));
#else
#define TG_IN_FLOAT_REGISTER(x)
#endif

/* Zero from -infinity to -0; a NaN stays. */
TG_INLINE uint32_t tg_relu_bits(uint32_t x) { return x & -(uint32_t)(x + 0x80000000u > 0x7F800000u); }

/* The gradient, kept where the output is from the least to infinity. */
TG_INLINE uint32_t tg_relu_grad_bits(uint32_t dy, uint32_t y) { return dy & -(uint32_t)(y - 1u < 0x7F800000u); }

TG_INLINE float tg_relu_grad_of(float dy, float y)
{
    float kept = tg_float(tg_relu_grad_bits(tg_bits(dy), tg_bits(y)));
    TG_IN_FLOAT_REGISTER(kept)
    return kept;
}

/* For kernels that have a Relu behind them or not, which is to be known at compile time: writes y, and reads dy as it is
 * in front of the Relu. Without one, `y` is not read. */
TG_TEMPLATE void tg_relu_write(TG_MEM float *y, float value, int has_relu)
{
#if defined(__riscv_flen) && !defined(__riscv_vector)
    const uint32_t bits = tg_bits(value); /* of a sum: where that is a NaN, it has no sign here */
    if (has_relu)
        *(TG_MEM tg_b4 *)y = bits & ~(uint32_t)((int32_t)bits >> 31);
#else
    if (has_relu)
        *(TG_MEM tg_b4 *)y = tg_relu_bits(tg_bits(value));
#endif
    else
        *y = value;
}

TG_TEMPLATE float tg_relu_read(TG_MEM const float *dy, TG_MEM const float *y, int has_relu)
{
    if (!has_relu)
        return *dy;
    float kept = tg_float(tg_relu_grad_bits(*(TG_MEM const tg_b4 *)dy, *(TG_MEM const tg_b4 *)y));
    TG_IN_FLOAT_REGISTER(kept)
    return kept;
}

#endif
