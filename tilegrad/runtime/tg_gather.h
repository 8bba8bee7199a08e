/* Indices from data: negative ones count from the end, and none is ever followed out of range. */
#ifndef TG_GATHER_H
#define TG_GATHER_H
#include "tg_kernel.h"

/* The position an index means, or -1. */
TG_INLINE int tg_index(int64_t index, int extent)
{
    if (index < 0)
        index += extent;
    return index >= 0 && index < extent ? (int)index : -1;
}

#endif
