/* The bytes of weights.bin, for tg_init on a little-endian machine without a file system. */
/* clang-format off */
#include <stdint.h>

extern const uint32_t tg_weights[@count@], tg_weights_bytes;
const uint32_t tg_weights_bytes = @bytes@;
const uint32_t tg_weights[@count@] = {
    @words@
};
