/* What the generated C needs of the standard header on a machine without a C library. */
#ifndef TG_CHIP_STRING_H
#define TG_CHIP_STRING_H
#include <stddef.h>
void *memcpy(void *to, const void *from, size_t bytes);
void *memset(void *to, int byte, size_t bytes);
#endif
