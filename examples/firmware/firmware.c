/* A firmware that learns in the field: `simplemlp` (64 inputs, 10 classes) trained on samples as they come.
 *
 * All memory is static and known at link time; the weights are in flash (weights.c, from `--weights-c`). A real
 * firmware would read a sensor in `measure`; here each class is a fixed pattern with noise, from a small generator.
 * No C library is needed, not even for printing.
 */
#include <stdint.h>
#include "board.h"
#include "model.h"

extern const uint32_t tg_weights[], tg_weights_bytes;

static unsigned char state[TG_STATE_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
static unsigned char arena[TG_ARENA_BYTES] __attribute__((aligned(TG_ALIGNMENT)));

static uint32_t noise_state = 1;

static float noise(void)
{
    noise_state = noise_state * 1664525u + 1013904223u;
    return (float)(noise_state >> 8) / 16777216.0f - 0.5f;
}

static int64_t measure(float sample[64])
{
    int label = (int)((noise_state >> 16) % 10u);
    for (int i = 0; i < 64; i++)
        sample[i] = ((i * 7 + label * 13) % 10 < 5 ? 0.5f : -0.5f) + noise();
    return label;
}

static void say(const char *text)
{
    while (*text != '\0')
        board_put(*text++);
}

static void say_number(uint32_t number, uint32_t base, int digits)
{
    char text[11];
    int at = 11;
    do
        text[--at] = "0123456789abcdef"[number % base];
    while ((number /= base) != 0 || 11 - at < digits);
    while (at < 11)
        board_put(text[at++]);
}

/* Three decimals for people, the bits for comparing boards. */
static void say_loss(float loss)
{
    union { float value; uint32_t bits; } as = {loss};
    uint32_t thousandths = (uint32_t)(loss * 1000.0f + 0.5f);
    say_number(thousandths / 1000u, 10, 1);
    say(".");
    say_number(thousandths % 1000u, 10, 3);
    say(" (0x");
    say_number(as.bits, 16, 8);
    say(")");
}

int firmware(void)
{
    tg_model model;
    float first = 0.0f, last = 0.0f;
    if (tg_init(&model, state, arena, tg_weights, tg_weights_bytes) != TG_OK) {
        say("weights.c is not of this model\n");
        return 2;
    }
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
    say("mean loss of the first 20 samples ");
    say_loss(first);
    say(", of the last 20 ");
    say_loss(last);
    say("\nRAM: ");
    say_number(TG_STATE_BYTES, 10, 1);
    say(" bytes of state, ");
    say_number(TG_ARENA_BYTES, 10, 1);
    say(" bytes of arena\n");
    return last < 0.5f * first ? 0 : 1;
}
