/* This machine: a file, flash.bin in the working directory. POWER_FAILS_AT=N in the environment ends the program in the
 * middle of a write, when N bytes were programmed: what a power cut does, at a moment that can be chosen. */
#include <stdio.h>
#include <stdlib.h>
#include "flash.h"

static FILE *file;
static unsigned long programmed, fails_at;

static int write_at(uint32_t offset, const unsigned char *data, uint32_t bytes)
{
    return fseek(file, (long)offset, SEEK_SET) != 0 || fwrite(data, 1, bytes, file) != bytes || fflush(file) != 0;
}

static int erase(void *context, uint32_t offset)
{
    static unsigned char blank[SECTOR_BYTES];
    (void)context;
    for (uint32_t i = 0; i < SECTOR_BYTES; i++)
        blank[i] = 0xff;
    return write_at(offset, blank, SECTOR_BYTES);
}

static int program(void *context, uint32_t offset, const void *page)
{
    (void)context;
    if (fails_at != 0 && programmed + PAGE_BYTES > fails_at) {
        write_at(offset, (const unsigned char *)page, (uint32_t)(fails_at - programmed));
        _Exit(99);
    }
    programmed += PAGE_BYTES;
    return write_at(offset, (const unsigned char *)page, PAGE_BYTES);
}

static int read(void *context, uint32_t offset, void *data, uint32_t bytes)
{
    (void)context;
    return fseek(file, (long)offset, SEEK_SET) != 0 || fread(data, 1, bytes, file) != bytes;
}

int flash_open(tg_storage *storage)
{
    static unsigned char page[PAGE_BYTES];
    const char *at = getenv("POWER_FAILS_AT");
    fails_at = at == NULL ? 0 : strtoul(at, NULL, 10);
    *storage = (tg_storage){.bytes = STORAGE_BYTES, .sector_bytes = SECTOR_BYTES, .page_bytes = PAGE_BYTES};
    storage->page = page;
    storage->erase = erase;
    storage->program = program;
    storage->read = read;
    file = fopen("flash.bin", "r+b");
    if (file != NULL)
        return 0;
    file = fopen("flash.bin", "w+b");
    for (uint32_t offset = 0; file != NULL && offset < STORAGE_BYTES; offset += SECTOR_BYTES)
        if (erase(NULL, offset) != 0)
            return 1;
    return file == NULL;
}
