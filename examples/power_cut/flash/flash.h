/* The flash of a board. Each file here has one. */
#ifndef FLASH_H
#define FLASH_H
#include "tg_storage.h"

int flash_open(tg_storage *storage); /* 0: done */

#endif
