/* What was learned survives a power cut: tg_save and tg_load, and the little they ask of a storage.
 *
 * Storage is two slots, each half of it. A save goes into the slot that does not hold the last one: its sectors are
 * erased, its pages programmed once each, read back, and only then is it marked as complete. Power may fail at any byte
 * of that: tg_load takes the last complete save. docs/storage.md has the format, which `tilegrad checkpoint` reads. */
#ifndef TG_STORAGE_H
#define TG_STORAGE_H
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each function returns 0 when it has done its work. Offsets count from the start of the storage. */
typedef struct {
    uint32_t bytes;        /* of the storage: an even number of sectors */
    uint32_t sector_bytes; /* what one erase clears, to 0xff: a whole number of pages */
    uint32_t page_bytes;   /* what one program writes; no page is programmed twice between erases */
    void *page;            /* memory for one page, yours */
    void *context;         /* yours: what the functions are given first */
    int (*erase)(void *context, uint32_t offset);
    int (*program)(void *context, uint32_t offset, const void *page);
    int (*read)(void *context, uint32_t offset, void *data, uint32_t bytes);
    uint32_t saves, erases, programs; /* counted here since the struct was made */
    uint32_t needed_bytes;            /* after TG_STORAGE_SMALL: of a storage that is large enough */
} tg_storage;

/* Saves parameters, optimizer state, statistics that train, counters and schedule; what does not train is never
 * written. Between tg_step and tg_update the accumulated gradients are saved as well. */
tg_status tg_save(tg_model *m, tg_storage *storage);

/* Brings back the last complete save into an instance that tg_init has made. TG_OLDER_SAVE: done, but a later save was
 * begun and is not whole. TG_NO_SAVE, TG_OTHER_MODEL, TG_OTHER_VERSION: nothing has changed. */
tg_status tg_load(tg_model *m, tg_storage *storage);

#ifdef __cplusplus
}
#endif
#endif
