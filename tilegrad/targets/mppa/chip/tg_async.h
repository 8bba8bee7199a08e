/* The cluster's DMA engine. On the chip, the vendor's asynchronous transfers; elsewhere copies that happen when they are
 * waited for and not before, as on the simulator. */
#ifndef TG_ASYNC_H
#define TG_ASYNC_H
#include <stdint.h>

typedef struct {
    unsigned char *near, *far;
    uint32_t row_bytes, rows, stride;
    int inward;
} tg_part;

#ifdef __kvx__
#include <mppa_async.h>
typedef mppa_async_event_t tg_event;

static inline void tg_async_start(const tg_part *part, tg_event *event)
{
    const mppa_async_segment_t *ddr = mppa_async_default_segment(MPPA_ASYNC_SERVER_DDR0);
    off64_t offset;
    mppa_async_offset(ddr, part->far, &offset);
    if (part->inward)
        mppa_async_get_spaced(part->near, ddr, offset, part->row_bytes, (int)part->rows, part->stride, event);
    else
        mppa_async_put_spaced(part->near, ddr, offset, part->row_bytes, (int)part->rows, part->stride, event);
}

static inline void tg_async_wait(tg_event *event) { mppa_async_event_wait(event); }
#else
#include <string.h>
typedef tg_part tg_event;

static inline void tg_async_start(const tg_part *part, tg_event *event) { *event = *part; }

static inline void tg_async_wait(tg_event *event)
{
    for (uint32_t row = 0; row < event->rows; row++) {
        unsigned char *near = event->near + row * event->row_bytes, *far = event->far + row * event->stride;
        memcpy(event->inward ? near : far, event->inward ? far : near, event->row_bytes);
    }
}
#endif

#endif
