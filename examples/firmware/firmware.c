/* A firmware that learns in the field: `simplemlp` (64 inputs, 10 classes) trained on samples as they come.
 *
 * All memory is static and known at link time; the weights are linked in (weights.c, from `--weights-c`). A real
 * firmware would read a sensor in `measure`; here each class is a fixed pattern with noise, from a small generator.
 */
#include <stdint.h>
#include <stdio.h>
#include "model.h"

extern const uint32_t tg_weights[];

/* A union is the C99 way to align: the members' strictest alignment is 8 bytes, which is TG_ALIGNMENT for this chip. */
static union { unsigned char bytes[TG_STATE_BYTES]; uint64_t align; } state;
static union { unsigned char bytes[TG_ARENA_BYTES]; uint64_t align; } arena;

static uint32_t noise_state = 1;

static float noise(void)
{
    noise_state = noise_state * 1664525u + 1013904223u;
    return (float)(noise_state >> 8) / 16777216.0f - 0.5f;
}

static int64_t measure(float sample[64])
{
    int64_t label = (int64_t)((noise_state >> 16) % 10u);
    for (int i = 0; i < 64; i++)
        sample[i] = ((i * 7 + (int)label * 13) % 10 < 5 ? 0.5f : -0.5f) + noise();
    return label;
}

int main(void)
{
    tg_model model;
    float first = 0.0f, last = 0.0f;
    tg_init(&model, state.bytes, arena.bytes, tg_weights);
    for (int update = 0; update < 200; update++) {
        float sample[64], loss;
        int64_t label = measure(sample);
        if (tg_step(&model, sample, &label, &loss) != TG_OK)
            continue; /* a label outside the classes: the sample is skipped, nothing was computed */
        tg_update(&model);
        if (update < 20)
            first += loss / 20.0f;
        if (update >= 180)
            last += loss / 20.0f;
    }
    printf("mean loss of the first 20 samples %.3f (%a), of the last 20 %.3f (%a)\n", first, first, last, last);
    printf("RAM: %d bytes of state, %d bytes of arena\n", TG_STATE_BYTES, TG_ARENA_BYTES);
    return last < 0.5f * first ? 0 : 1;
}
