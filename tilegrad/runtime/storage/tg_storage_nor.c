/* A simulated NOR flash (tg_storage_nor.h). When power fails, a page or a sector is left torn: bytes before the cut are
 * done, the rest are as they were, done or half done, each by itself. */
#include <string.h>
#include "tg_storage_nor.h"

static uint32_t draw(tg_nor *nor)
{
    nor->random ^= nor->random << 13;
    nor->random ^= nor->random >> 17;
    nor->random ^= nor->random << 5;
    return nor->random;
}

/* Changes `bytes` at `offset` to `wanted` (null: to 0xff), as far as power lasts. */
static int change(tg_nor *nor, uint32_t offset, const unsigned char *wanted, uint32_t bytes)
{
    int is_torn = nor->cut_at != 0 && nor->work + bytes > nor->cut_at;
    uint32_t done = is_torn ? (uint32_t)(nor->cut_at - nor->work) : bytes;
    int in_order = is_torn && (draw(nor) & 1u) != 0; /* else the rest of the page or sector was being changed, too */
    for (uint32_t i = 0; i < bytes; i++) {
        unsigned char *byte = &nor->memory[offset + i];
        unsigned char after = wanted == NULL ? 0xff : (unsigned char)(*byte & wanted[i]);
        unsigned char bits = 0xff; /* that get where they should */
        if (i >= done)
            bits = i == done || !in_order ? (unsigned char)(draw(nor) >> 11) : 0;
        *byte = (unsigned char)((*byte & ~bits) | (after & bits));
    }
    nor->work += done;
    nor->is_off = is_torn;
    return is_torn;
}

static int refuse(tg_nor *nor, const char *fault)
{
    nor->fault = fault;
    return 1;
}

static int erase(void *context, uint32_t offset)
{
    tg_nor *nor = (tg_nor *)context;
    if (nor->is_off)
        return 1;
    if (offset % nor->sector_bytes != 0 || offset >= nor->bytes)
        return refuse(nor, "an erase of what is no sector");
    return change(nor, offset, NULL, nor->sector_bytes);
}

static int program(void *context, uint32_t offset, const void *page)
{
    tg_nor *nor = (tg_nor *)context;
    if (nor->is_off)
        return 1;
    if (offset % nor->page_bytes != 0 || offset >= nor->bytes)
        return refuse(nor, "a program of what is no page");
    for (uint32_t i = 0; i < nor->page_bytes; i++)
        if (nor->memory[offset + i] != 0xff)
            return refuse(nor, "a page that was not erased was programmed");
    return change(nor, offset, (const unsigned char *)page, nor->page_bytes);
}

static int read(void *context, uint32_t offset, void *data, uint32_t bytes)
{
    tg_nor *nor = (tg_nor *)context;
    if (nor->is_off)
        return 1;
    if (offset > nor->bytes || bytes > nor->bytes - offset)
        return refuse(nor, "a read outside of the flash");
    memcpy(data, nor->memory + offset, bytes);
    return 0;
}

void tg_nor_attach(tg_nor *nor, tg_storage *storage, unsigned char *memory, uint32_t bytes, uint32_t sector_bytes,
                   uint32_t page_bytes, void *page)
{
    *nor = (tg_nor){.memory = memory, .random = 1, .bytes = bytes, .sector_bytes = sector_bytes};
    nor->page_bytes = page_bytes;
    *storage = (tg_storage){.bytes = bytes, .sector_bytes = sector_bytes, .page_bytes = page_bytes, .page = page};
    storage->context = nor;
    storage->erase = erase;
    storage->program = program;
    storage->read = read;
}

void tg_nor_power_on(tg_nor *nor)
{
    nor->is_off = 0;
    nor->cut_at = 0;
}
