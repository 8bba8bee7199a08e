/* Which taps of a sliding window fall inside an image. */
#ifndef TG_WINDOW_H
#define TG_WINDOW_H
#include "tg_kernel.h"

/* The taps k of [0, taps) with low <= base + k * step < high are [*start, *stop); none if *start >= *stop. step > 0. */
TG_INLINE void tg_window_taps(int base, int step, int taps, int low, int high, int *start, int *stop)
{
    int last = base + (taps - 1) * step;
    *start = base >= low ? 0 : (low - base + step - 1) / step;
    *stop = last < high ? taps : base >= high ? 0 : (high - base + step - 1) / step;
}

#endif
