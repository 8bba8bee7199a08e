/* This machine: a file in the working directory. */
#include "flash.h"
#include "tg_storage_file.h"

int flash_open(tg_storage *storage)
{
    static tg_file file;
    return tg_file_open(&file, storage, "flash.bin", 64 * 1024);
}
