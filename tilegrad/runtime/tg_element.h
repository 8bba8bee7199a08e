/* Elements whose type is known only to the call: one kernel serves every integer type. Addresses are given in bytes,
 * positions in elements. The codes are those of `type_code` in ops/_elementwise.py. */
#ifndef TG_ELEMENT_H
#define TG_ELEMENT_H
#include "tg_elementwise.h"

enum tg_type { TG_F32, TG_I8, TG_I16, TG_I32, TG_I64, TG_U8, TG_U16, TG_U32, TG_U64, TG_BOOL };

/* An integer, widened; of a u64 its bits. */
TG_INLINE int64_t tg_load_integer(TG_MEM const uint8_t *x, int type, int i)
{
    switch (type) {
    case TG_I8: return ((TG_MEM const int8_t *)x)[i];
    case TG_I16: return ((TG_MEM const int16_t *)x)[i];
    case TG_I32: return ((TG_MEM const int32_t *)x)[i];
    case TG_U16: return ((TG_MEM const uint16_t *)x)[i];
    case TG_U32: return ((TG_MEM const uint32_t *)x)[i];
    case TG_U64:
    case TG_I64: return ((TG_MEM const int64_t *)x)[i];
    default: return x[i];
    }
}

/* Keeps the low bits, as ONNX wants of integers out of range. */
TG_INLINE void tg_store_integer(TG_MEM uint8_t *y, int type, int i, uint64_t value)
{
    switch (type) {
    case TG_I16:
    case TG_U16: ((TG_MEM uint16_t *)y)[i] = (uint16_t)value; break;
    case TG_I32:
    case TG_U32: ((TG_MEM uint32_t *)y)[i] = (uint32_t)value; break;
    case TG_I64:
    case TG_U64: ((TG_MEM uint64_t *)y)[i] = value; break;
    default: y[i] = (uint8_t)value;
    }
}

/* Any element as a float. */
TG_INLINE float tg_load_float(TG_MEM const uint8_t *x, int type, int i)
{
    if (type == TG_F32)
        return ((TG_MEM const float *)x)[i];
    if (type == TG_U64)
        return (float)((TG_MEM const uint64_t *)x)[i];
    return (float)tg_load_integer(x, type, i);
}

/* A float as an integer: truncated, saturated; NaN becomes 0. */
TG_INLINE void tg_store_float(TG_MEM uint8_t *y, int type, int i, float value)
{
    if (type == TG_U64) {
        uint64_t bits = value > 0.0f ? (value < 18446744073709551616.0f ? (uint64_t)value : ~(uint64_t)0) : 0u;
        tg_store_integer(y, type, i, bits);
        return;
    }
    const int is_signed = type <= TG_I64;
    const int bits = 8 << ((type - TG_I8) & 3);
    const float limit = is_signed ? (float)((uint64_t)1 << (bits - 1)) : (float)((uint64_t)1 << bits);
    uint64_t result = (uint64_t)(value == value && value < limit && value >= -limit ? (int64_t)value : 0);
    if (value >= limit)
        result = ((uint64_t)1 << (is_signed ? bits - 1 : bits)) - 1u;
    if (value < (is_signed ? -limit : 0.0f))
        result = is_signed ? (uint64_t)0 - ((uint64_t)1 << (bits - 1)) : 0u;
    tg_store_integer(y, type, i, result);
}

/* -1, 0 or 1, of two values from tg_load_integer. */
TG_INLINE int tg_compare_integer(int64_t a, int64_t b, int type)
{
    if (type == TG_U64)
        return ((uint64_t)a > (uint64_t)b) - ((uint64_t)a < (uint64_t)b);
    return (a > b) - (a < b);
}

#define TG_INTEGER_A tg_load_integer(a, p->type, ia)
#define TG_INTEGER_B tg_load_integer(b, p->type, ib)

#endif
