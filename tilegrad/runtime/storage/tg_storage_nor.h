/* A NOR flash in memory, for tests on a desk: programming clears bits, an erase sets a sector to 0xff, and power may
 * fail in the middle of either. */
#ifndef TG_STORAGE_NOR_H
#define TG_STORAGE_NOR_H
#include "tg_storage.h"

typedef struct {
    unsigned char *memory; /* storage.bytes, yours; a new flash is all 0xff */
    uint64_t work;         /* bytes erased or programmed so far */
    uint64_t cut_at;       /* power fails when `work` gets there; 0: never */
    uint32_t random;       /* decides what becomes of the bytes that were being changed then */
    int is_off;            /* power has failed: nothing answers until tg_nor_power_on */
    const char *fault;     /* what no flash may be asked: a page that is not erased, an offset that is no page's */
    uint32_t bytes, sector_bytes, page_bytes;
} tg_nor;

/* Makes `storage` this flash. `memory` has `bytes`, `page` has `page_bytes`. */
void tg_nor_attach(tg_nor *nor, tg_storage *storage, unsigned char *memory, uint32_t bytes, uint32_t sector_bytes,
                   uint32_t page_bytes, void *page);
void tg_nor_power_on(tg_nor *nor);

#endif
