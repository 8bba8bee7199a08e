/* Of the C library's header, what tg_memory.c has. A freestanding compiler brings no other. */
#ifndef TG_STRING_H
#define TG_STRING_H
#include <stddef.h>

void *memcpy(void *restrict to, const void *restrict from, size_t bytes);
void *memset(void *to, int value, size_t bytes);

#endif
