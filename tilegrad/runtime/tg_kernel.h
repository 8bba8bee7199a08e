/* What every kernel includes. Kernels stay in the common subset of C99 and OpenCL C: no libc, no state, no barrier;
 * a core computes its share of a tile's outputs, found from core_id and core_count. The order of floating-point
 * operations is part of a kernel's meaning: one accumulator per output element, in index order. */
#ifndef TG_KERNEL_H
#define TG_KERNEL_H

#ifdef __OPENCL_VERSION__
#pragma OPENCL FP_CONTRACT OFF
typedef char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
#define TG_KERNEL /* called by an entry point of its own, see codegen/opencl.py */
#define TG_MEM __global
#define TG_ARG __private
#define TG_NULL 0
#if defined(__clang__) && (defined(__FMA__) || defined(__ARM_FEATURE_FMA))
#define TG_FMA(a, b, c) __builtin_fmaf((a), (b), (c)) /* the instruction, where a driver's fma() is a call */
#else
#define TG_FMA(a, b, c) fma((a), (b), (c))
#endif
#define TG_SQRT(x) sqrt(x)
#define TG_INFINITY INFINITY
#define TG_NAN NAN
#else
#include <stdint.h>
#define TG_KERNEL
#define TG_MEM
#define TG_ARG
#define TG_NULL ((void *)0)
#include "tg_fma.h"
#ifdef __GNUC__
#define TG_INFINITY __builtin_inff()
#define TG_NAN __builtin_nanf("")
#else
#define TG_INFINITY (1.0f / 0.0f)
#define TG_NAN (0.0f / 0.0f)
#endif
#endif

/* A helper may be left over where a macro that would call it is not used. */
#if defined(__GNUC__) && !defined(__OPENCL_VERSION__)
#define TG_INLINE static inline __attribute__((unused))
#else
#define TG_INLINE static inline
#endif

/* Before a short loop: a core without vectors loses less to the loop itself if a turn has four elements. */
#if defined(__riscv) && !defined(__riscv_vector) && defined(__GNUC__)
#define TG_UNROLLED _Pragma("GCC unroll 4")
#else
#define TG_UNROLLED
#endif

/* Elements by size, for kernels that only move them: these may point at elements of any type. */
#if defined(__GNUC__) && !defined(__OPENCL_VERSION__)
#define TG_ANY_TYPE __attribute__((may_alias))
#else
#define TG_ANY_TYPE
#endif
typedef uint8_t tg_b1;
typedef uint16_t TG_ANY_TYPE tg_b2;
typedef uint32_t TG_ANY_TYPE tg_b4;
typedef uint64_t TG_ANY_TYPE tg_b8;

/* Core core_id's contiguous share [*start, *stop) of `count` units; shares differ by at most one unit. */
TG_INLINE void tg_share(int count, int core_id, int core_count, int *start, int *stop)
{
    if (core_count == 1) { /* the common single core: no division */
        *start = 0;
        *stop = count;
        return;
    }
    /* A division takes a small core as long as tens of other instructions; eight cores are common. */
    int quotient = (int)(core_count == 8 ? (unsigned)count / 8u : (unsigned)count / (unsigned)core_count);
    int rest = count - quotient * core_count;
    *start = quotient * core_id + (core_id < rest ? core_id : rest);
    *stop = *start + quotient + (core_id < rest ? 1 : 0);
}

TG_INLINE int tg_min(int a, int b) { return a < b ? a : b; }
TG_INLINE int tg_max(int a, int b) { return a > b ? a : b; }

#endif
