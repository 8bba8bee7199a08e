/* Sixteen floats at a time: AVX-512 where the compiler may use it, otherwise the same lanes one by one. A mask has bit l
 * for lane l; lanes that are off are neither read nor written in memory, and keep what they hold in a register. */
#ifndef TG_VECTOR_H
#define TG_VECTOR_H
#include "tg_block.h"

#if !defined(__AVX512F__)
#define TG_UNROLL
#elif defined(__clang__)
#define TG_UNROLL _Pragma("unroll")
#else
#define TG_UNROLL _Pragma("GCC unroll 32")
#endif
#define TG_SHARED static __attribute__((noinline, unused)) /* too long to be inlined anywhere */
#define TG_ALIGNED __attribute__((aligned(64)))
#define TG_LANES(l) for (int l = 0; l < 16; l++)

/* The first `count` lanes, count being any number. */
TG_TEMPLATE uint32_t tg_v_first(int count)
{
    return count >= 16 ? 0xFFFFu : count <= 0 ? 0u : (1u << count) - 1u;
}

#if defined(__AVX512F__)
#include <immintrin.h>
#define TG_VECTOR_ROWS 8 /* of a block that is two vectors wide: what fits the registers */
typedef __m512 tg_v16;

TG_TEMPLATE tg_v16 tg_v_set(float x) { return _mm512_set1_ps(x); }
TG_TEMPLATE tg_v16 tg_v_load(const float *p) { return _mm512_loadu_ps(p); }
TG_TEMPLATE void tg_v_store(float *p, tg_v16 v) { _mm512_storeu_ps(p, v); }
TG_TEMPLATE tg_v16 tg_v_load_some(const float *p, uint32_t mask) { return _mm512_maskz_loadu_ps((__mmask16)mask, p); }
TG_TEMPLATE void tg_v_store_some(float *p, uint32_t mask, tg_v16 v) { _mm512_mask_storeu_ps(p, (__mmask16)mask, v); }
TG_TEMPLATE tg_v16 tg_v_add(tg_v16 a, tg_v16 b) { return _mm512_add_ps(a, b); }
TG_TEMPLATE tg_v16 tg_v_sub(tg_v16 a, tg_v16 b) { return _mm512_sub_ps(a, b); }
TG_TEMPLATE tg_v16 tg_v_mul(tg_v16 a, tg_v16 b) { return _mm512_mul_ps(a, b); }
TG_TEMPLATE tg_v16 tg_v_max(tg_v16 a, tg_v16 b) { return _mm512_max_ps(a, b); } /* a where it is greater, otherwise b */
TG_TEMPLATE tg_v16 tg_v_fma(tg_v16 a, tg_v16 b, tg_v16 c) { return _mm512_fmadd_ps(a, b, c); }
TG_TEMPLATE tg_v16 tg_v_fma_some(tg_v16 a, tg_v16 b, tg_v16 c, uint32_t mask)
{
    return _mm512_mask3_fmadd_ps(a, b, c, (__mmask16)mask);
}
TG_TEMPLATE tg_v16 tg_v_select(uint32_t mask, tg_v16 a, tg_v16 b) { return _mm512_mask_blend_ps((__mmask16)mask, b, a); }
TG_TEMPLATE tg_v16 tg_v_add_some(tg_v16 a, tg_v16 b, uint32_t mask) { return _mm512_mask_add_ps(a, (__mmask16)mask, a, b); }
/* a where it is greater than b or no number, otherwise b. */
TG_TEMPLATE tg_v16 tg_v_greater(tg_v16 a, tg_v16 b)
{
    return _mm512_mask_mov_ps(_mm512_max_ps(a, b), _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), a);
}
/* Masks of those lanes of `mask` where both are equal, and where a is no number. */
TG_TEMPLATE uint32_t tg_v_equal(tg_v16 a, tg_v16 b, uint32_t mask)
{
    return (uint32_t)_mm512_mask_cmp_ps_mask((__mmask16)mask, a, b, _CMP_EQ_OQ);
}
TG_TEMPLATE uint32_t tg_v_nan(tg_v16 a, uint32_t mask)
{
    return (uint32_t)_mm512_mask_cmp_ps_mask((__mmask16)mask, a, a, _CMP_UNORD_Q);
}
/* Relu of a, and b where a is greater than 0: 0 elsewhere. */
TG_TEMPLATE tg_v16 tg_v_relu(tg_v16 a)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_NLE_UQ), a);
}
TG_TEMPLATE tg_v16 tg_v_where_positive(tg_v16 a, tg_v16 b)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, _mm512_setzero_ps(), _CMP_GT_OQ), b);
}
/* Lane l is p[at[l]]. */
TG_TEMPLATE tg_v16 tg_v_gather(const float *p, const int32_t *at, uint32_t mask)
{
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), (__mmask16)mask, _mm512_loadu_si512(at), p, 4);
}
/* A mask for lanes that are `step` elements apart in memory: two masks of what is read for every other element. */
typedef struct {
    uint16_t lanes, low, high;
} tg_v_apart;
TG_TEMPLATE tg_v_apart tg_v_apart_of(int step, uint32_t mask)
{
    tg_v_apart result = {(uint16_t)mask, 0, 0};
#if defined(__BMI2__)
    if (step == 2)
        result.low = (uint16_t)_pdep_u32(mask & 0xFFu, 0x5555u), result.high = (uint16_t)_pdep_u32(mask >> 8, 0x5555u);
#endif
    return result;
}
/* Lane l is p[l * step], or that of `rest`; every other element is read faster than any other pattern. */
TG_TEMPLATE tg_v16 tg_v_load_apart(const float *p, int step, tg_v_apart mask, tg_v16 rest)
{
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    if (step == 1)
        return _mm512_mask_loadu_ps(rest, mask.lanes, p);
#if defined(__BMI2__)
    if (step == 2)
        return _mm512_permutex2var_ps(_mm512_mask_loadu_ps(rest, mask.low, p), _mm512_slli_epi32(lanes, 1),
                                      _mm512_mask_loadu_ps(rest, mask.high, p + 16));
#endif
    return _mm512_mask_i32gather_ps(rest, mask.lanes, _mm512_mullo_epi32(lanes, _mm512_set1_epi32(step)), p, 4);
}
TG_TEMPLATE void tg_v_store_apart(float *p, int step, uint32_t mask, tg_v16 v)
{
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    if (step == 1)
        tg_v_store_some(p, mask, v);
    else
        _mm512_mask_i32scatter_ps(p, (__mmask16)mask, _mm512_mullo_epi32(lanes, _mm512_set1_epi32(step)), v, 4);
}
/* The first `count` of a[0], b[0], a[1], b[1], ... */
TG_TEMPLATE void tg_v_store_pairs(float *p, int count, tg_v16 a, tg_v16 b)
{
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    tg_v_store_some(p, tg_v_first(count), _mm512_permutex2var_ps(a, low, b));
    tg_v_store_some(p + 16, tg_v_first(count - 16), _mm512_permutex2var_ps(a, high, b));
}
TG_TEMPLATE void tg_v_scatter(float *p, const int32_t *at, uint32_t mask, tg_v16 v)
{
    _mm512_mask_i32scatter_ps(p, (__mmask16)mask, _mm512_loadu_si512(at), v, 4);
}

/* Lane j of vector i becomes lane i of vector j. */
TG_TEMPLATE void tg_v_transpose(tg_v16 v[16])
{
    tg_v16 t[16];
    TG_UNROLL for (int i = 0; i < 16; i += 2)
    {
        t[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    TG_UNROLL for (int i = 0; i < 16; i += 4)
    {
        TG_UNROLL for (int j = 0; j < 2; j++)
        {
            __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
            v[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            v[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    TG_UNROLL for (int i = 0; i < 4; i++)
    {
        t[i] = _mm512_shuffle_f32x4(v[i], v[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(v[i], v[i + 4], 0xDD);
        t[i + 8] = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0xDD);
    }
    TG_UNROLL for (int i = 0; i < 8; i++)
    {
        v[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        v[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xDD);
    }
}
#else
#define TG_VECTOR_ROWS 2
typedef struct {
    float lane[16];
} tg_v16;
#define TG_EACH_LANE(EXPRESSION)                                                                                       \
    tg_v16 result;                                                                                                     \
    TG_LANES(l) result.lane[l] = (EXPRESSION);                                                                         \
    return result;

TG_TEMPLATE tg_v16 tg_v_set(float x) { TG_EACH_LANE(x) }
TG_TEMPLATE tg_v16 tg_v_load(const float *p) { TG_EACH_LANE(p[l]) }
TG_TEMPLATE void tg_v_store(float *p, tg_v16 v) { TG_LANES(l) p[l] = v.lane[l]; }
TG_TEMPLATE tg_v16 tg_v_load_some(const float *p, uint32_t mask) { TG_EACH_LANE(mask >> l & 1u ? p[l] : 0.0f) }
TG_TEMPLATE void tg_v_store_some(float *p, uint32_t mask, tg_v16 v)
{
    TG_LANES(l) if (mask >> l & 1u) p[l] = v.lane[l];
}
TG_TEMPLATE tg_v16 tg_v_add(tg_v16 a, tg_v16 b) { TG_EACH_LANE(a.lane[l] + b.lane[l]) }
TG_TEMPLATE tg_v16 tg_v_sub(tg_v16 a, tg_v16 b) { TG_EACH_LANE(a.lane[l] - b.lane[l]) }
TG_TEMPLATE tg_v16 tg_v_mul(tg_v16 a, tg_v16 b) { TG_EACH_LANE(a.lane[l] * b.lane[l]) }
TG_TEMPLATE tg_v16 tg_v_max(tg_v16 a, tg_v16 b) { TG_EACH_LANE(a.lane[l] > b.lane[l] ? a.lane[l] : b.lane[l]) }
TG_TEMPLATE tg_v16 tg_v_fma(tg_v16 a, tg_v16 b, tg_v16 c) { TG_EACH_LANE(TG_FMA(a.lane[l], b.lane[l], c.lane[l])) }
TG_TEMPLATE tg_v16 tg_v_fma_some(tg_v16 a, tg_v16 b, tg_v16 c, uint32_t mask)
{
    TG_EACH_LANE(mask >> l & 1u ? TG_FMA(a.lane[l], b.lane[l], c.lane[l]) : c.lane[l])
}
TG_TEMPLATE tg_v16 tg_v_select(uint32_t mask, tg_v16 a, tg_v16 b) { TG_EACH_LANE(mask >> l & 1u ? a.lane[l] : b.lane[l]) }
TG_TEMPLATE tg_v16 tg_v_add_some(tg_v16 a, tg_v16 b, uint32_t mask)
{
    TG_EACH_LANE(mask >> l & 1u ? a.lane[l] + b.lane[l] : a.lane[l])
}
TG_TEMPLATE tg_v16 tg_v_greater(tg_v16 a, tg_v16 b)
{
    TG_EACH_LANE(a.lane[l] > b.lane[l] || a.lane[l] != a.lane[l] ? a.lane[l] : b.lane[l])
}
#define TG_EACH_BIT(CONDITION)                                                                                         \
    uint32_t result = 0;                                                                                               \
    TG_LANES(l) result |= (mask >> l & 1u) & (uint32_t)(CONDITION) ? 1u << l : 0u;                                     \
    return result;
TG_TEMPLATE uint32_t tg_v_equal(tg_v16 a, tg_v16 b, uint32_t mask) { TG_EACH_BIT(a.lane[l] == b.lane[l]) }
TG_TEMPLATE uint32_t tg_v_nan(tg_v16 a, uint32_t mask) { TG_EACH_BIT(a.lane[l] != a.lane[l]) }
TG_TEMPLATE tg_v16 tg_v_relu(tg_v16 a) { TG_EACH_LANE(a.lane[l] <= 0.0f ? 0.0f : a.lane[l]) }
TG_TEMPLATE tg_v16 tg_v_where_positive(tg_v16 a, tg_v16 b) { TG_EACH_LANE(a.lane[l] > 0.0f ? b.lane[l] : 0.0f) }
TG_TEMPLATE tg_v16 tg_v_gather(const float *p, const int32_t *at, uint32_t mask)
{
    TG_EACH_LANE(mask >> l & 1u ? p[at[l]] : 0.0f)
}
typedef struct {
    uint16_t lanes;
} tg_v_apart;
TG_TEMPLATE tg_v_apart tg_v_apart_of(int step, uint32_t mask)
{
    const tg_v_apart result = {(uint16_t)mask};
    (void)step;
    return result;
}
TG_TEMPLATE tg_v16 tg_v_load_apart(const float *p, int step, tg_v_apart mask, tg_v16 rest)
{
    TG_EACH_LANE(mask.lanes >> l & 1u ? p[l * step] : rest.lane[l])
}
TG_TEMPLATE void tg_v_store_apart(float *p, int step, uint32_t mask, tg_v16 v)
{
    TG_LANES(l) if (mask >> l & 1u) p[l * step] = v.lane[l];
}
TG_TEMPLATE void tg_v_store_pairs(float *p, int count, tg_v16 a, tg_v16 b)
{
    for (int i = 0; i < tg_min(count, 32); i++)
        p[i] = i % 2 == 0 ? a.lane[i / 2] : b.lane[i / 2];
}
TG_TEMPLATE void tg_v_scatter(float *p, const int32_t *at, uint32_t mask, tg_v16 v)
{
    TG_LANES(l) if (mask >> l & 1u) p[at[l]] = v.lane[l];
}
TG_TEMPLATE void tg_v_transpose(tg_v16 v[16])
{
    TG_LANES(i) for (int l = i + 1; l < 16; l++)
    {
        float kept = v[i].lane[l];
        v[i].lane[l] = v[l].lane[i];
        v[l].lane[i] = kept;
    }
}
#endif

/* The transposed panel: row k of `count` is b[k], b[k + by], b[k + 2 by], ... of `width` columns, then zeros. */
TG_SHARED void tg_panel_transpose(const float *b, int by, int count, int width, float *panel, int panel_by)
{
    for (int n = 0; n < width; n += 16)
        for (int k = 0; k < count; k += 16) {
            const uint32_t exist = tg_v_first(count - k);
            tg_v16 v[16];
            TG_UNROLL for (int i = 0; i < 16; i++)
                v[i] = n + i < width ? tg_v_load_some(b + (n + i) * by + k, exist) : tg_v_set(0.0f);
            tg_v_transpose(v);
            TG_UNROLL for (int i = 0; i < 16; i++)
                tg_v_store(panel + (k + i) * panel_by + n, v[i]);
        }
}

#endif
