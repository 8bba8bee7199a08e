/* The parallel NOR flash of the board `virt`, by the command set of CFI (Intel): two chips side by side, 16 bits each.
 * The first bank may hold code, so that saves are in the second. */
#include "flash.h"

enum { SECTOR_BYTES = 256 * 1024, PAGE_BYTES = 256 };
enum { BANK = 0x22000000 };
#define BOTH(command) ((uint32_t)(command) * 0x00010001u)
#define READ_ARRAY BOTH(0xff)
#define CLEAR_STATUS BOTH(0x50)
#define PROGRAM BOTH(0x40)
#define ERASE BOTH(0x20)
#define CONFIRM BOTH(0xd0)
#define READY BOTH(0x80)
#define ERRORS BOTH(0x3a)

static volatile uint32_t *word_at(uint32_t offset) { return (volatile uint32_t *)(uintptr_t)(BANK + offset); }

/* After a command the chips show their status in the place of their content. */
static uint32_t wait(uint32_t offset)
{
    uint32_t status;
    do
        status = *word_at(offset);
    while ((status & READY) != READY);
    return status & ERRORS;
}

static int finish(uint32_t offset, uint32_t errors)
{
    *word_at(offset) = CLEAR_STATUS;
    *word_at(offset) = READ_ARRAY;
    return errors != 0;
}

static int erase(void *context, uint32_t offset)
{
    (void)context;
    *word_at(offset) = ERASE;
    *word_at(offset) = CONFIRM;
    return finish(offset, wait(offset));
}

static int program(void *context, uint32_t offset, const void *page)
{
    const unsigned char *from = (const unsigned char *)page;
    uint32_t errors = 0;
    (void)context;
    for (uint32_t i = 0; i < PAGE_BYTES; i += 4, from += 4) {
        uint32_t word = (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
        *word_at(offset + i) = PROGRAM;
        *word_at(offset + i) = word;
        errors |= wait(offset + i);
    }
    return finish(offset, errors);
}

static int read(void *context, uint32_t offset, void *data, uint32_t bytes)
{
    unsigned char *to = (unsigned char *)data;
    (void)context;
    for (uint32_t i = 0; i < bytes; i++)
        to[i] = *(volatile unsigned char *)(uintptr_t)(BANK + offset + i);
    return 0;
}

int flash_open(tg_storage *storage)
{
    static unsigned char page[PAGE_BYTES];
    *storage = (tg_storage){.bytes = 2 * SECTOR_BYTES, .sector_bytes = SECTOR_BYTES, .page_bytes = PAGE_BYTES};
    storage->page = page;
    storage->erase = erase;
    storage->program = program;
    storage->read = read;
    return 0;
}
