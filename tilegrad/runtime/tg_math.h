/* Elementary functions in float, the same bits on every machine: only IEEE operations and TG_FMA, in a fixed order, no
 * tables, no libc, and selections instead of branches so that loops over them vectorise. Polynomials are near-minimax
 * fits with float coefficients.
 *
 * Largest error against float64, in units in the last place (tests/ops/test_math.py measures it over dense samples):
 *
 *   tg_exp 1.02      tg_log 0.95      tg_erf 1.25     tg_sigmoid 2.45
 *   tg_expm1 1.45    tg_log1p 1.45    tg_tanh 1.45    tg_pow 1.25      tg_softplus 2.0
 *   tg_cos_pi 1.00
 *
 * Infinities, NaNs, signed zeros and subnormals give what C99's functions give. */
#ifndef TG_MATH_H
#define TG_MATH_H
#include "tg_kernel.h"

#ifdef __OPENCL_VERSION__
TG_INLINE uint32_t tg_bits(float x) { return as_uint(x); }
TG_INLINE float tg_float(uint32_t bits) { return as_float(bits); }
#else
TG_INLINE uint32_t tg_bits(float x)
{
    union {
        float value;
        uint32_t bits;
    } both;
    both.value = x;
    return both.bits;
}

TG_INLINE float tg_float(uint32_t bits)
{
    union {
        float value;
        uint32_t bits;
    } both;
    both.bits = bits;
    return both.value;
}
#endif

TG_INLINE float tg_abs(float x) { return tg_float(tg_bits(x) & 0x7FFFFFFFu); }

TG_INLINE float tg_copysign(float magnitude, float sign)
{
    return tg_float((tg_bits(magnitude) & 0x7FFFFFFFu) | (tg_bits(sign) & 0x80000000u));
}

/* x + low = k ln 2 + r with |r| <= ln 2 / 2; returns e^r - 1. Adding 1.5 * 2^23 leaves k in the low bits. */
TG_INLINE float tg_exp_reduced(float x, float low, uint32_t *k)
{
    float shifted = TG_FMA(x, 1.44269502f, 12582912.0f);
    float n = shifted - 12582912.0f;
    *k = tg_bits(shifted) - 0x4B400000u;
    float r = TG_FMA(n, -0.693147182f, x); /* exact */
    r = TG_FMA(n, 1.90465421e-9f, r) + low;
    float q = TG_FMA(r, 0.00138213043f, 0.00836866908f);
    q = TG_FMA(r, q, 0.0416682586f);
    q = TG_FMA(r, q, 0.166665211f);
    q = TG_FMA(r, q, 0.49999994f);
    return TG_FMA(q, r * r, r);
}

/* e^(x + low) for a tiny `low`. Two factors carry 2^k, so that a subnormal result is rounded once. */
TG_INLINE float tg_exp_sum(float x, float low)
{
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    uint32_t k;
    float y = 1.0f + tg_exp_reduced(x, low, &k);
    uint32_t part = ((k + 512u) >> 1) - 256u;
    return y * tg_float((part + 127u) << 23) * tg_float((k - part + 127u) << 23);
}

TG_INLINE float tg_exp(float x) { return tg_exp_sum(x, 0.0f); }

/* e^x - 1 without the cancellation near zero. */
TG_INLINE float tg_expm1(float x)
{
    float bounded = x < -18.0f ? -18.0f : x;
    bounded = bounded > 89.0f ? 89.0f : bounded;
    uint32_t k;
    float y = tg_exp_reduced(bounded, 0.0f, &k);
    float half_scale = tg_float((k + 126u) << 23);
    float scaled = 2.0f * TG_FMA(y, half_scale, half_scale - 0.5f);
    scaled = k == 0u ? y : scaled;
    return x == 0.0f ? x : scaled;
}

/* Splits a positive x into 2^k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2); both exact. */
TG_INLINE float tg_log_reduced(float x, float *k)
{
    float scaled = x < 1.17549435e-38f ? x * 8388608.0f : x;
    uint32_t exponent = (tg_bits(scaled) - 0x3F3504F3u) & 0xFF800000u;
    *k = (float)(int32_t)exponent * 1.1920929e-7f + (x < 1.17549435e-38f ? -23.0f : 0.0f);
    return tg_float(tg_bits(scaled) - exponent) - 1.0f;
}

TG_INLINE float tg_log(float x)
{
    float k;
    float f = tg_log_reduced(x, &k);
    float q = TG_FMA(f, -0.0763589442f, 0.127621144f);
    q = TG_FMA(f, q, -0.131597534f);
    q = TG_FMA(f, q, 0.142016098f);
    q = TG_FMA(f, q, -0.166234016f);
    q = TG_FMA(f, q, 0.200012401f);
    q = TG_FMA(f, q, -0.250008196f);
    q = TG_FMA(f, q, 0.333333313f);
    q = TG_FMA(f, q, -0.5f);
    float y = TG_FMA(q, f * f, f);
    y = TG_FMA(k, -1.90465421e-9f, y);
    y = TG_FMA(k, 0.693147182f, y);
    y = x == TG_INFINITY ? x : y;
    float outside = x == 0.0f ? -TG_INFINITY : TG_NAN;
    return x > 0.0f ? y : outside;
}

/* log(1 + x) without the rounding of 1 + x. */
TG_INLINE float tg_log1p(float x)
{
    float sum = 1.0f + x;
    float lost = x - (sum - 1.0f);
    float y = tg_log(sum);
    y = sum > 0.0f && sum < TG_INFINITY ? y + lost / sum : y;
    return sum == 1.0f ? x : y;
}

TG_INLINE float tg_tanh(float x)
{
    float a = tg_abs(x), t = x * x;
    float q = TG_FMA(t, -0.00616961392f, 0.021000376f);
    q = TG_FMA(t, q, -0.0538357571f);
    q = TG_FMA(t, q, 0.13332437f);
    q = TG_FMA(t, q, -0.333333135f);
    float near = TG_FMA(a * t, q, a);
    float far = 1.0f - 2.0f / (tg_exp(2.0f * a) + 1.0f);
    return tg_copysign(a < 0.55f ? near : far, x);
}

TG_INLINE float tg_erf(float x)
{
    float a = tg_abs(x), t = x * x;
    float q = TG_FMA(t, -0.000653774827f, 0.0050862846f);
    q = TG_FMA(t, q, -0.0268220063f);
    q = TG_FMA(t, q, 0.112831593f);
    q = TG_FMA(t, q, -0.376126081f);
    q = TG_FMA(t, q, 0.128379166f);
    float near = TG_FMA(a, q, a);
    float b = a > 4.0f ? 4.0f : a;
    float s = TG_FMA(b, 7.43926148e-6f, -7.52285196e-5f);
    s = TG_FMA(b, s, 9.71502086e-5f);
    s = TG_FMA(b, s, 0.00253700092f);
    s = TG_FMA(b, s, -0.0220580604f);
    s = TG_FMA(b, s, 0.104697801f);
    s = TG_FMA(b, s, 0.6359061f);
    s = TG_FMA(b, s, 1.12849331f);
    float far = 1.0f - tg_exp(-b * s);
    return tg_copysign(a < 0.8f ? near : far, x);
}

/* 1 / (1 + e^-x) from e^-|x|, which never overflows. */
TG_INLINE float tg_sigmoid(float x)
{
    float e = tg_exp(-tg_abs(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

/* log(1 + e^x). */
TG_INLINE float tg_softplus(float x) { return (x > 0.0f ? x : 0.0f) + tg_log1p(tg_exp(-tg_abs(x))); }

/* log(x) of a positive finite x as an unevaluated sum, good to about 2^-34. With s = f / (2 + f), which is
 * (m - 1) / (m + 1): log m = 2 (s + s^3 (1/3 + s^2 T(s^2))). */
TG_INLINE float tg_log_sum(float x, float *low)
{
    float k;
    float f = tg_log_reduced(x, &k);
    float d = 2.0f + f, d_low = f - (d - 2.0f);
    float s = f / d;
    float s_low = TG_FMA(-s, d_low, TG_FMA(-s, d, f)) / d;
    float z = s * s, z_low = TG_FMA(s, s, -z) + 2.0f * s * s_low;
    float t = TG_FMA(z, TG_FMA(z, 0.11713706f, 0.142733872f), 0.200000778f) * z;
    float u = 0.333333343f + t, u_low = ((0.333333343f - u) + t) - 9.93410776e-9f;
    float w = z * u, w_low = TG_FMA(z, u, -w) + TG_FMA(z, u_low, z_low * u);
    float v = s * w, v_low = TG_FMA(s, w, -v) + TG_FMA(s, w_low, s_low * w);
    float y = s + v, y_low = ((s - y) + v) + (v_low + s_low);
    float whole = k * 0.693145752f; /* exact: this much of ln 2 has 15 bits */
    float sum = whole + 2.0f * y;
    *low = ((whole - sum) + 2.0f * y) + TG_FMA(k, 1.42860677e-6f, 2.0f * y_low);
    return sum;
}

TG_INLINE float tg_pow(float x, float y)
{
    if (y == 1.0f)
        return x;
    if (y == 2.0f)
        return x * x;
    if (y == 3.0f)
        return x * x * x;
    if (y == 0.0f || x == 1.0f)
        return 1.0f;
    float a = tg_abs(x), b = tg_abs(y);
    int is_whole = b >= 8388608.0f || (b < 8388608.0f && (float)(int32_t)b == b);
    int is_odd = b < 16777216.0f && is_whole && ((int32_t)b & 1);
    float low, high = tg_log_sum(a, &low);
    float product = y * high;
    float rest = tg_abs(product) < 128.0f ? TG_FMA(y, low, TG_FMA(y, high, -product)) : 0.0f;
    float magnitude = a == 1.0f ? 1.0f : tg_exp_sum(product, rest);
    if (a == 0.0f || a == TG_INFINITY)
        magnitude = (a == 0.0f) == (y < 0.0f) ? TG_INFINITY : 0.0f;
    if (x < 0.0f && !is_whole && a != TG_INFINITY)
        magnitude = TG_NAN;
    if (x != x || y != y)
        magnitude = TG_NAN;
    return is_odd && (tg_bits(x) >> 31) ? -magnitude : magnitude;
}

/* cos(pi x), where pi is exact and so is the reduction: 1 at even x, 0 at halves, NaN for what is not finite. Adding
 * 2^23 to |x| / 2 rounds it to a whole number; from 2^24 on every x is even. */
TG_INLINE float tg_cos_pi(float x)
{
    float a = tg_abs(x);
    float halved = 0.5f * a;
    float turns = halved < 8388608.0f ? (halved + 8388608.0f) - 8388608.0f : halved;
    a = tg_abs(TG_FMA(-2.0f, turns, a)); /* 0 to 1 */
    float b = a > 0.5f ? 1.0f - a : a;   /* 0 to 1/2 */
    float z = b * b;
    float q = TG_FMA(z, 0.232129484f, -1.3351382f);
    q = TG_FMA(z, q, 4.05871058f);
    q = TG_FMA(z, q, -4.93480206f);
    float cosine = TG_FMA(z, q, 1.0f);
    float c = 0.5f - b;
    float w = c * c;
    float s = TG_FMA(w, -0.589078665f, 2.54976726f);
    s = TG_FMA(w, s, -5.16770792f);
    float sine = TG_FMA(c, 3.14159274f, c * TG_FMA(w, s, -8.74227766e-8f));
    float y = b > 0.25f ? sine : cosine;
    y = a > 0.5f ? -y : y;
    return a <= 1.0f ? y : TG_NAN;
}

#endif
