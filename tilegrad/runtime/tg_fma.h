/* TG_FMA(a, b, c): a*b + c in float with one rounding, as an instruction wherever the machine has one, never a call
 * into libm. TG_SQRT: correctly rounded square root, same rule. */
#ifndef TG_FMA_H
#define TG_FMA_H

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__riscv_flen) || defined(__aarch64__) || \
    defined(__kvx__)
#define TG_FMA(a, b, c) __builtin_fmaf((a), (b), (c))
#elif (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__) && defined(TG_ASSUME_FMA)
static inline float tg_fma_instruction(float a, float b, float c)
{
    __asm__("vfmadd231ss %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
    return c;
}
#define TG_FMA(a, b, c) tg_fma_instruction((a), (b), (c))
#else
#include <string.h>
/* Exact emulation for machines without the instruction. The product of two floats is exact in double; the sum is
 * rounded to odd there (its error is known exactly by Knuth's two-sum), so the final rounding to float is the only
 * one that shows. */
static inline float tg_fma_emulated(float a, float b, float c)
{
    double product = (double)a * (double)b;
    double sum = product + (double)c;
    double rounded_back = sum - product;
    double error = (product - (sum - rounded_back)) + ((double)c - rounded_back);
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if (error != 0.0 && (bits & 1u) == 0 && (bits >> 52 & 0x7ffu) != 0x7ffu) {
        bits += ((error > 0.0) == (sum > 0.0)) ? 1u : (uint64_t)-1;
        memcpy(&sum, &bits, sizeof sum);
    }
    return (float)sum;
}
#define TG_FMA(a, b, c) tg_fma_emulated((a), (b), (c))
#endif

#if defined(__x86_64__) || defined(__riscv_flen) || defined(__ARM_FP) || defined(__aarch64__)
#define TG_SQRT(x) __builtin_sqrtf(x)
#else
float sqrtf(float x); /* IEEE: correctly rounded everywhere */
#define TG_SQRT(x) sqrtf(x)
#endif

#endif
