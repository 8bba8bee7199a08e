/* A product that learns its owner: it ships with a model that was trained on others, is told a few of its owner's
 * samples, and learns them in place. Power may fail at any moment; it goes on from its last complete save.
 *
 * samples.h has the owner's samples, those that are held out, and the recipe. The order of samples is a function of seed
 * and epoch (tg_shuffled), so that a desk which has the samples replays the run bit for bit. */
#include "board.h"
#include "flash.h"
#include "tg_random.h"
#include "model.h"
#include "samples.h"
#include "tg_image.h"
#include "tg_storage.h"

extern const uint32_t tg_weights[], tg_weights_bytes;

static unsigned char state[TG_STATE_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
static unsigned char arena[TG_ARENA_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
static float inputs[BATCH * INPUT_SIZE], scores[BATCH * CLASSES];
static int64_t labels[BATCH];

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

static void take(uint32_t place, const float *from, int64_t label)
{
    for (uint32_t i = 0; i < INPUT_SIZE; i++)
        inputs[place * INPUT_SIZE + i] = from[i];
    labels[place] = label;
}

/* Mini-batch `number` of the training: epoch after epoch of the owner's samples, each in an order of its own. */
static void take_own(uint32_t number)
{
    for (uint32_t i = 0; i < BATCH; i++) {
        uint32_t place = number * BATCH + i;
        uint32_t sample = tg_shuffled(SEED, place / OWN_COUNT, place % OWN_COUNT, OWN_COUNT);
        take(i, own_inputs + sample * INPUT_SIZE, own_labels[sample]);
    }
}

/* How many of the samples that are held out are recognised. */
static tg_status count_right(tg_model *model, uint32_t *right)
{
    *right = 0;
    for (uint32_t first = 0; first < HELD_OUT_COUNT; first += BATCH) {
        for (uint32_t i = 0; i < BATCH; i++) {
            uint32_t sample = first + i < HELD_OUT_COUNT ? first + i : 0; /* fills the last mini-batch, not counted */
            take(i, held_out_inputs + sample * INPUT_SIZE, held_out_labels[sample]);
        }
        tg_status status = tg_infer(model, inputs, scores);
        if (status != TG_OK)
            return status;
        for (uint32_t i = 0; i < BATCH && first + i < HELD_OUT_COUNT; i++) {
            uint32_t best = 0;
            for (uint32_t k = 1; k < CLASSES; k++)
                best = scores[i * CLASSES + k] > scores[i * CLASSES + best] ? k : best;
            *right += best == (uint32_t)labels[i];
        }
    }
    return TG_OK;
}

static int tell_accuracy(tg_model *model, const char *when)
{
    uint32_t right;
    if (count_right(model, &right) != TG_OK)
        return 1;
    say(when);
    say_counted(": ", right);
    say_counted(" of ", HELD_OUT_COUNT);
    say(" are right\n");
    return 0;
}

int firmware(void)
{
    static tg_model model;
    static tg_storage storage;
    float loss = 0.0f;
    if (tg_init(&model, state, arena, tg_weights, tg_weights_bytes) != TG_OK || flash_open(&storage) != 0)
        return 2;
    tg_status found = tg_load(&model, &storage);
    if (found != TG_OK && found != TG_OLDER_SAVE && found != TG_NO_SAVE)
        return 3; /* a save of another model or of another version: erase it, or ask somebody */
    say_counted(found == TG_NO_SAVE ? "starts anew at update " : "goes on at update ", (uint32_t)model.updates);
    say(found == TG_OLDER_SAVE ? ", a later save was cut off\n" : "\n");
    if (found == TG_NO_SAVE && tell_accuracy(&model, "before") != 0)
        return 4;
    while (model.updates < UPDATES) {
        take_own((uint32_t)model.minibatches);
        if (tg_step(&model, inputs, labels, &loss) != TG_OK || tg_update(&model) != TG_OK)
            return 5;
        if (model.updates % BETWEEN_SAVES == 0 || model.updates == UPDATES) {
            say_counted("saves after update ", (uint32_t)model.updates);
            say("\n");
            if (tg_save(&model, &storage) != TG_OK)
                return 6;
        }
    }
    return tell_accuracy(&model, "after") == 0 ? 0 : 7;
}
