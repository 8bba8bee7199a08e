/* The flash of a board. Each file here has one. */
#ifndef FLASH_H
#define FLASH_H
#include "tg_storage.h"

enum { STORAGE_BYTES = 128 * 1024, SECTOR_BYTES = 4096, PAGE_BYTES = 256 }; /* as --storage says */

int flash_open(tg_storage *storage); /* 0: done */

#endif
