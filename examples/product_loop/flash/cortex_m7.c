/* The board mps2-an500 has no flash that QEMU would keep. A file of the emulator's takes its place, flash.bin, through
 * semihosting; ending the emulator (kill -9) is the power cut. */
#include "flash.h"

enum { SYS_OPEN = 0x01, SYS_WRITE = 0x05, SYS_READ = 0x06, SYS_SEEK = 0x0a, SYS_FLEN = 0x0c };
enum { READ_AND_WRITE = 3, NEW_AND_READ = 7 }; /* "r+b", "w+b" */
static uint32_t file;

static uint32_t ask(uint32_t operation, const uint32_t *block)
{
    register uint32_t r0 __asm__("r0") = operation;
    register const uint32_t *r1 __asm__("r1") = block;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static uint32_t open_file(uint32_t mode)
{
    static const char name[] = "flash.bin";
    return ask(SYS_OPEN, (const uint32_t[]){(uint32_t)(uintptr_t)name, mode, sizeof name - 1});
}

/* Reads or writes all of it, or tells that it could not. */
static int transfer(uint32_t operation, uint32_t offset, const void *data, uint32_t bytes)
{
    if (ask(SYS_SEEK, (const uint32_t[]){file, offset}) != 0)
        return 1;
    return ask(operation, (const uint32_t[]){file, (uint32_t)(uintptr_t)data, bytes}) != 0;
}

static int erase(void *context, uint32_t offset)
{
    unsigned char blank[PAGE_BYTES];
    (void)context;
    for (uint32_t i = 0; i < PAGE_BYTES; i++)
        blank[i] = 0xff;
    for (uint32_t at = 0; at < SECTOR_BYTES; at += PAGE_BYTES)
        if (transfer(SYS_WRITE, offset + at, blank, PAGE_BYTES) != 0)
            return 1;
    return 0;
}

static int program(void *context, uint32_t offset, const void *page)
{
    (void)context;
    return transfer(SYS_WRITE, offset, page, PAGE_BYTES);
}

static int read(void *context, uint32_t offset, void *data, uint32_t bytes)
{
    (void)context;
    return transfer(SYS_READ, offset, data, bytes);
}

int flash_open(tg_storage *storage)
{
    static unsigned char page[PAGE_BYTES];
    *storage = (tg_storage){.bytes = STORAGE_BYTES, .sector_bytes = SECTOR_BYTES, .page_bytes = PAGE_BYTES};
    storage->page = page;
    storage->erase = erase;
    storage->program = program;
    storage->read = read;
    file = open_file(READ_AND_WRITE);
    if (file == 0xffffffffu)
        file = open_file(NEW_AND_READ);
    if (file == 0xffffffffu)
        return 1;
    for (uint32_t at = ask(SYS_FLEN, (const uint32_t[]){file}); at < STORAGE_BYTES; at += SECTOR_BYTES)
        if (erase(NULL, at - at % SECTOR_BYTES) != 0)
            return 1;
    return 0;
}
