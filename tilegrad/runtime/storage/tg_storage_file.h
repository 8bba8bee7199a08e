/* A file as storage, for machines that have files. `tilegrad checkpoint show` and `train --resume` read it. */
#ifndef TG_STORAGE_FILE_H
#define TG_STORAGE_FILE_H
#include <stdio.h>
#include "tg_storage.h"

enum { TG_FILE_SECTOR_BYTES = 4096, TG_FILE_PAGE_BYTES = 256 };

typedef struct {
    FILE *file;
    unsigned char page[TG_FILE_PAGE_BYTES];
} tg_file;

/* Opens `path`, or makes it with `bytes` of 0xff (an even number of sectors). 0: `storage` is the file now. */
int tg_file_open(tg_file *file, tg_storage *storage, const char *path, uint32_t bytes);
void tg_file_close(tg_file *file);

#endif
