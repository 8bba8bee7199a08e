/* How the host and the accelerator talk: two rings of bytes in memory that both see. Each ring has one writer and one
 * reader. The host knows nothing of what passes through: it is the harness protocol (main.c). */
#ifndef TG_WINDOW_H
#define TG_WINDOW_H
#include <stdint.h>

/* An accelerator's caches are not coherent with its DMA engine, other cores or the host: what others wrote is read again
 * after TG_INVALIDATE, and what was written is there for them after TG_FENCE. */
#ifdef __kvx__
#define TG_INVALIDATE() __builtin_kvx_dinval()
#define TG_FENCE() __builtin_kvx_fence()
#else
#define TG_INVALIDATE() __sync_synchronize()
#define TG_FENCE() __sync_synchronize()
#endif

enum { TG_RING_BYTES = 1 << 18, TG_WINDOW_READY = 0x7469676c };
typedef struct {
    volatile uint32_t written, read; /* bytes so far, modulo 2^32 */
    unsigned char bytes[TG_RING_BYTES];
} tg_ring;
typedef struct {
    volatile uint32_t ready; /* by the host, when the rings are empty */
    tg_ring to_accelerator, to_host;
} tg_window;

/* Moves what fits, and returns how much that was. */
static inline uint32_t tg_ring_put(tg_ring *ring, const void *data, uint32_t bytes)
{
    const unsigned char *source = data;
    TG_INVALIDATE();
    uint32_t room = TG_RING_BYTES - (ring->written - ring->read), count = bytes < room ? bytes : room;
    for (uint32_t i = 0; i < count; i++)
        ring->bytes[(ring->written + i) % TG_RING_BYTES] = source[i];
    TG_FENCE();
    ring->written += count;
    TG_FENCE();
    return count;
}

static inline uint32_t tg_ring_get(tg_ring *ring, void *data, uint32_t bytes)
{
    unsigned char *target = data;
    TG_INVALIDATE();
    uint32_t there = ring->written - ring->read, count = bytes < there ? bytes : there;
    for (uint32_t i = 0; i < count; i++)
        target[i] = ring->bytes[(ring->read + i) % TG_RING_BYTES];
    TG_FENCE();
    ring->read += count;
    TG_FENCE();
    return count;
}

#endif
