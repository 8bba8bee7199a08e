#ifndef HAS_WEIGHTS_C
#include <stdio.h>

#endif
#include "model.h"

static unsigned char train_state[TG_STATE_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
static unsigned char train_arena[TG_ARENA_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
#ifdef HAS_SCRATCH
static unsigned char train_scratch[TG_SCRATCH_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
#endif
#ifdef HAS_WEIGHTS_C
extern const uint32_t tg_weights[]; /* in weights.c */
#else
static unsigned char train_image[@image_bytes@];
#endif

int main(void)
{
    static tg_model m;
@buffers@

#ifndef HAS_WEIGHTS_C
    FILE *train_file = fopen("weights.bin", "rb");
    if (!train_file || fread(train_image, 1, sizeof train_image, train_file) != sizeof train_image)
        return 2;
    fclose(train_file);
#endif
    if (tg_init(&m, @memories@, @image@, @image_bytes@) != TG_OK)
        return 2; /* an image of another model, or one that is damaged */
#ifdef HAS_TRAINING
    for (int update_number = 0; update_number < 10; update_number++) {
        for (int train_number = 0; train_number < @accumulate@; train_number++) { /* mini-batches per update */
            /* fill @inputs@ here */
            if (tg_step(&m, @ports@) != TG_OK)
                return 1; /* a label is outside the classes */
        }
        if (tg_update(&m) != TG_OK)
            return 1;
    }
#else
    if (tg_infer(&m, @ports@) != TG_OK)
        return 1;
#endif
    return 0;
}
