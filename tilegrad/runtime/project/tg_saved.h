#ifndef TG_SAVED_H
#define TG_SAVED_H

/* What tg_save saves of this model: places in tg_tensors, and a directory for those who read it. */
#include <stdint.h>

/* The storage that was asked for, and the bytes that a save takes of its slot. */
#define TG_STORAGE_BYTES @storage_bytes@u
#define TG_SECTOR_BYTES @sector_bytes@u
#define TG_PAGE_BYTES @page_bytes@u
#define TG_SAVE_BYTES @save_bytes@u /* between updates */
#define TG_LARGEST_SAVE_BYTES @largest_save_bytes@u /* in the middle of one, with gradients */

#define TG_SAVED_HASH @hash@
#define TG_SAVED_COUNT @saved_count@
#define TG_SAVED_GRADIENTS @gradient_count@ /* in the middle of an accumulation, too */
#define TG_FROZEN_COUNT @frozen_count@ /* never: a save is for these values of them */
#define TG_SAVED_FLAG (@flag@) /* says that the next tg_step starts a new sum */
#define TG_DIRECTORY_BYTES @directory_bytes@u

/* clang-format off */
static const uint16_t tg_saved[] = {
    @saved@,
};
static const uint16_t tg_frozen[] = {
    @frozen@,
};
static const char tg_directory[] =
    "@directory@";
/* clang-format on */

#endif
