/* Memory as C wants it at the start; memcpy and memset, all that generated code and compilers ask of a C library. */
#include <string.h>
#include "tg_bare.h"

extern unsigned char tg_bss_start[], tg_bss_stop[], tg_data_start[], tg_data_stop[], tg_data_image[];

typedef uint32_t __attribute__((may_alias)) word;

/* Keeps a compiler from seeing a call of memcpy in memcpy. */
#define OPAQUE() __asm__ volatile("" ::: "memory")

void *memcpy(void *restrict to, const void *restrict from, size_t bytes)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    if ((((uintptr_t)out | (uintptr_t)in) & 3u) == 0) {
        for (; bytes >= 16; bytes -= 16, out += 16, in += 16) {
            word a = ((const word *)in)[0], b = ((const word *)in)[1];
            word c = ((const word *)in)[2], d = ((const word *)in)[3];
            ((word *)out)[0] = a, ((word *)out)[1] = b;
            ((word *)out)[2] = c, ((word *)out)[3] = d;
            OPAQUE();
        }
        for (; bytes >= 4; bytes -= 4, out += 4, in += 4) {
            *(word *)out = *(const word *)in;
            OPAQUE();
        }
    }
    for (; bytes > 0; bytes--) {
        *out++ = *in++;
        OPAQUE();
    }
    return to;
}

void *memset(void *to, int value, size_t bytes)
{
    unsigned char *out = to;
    word fill = (unsigned char)value * 0x01010101u;
    for (; bytes > 0 && ((uintptr_t)out & 3u) != 0; bytes--) {
        *out++ = (unsigned char)value;
        OPAQUE();
    }
    for (; bytes >= 4; bytes -= 4, out += 4) {
        *(word *)out = fill;
        OPAQUE();
    }
    for (; bytes > 0; bytes--) {
        *out++ = (unsigned char)value;
        OPAQUE();
    }
    return to;
}

void tg_prepare_memory(void)
{
    memcpy(tg_data_start, tg_data_image, (size_t)(tg_data_stop - tg_data_start));
    memset(tg_bss_start, 0, (size_t)(tg_bss_stop - tg_bss_start));
}
