/* A file as storage (tg_storage_file.h). What was programmed is handed to the system page by page; when it is on the
 * disk is the system's affair. */
#ifndef TG_BARE /* a board without files */
#include <string.h>
#include "tg_storage_file.h"

static int write_at(tg_file *file, uint32_t offset, const void *data, uint32_t bytes)
{
    if (fseek(file->file, (long)offset, SEEK_SET) != 0 || fwrite(data, 1, bytes, file->file) != bytes)
        return 1;
    return fflush(file->file) != 0;
}

static int erase(void *context, uint32_t offset)
{
    unsigned char blank[TG_FILE_PAGE_BYTES];
    memset(blank, 0xff, sizeof blank);
    for (uint32_t at = 0; at < TG_FILE_SECTOR_BYTES; at += TG_FILE_PAGE_BYTES)
        if (write_at((tg_file *)context, offset + at, blank, TG_FILE_PAGE_BYTES) != 0)
            return 1;
    return 0;
}

static int program(void *context, uint32_t offset, const void *page)
{
    return write_at((tg_file *)context, offset, page, TG_FILE_PAGE_BYTES);
}

static int read(void *context, uint32_t offset, void *data, uint32_t bytes)
{
    tg_file *file = (tg_file *)context;
    return fseek(file->file, (long)offset, SEEK_SET) != 0 || fread(data, 1, bytes, file->file) != bytes;
}

int tg_file_open(tg_file *file, tg_storage *storage, const char *path, uint32_t bytes)
{
    *storage = (tg_storage){.bytes = bytes, .sector_bytes = TG_FILE_SECTOR_BYTES, .page_bytes = TG_FILE_PAGE_BYTES};
    storage->page = file->page;
    storage->context = file;
    storage->erase = erase;
    storage->program = program;
    storage->read = read;
    file->file = fopen(path, "r+b");
    if (file->file == NULL)
        file->file = fopen(path, "w+b");
    if (file->file == NULL || fseek(file->file, 0, SEEK_END) != 0)
        return 1;
    long there = ftell(file->file);
    for (uint32_t at = there < 0 ? 0 : (uint32_t)there; at < bytes; at++)
        if (fputc(0xff, file->file) == EOF)
            return 1;
    return fflush(file->file) != 0;
}

void tg_file_close(tg_file *file)
{
    if (file->file != NULL)
        fclose(file->file);
    file->file = NULL;
}
#endif
