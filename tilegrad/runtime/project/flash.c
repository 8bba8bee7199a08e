/* Frozen parameters, statistics and constants: read in place (F_ in model.c), never copied to RAM. */
/* clang-format off */
#include "model.h"

const uint32_t tg_flash[TG_FLASH_BYTES / 4] __attribute__((aligned(TG_ALIGNMENT))) = {
    @words@
};
