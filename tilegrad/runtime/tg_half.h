/* Floats kept in two bytes: bfloat16 and float16. Rounded to nearest, ties to even; what is too large becomes infinite,
 * subnormals stay, and a NaN stays a NaN. Made of integers and one exact sum, so the bits are the same everywhere. */
#ifndef TG_HALF_H
#define TG_HALF_H
#include "tg_math.h"

TG_INLINE uint16_t tg_to_bf16(float x)
{
    const uint32_t bits = tg_bits(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

TG_INLINE float tg_from_bf16(uint16_t kept) { return tg_float((uint32_t)kept << 16); }

TG_INLINE uint16_t tg_to_fp16(float x)
{
    const uint32_t bits = tg_bits(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7FFFFFFFu;
    if (size > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00u);
    if (size >= 0x477FF000u) /* 65520 */
        return (uint16_t)(sign | 0x7C00u);
    if (size < 0x38800000u) /* below 2^-14: a unit in the last place of 0.5 is the smallest subnormal */
        return (uint16_t)(sign | (tg_bits(tg_float(size) + 0.5f) - 0x3F000000u));
    return (uint16_t)(sign | (size - 0x38000000u + 0xFFFu + (size >> 13 & 1u)) >> 13);
}

TG_INLINE float tg_from_fp16(uint16_t kept)
{
    const uint32_t sign = (uint32_t)(kept & 0x8000u) << 16, size = kept & 0x7FFFu;
    if (size >= 0x7C00u)
        return tg_float(sign | 0x7F800000u | (size & 0x3FFu) << 13);
    if (size < 0x400u)
        return tg_float(sign | tg_bits((float)size * 5.9604644775390625e-8f)); /* 2^-24 */
    return tg_float(sign | ((size << 13) + 0x38000000u));
}

/* What a kernel that works on any of the three is made with. */
#define TG_KEPT_F32(x) (x)
#define TG_KEEP_F32(x) (x)
#define TG_KEPT_BF16(x) tg_from_bf16(x)
#define TG_KEEP_BF16(x) tg_to_bf16(x)
#define TG_KEPT_FP16(x) tg_from_fp16(x)
#define TG_KEEP_FP16(x) tg_to_fp16(x)

#endif
