/* Parts of tensors of the state, in whichever memory they live. */
#ifndef TG_PARTS_H
#define TG_PARTS_H
#include <string.h>
#include "model.h"
#ifdef TG_L3_BYTES
#include "tg_cluster.h"
#endif

static inline void tg_read_part(const tg_model *m, int index, uint32_t from, void *data, uint32_t bytes)
{
#ifdef TG_L3_BYTES
    if (tg_tensors[index].in_l3) {
        tg_l3_read(tg_tensors[index].offset + from, data, bytes);
        return;
    }
#endif
#ifdef TG_FLASH_BYTES
    if (tg_tensors[index].in_flash) {
        memcpy(data, (const unsigned char *)tg_flash + tg_tensors[index].offset + from, bytes);
        return;
    }
#endif
    memcpy(data, m->state + tg_tensors[index].offset + from, bytes);
}

static inline void tg_write_part(tg_model *m, int index, uint32_t from, const void *data, uint32_t bytes)
{
#ifdef TG_L3_BYTES
    if (tg_tensors[index].in_l3) {
        tg_l3_write(tg_tensors[index].offset + from, data, bytes);
        return;
    }
#endif
    memcpy(m->state + tg_tensors[index].offset + from, data, bytes);
}

#endif
