/* A firmware that learns and may lose power at any moment: `simplemlp` (64 inputs, 10 classes), saved to flash.
 *
 * It trains on samples as they come, saves every fifth update, and when it starts again it goes on from the last complete
 * save. The sample of a mini-batch depends on its number alone, so that a run that was cut off ends with the weights of
 * one that was not, bit for bit. A real firmware would keep its samples in flash, or take new ones. */
#include "board.h"
#include "flash.h"
#include "model.h"
#include "tg_image.h"
#include "tg_storage.h"

enum { UPDATES = 40, BETWEEN_SAVES = 5 };

extern const uint32_t tg_weights[], tg_weights_bytes;

static unsigned char state[TG_STATE_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
static unsigned char arena[TG_ARENA_BYTES] __attribute__((aligned(TG_ALIGNMENT)));

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

static void say_counted(const char *text, uint32_t number)
{
    say(text);
    say_number(number, 10, 1);
}

/* Each class is a pattern with noise, by a small generator that starts from the number of the mini-batch. */
static int64_t measure(uint64_t number, float sample[64])
{
    uint32_t noise = (uint32_t)number * 2654435761u + 12345u;
    int label = (int)(number * 7u % 10u);
    for (int i = 0; i < 64; i++) {
        noise = noise * 1664525u + 1013904223u;
        sample[i] = ((i * 7 + label * 13) % 10 < 5 ? 0.5f : -0.5f) + (float)(noise >> 8) / 16777216.0f - 0.5f;
    }
    return label;
}

static uint32_t crc_of_weights(void)
{
    uint32_t crc = 0;
    for (int i = 0; i < TG_TENSOR_COUNT; i++)
        if (tg_tensors[i].role[0] == 'p') /* parameter */
            crc = tg_crc32(crc, state + tg_tensors[i].offset, tg_tensors[i].bytes);
    return crc;
}

int firmware(void)
{
    static tg_model model;
    static tg_storage storage;
    float sample[64], loss = 0.0f;
    if (tg_init(&model, state, arena, tg_weights, tg_weights_bytes) != TG_OK || flash_open(&storage) != 0)
        return 2;
    tg_status found = tg_load(&model, &storage);
    if (found != TG_OK && found != TG_OLDER_SAVE && found != TG_NO_SAVE)
        return 3; /* a save of another model or of another version: erase it, or ask somebody */
    say_counted(found == TG_NO_SAVE ? "starts anew at update " : "goes on at update ", (uint32_t)model.updates);
    say(found == TG_OLDER_SAVE ? ", a later save was cut off\n" : "\n");
    while (model.updates < UPDATES) {
        int64_t label = measure(model.minibatches, sample);
        if (tg_step(&model, sample, &label, &loss) != TG_OK || tg_update(&model) != TG_OK)
            return 4;
        if (model.updates % BETWEEN_SAVES == 0 && tg_save(&model, &storage) != TG_OK)
            return 5;
    }
    say_counted("update ", (uint32_t)model.updates);
    say(": weights 0x");
    say_number(crc_of_weights(), 16, 8);
    say_counted("\nsaves ", storage.saves);
    say_counted(", erases ", storage.erases);
    if (storage.saves != 0) {
        say_counted(", per save ", storage.erases / storage.saves);
        say_counted(", per 1000 updates ", storage.erases * 1000u / (storage.saves * BETWEEN_SAVES));
    }
    say("\n");
    return 0;
}
