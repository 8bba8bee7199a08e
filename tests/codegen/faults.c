/* Every way to misuse the C API that it must refuse. Takes the place of main.c, on a host and on a board alike; the exit
 * status is 0, or follows from the number of the first check that failed. Both images are linked: ours and another model's. */
#include <string.h>
#include "model.h"
#ifdef TG_BARE /* what the emulator's counter looks for */
void tg_count_begin(void);
void tg_count_end(void);
void tg_other_core(void);
#endif

extern const uint32_t tg_weights[], other_weights[];
extern const uint32_t tg_weights_bytes, other_weights_bytes;
#ifdef TG_FLASH_BYTES
#define WRITTEN(i) (tg_tensors[i].in_flash ? TG_READ_ONLY : TG_OK)
#else
#define WRITTEN(i) TG_OK
#endif
#ifdef TG_SCRATCH_BYTES
#define SCRATCH , scratch
#else
#define SCRATCH
#endif

static unsigned char state[TG_STATE_BYTES + TG_ALIGNMENT] __attribute__((aligned(TG_ALIGNMENT)));
static unsigned char arena[TG_ARENA_BYTES + TG_ALIGNMENT] __attribute__((aligned(TG_ALIGNMENT)));
#ifdef TG_SCRATCH_BYTES
static unsigned char scratch[TG_SCRATCH_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
#endif
static unsigned char image[TG_WEIGHTS_BYTES];
static tg_model m;
static float x[64], y[10], loss, largest[TG_LARGEST_TENSOR / 4 + 1];
static int checks;

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        checks++;                                                                                                      \
        if (!(condition))                                                                                              \
            return 1 + checks % 200;                                                                                   \
    } while (0)

static int are(const unsigned char *bytes, size_t count, unsigned char value)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != value)
            return 0;
    return 1;
}

/* Refused, with memory as it was and an instance that nothing runs on. */
static int refused(tg_status status, tg_status expected)
{
    int64_t label = 1;
    return status == expected && are(state, sizeof state, 0x5a) && are(arena, sizeof arena, 0x5a) && m.state == NULL &&
           tg_infer(&m, x, y) == TG_NOT_READY && tg_step(&m, x, &label, &loss) == TG_NOT_READY &&
           tg_update(&m) == TG_NOT_READY && tg_read_tensor(&m, 0, largest, tg_tensors[0].bytes) == TG_NOT_READY &&
           tg_write_tensor(&m, 0, largest, tg_tensors[0].bytes) == TG_NOT_READY;
}

static tg_status init(const void *bytes, size_t count) { return tg_init(&m, state, arena SCRATCH, bytes, count); }

static int check_images(void)
{
    EXPECT(refused(init(other_weights, other_weights_bytes), TG_OTHER_MODEL));
    EXPECT(refused(init(other_weights, tg_weights_bytes), TG_OTHER_MODEL));
    for (size_t bytes = 0; bytes < TG_WEIGHTS_BYTES; bytes += bytes < 40 ? 1 : 97)
        EXPECT(refused(init(tg_weights, bytes), TG_BAD_SIZE));
    EXPECT(refused(init(tg_weights, TG_WEIGHTS_BYTES - 1), TG_BAD_SIZE));
    EXPECT(refused(init(tg_weights, TG_WEIGHTS_BYTES + 1), TG_BAD_SIZE));
    EXPECT(refused(init(NULL, TG_WEIGHTS_BYTES), TG_NULL_POINTER));
    for (size_t i = 0; i < TG_WEIGHTS_BYTES; i += i < TG_HEADER_BYTES ? 1 : 61) { /* one bit of one byte */
        tg_status expected = i < 4 || i >= 28 ? TG_BAD_IMAGE : i < 8 ? TG_OTHER_VERSION : i < 24 ? TG_OTHER_MODEL : TG_BAD_SIZE;
        memcpy(image, tg_weights, sizeof image);
        image[i] = (unsigned char)(image[i] ^ 0x10u);
        EXPECT(refused(init(image, sizeof image), expected));
    }
    return 0;
}

static int check_memories(void)
{
    const void *good = tg_weights;
    EXPECT(refused(tg_init(&m, state + 1, arena SCRATCH, good, TG_WEIGHTS_BYTES), TG_MISALIGNED));
    EXPECT(refused(tg_init(&m, state, arena + TG_ALIGNMENT / 2 SCRATCH, good, TG_WEIGHTS_BYTES), TG_MISALIGNED));
    EXPECT(refused(tg_init(&m, NULL, arena SCRATCH, good, TG_WEIGHTS_BYTES), TG_NULL_POINTER));
    EXPECT(refused(tg_init(&m, state, NULL SCRATCH, good, TG_WEIGHTS_BYTES), TG_NULL_POINTER));
    EXPECT(refused(tg_init(&m, state, state SCRATCH, good, TG_WEIGHTS_BYTES), TG_OVERLAPPING));
    EXPECT(refused(tg_init(&m, state, state + TG_ALIGNMENT SCRATCH, good, TG_WEIGHTS_BYTES), TG_OVERLAPPING));
    EXPECT(tg_init(NULL, state, arena SCRATCH, good, TG_WEIGHTS_BYTES) == TG_NULL_POINTER);
#ifdef TG_SCRATCH_BYTES
    EXPECT(refused(tg_init(&m, state, arena, scratch + 4, good, TG_WEIGHTS_BYTES), TG_MISALIGNED));
    EXPECT(refused(tg_init(&m, state, arena, NULL, good, TG_WEIGHTS_BYTES), TG_NULL_POINTER));
    EXPECT(refused(tg_bind(&m, state, arena + 1, scratch), TG_MISALIGNED));
#else
    EXPECT(tg_init_in_place(&m, state, arena, good, TG_WEIGHTS_BYTES) == TG_BAD_IMAGE); /* nothing is in place */
    EXPECT(refused(tg_init_in_place(&m, state, arena, NULL, TG_WEIGHTS_BYTES), TG_NULL_POINTER));
    EXPECT(refused(tg_init_in_place(&m, state, arena, other_weights, TG_WEIGHTS_BYTES), TG_OTHER_MODEL));
    memcpy(state, (const unsigned char *)tg_weights + TG_HEADER_BYTES, TG_IMAGE_BYTES);
    EXPECT(tg_init_in_place(&m, state, arena, good, TG_WEIGHTS_BYTES) == TG_OK);
#endif
    return 0;
}

static int check_tensors(void)
{
    int64_t label = 1;
    EXPECT(init(tg_weights, tg_weights_bytes) == TG_OK);
    for (int i = -2; i < TG_TENSOR_COUNT + 2; i++) {
        int is_one = i >= 0 && i < TG_TENSOR_COUNT;
        size_t bytes = is_one ? tg_tensors[i].bytes : 4;
        memset(largest, 0x5a, sizeof largest);
        EXPECT(tg_read_tensor(&m, i, largest, bytes) == (is_one ? TG_OK : TG_BAD_INDEX));
        EXPECT(tg_write_tensor(&m, i, largest, bytes) == (is_one ? WRITTEN(i) : TG_BAD_INDEX));
        if (!is_one || WRITTEN(i) != TG_OK)
            continue;
        memset(largest, 0x5a, sizeof largest);
        EXPECT(tg_read_tensor(&m, i, largest, bytes - 1) == TG_BAD_SIZE);
        EXPECT(tg_read_tensor(&m, i, largest, bytes + 1) == TG_BAD_SIZE);
        EXPECT(tg_read_tensor(&m, i, largest, 0) == (bytes ? TG_BAD_SIZE : TG_OK));
        EXPECT(tg_write_tensor(&m, i, largest, bytes + 4) == TG_BAD_SIZE);
        EXPECT(tg_read_tensor(&m, i, NULL, bytes) == TG_NULL_POINTER);
        EXPECT(tg_write_tensor(&m, i, NULL, bytes) == TG_NULL_POINTER);
        EXPECT(are((const unsigned char *)largest, sizeof largest, 0x5a));
    }
    EXPECT(tg_read_tensor(NULL, 0, largest, 4) == TG_NOT_READY);
    EXPECT(tg_infer(&m, NULL, y) == TG_NULL_POINTER && tg_infer(&m, x, NULL) == TG_NULL_POINTER);
    EXPECT(tg_step(&m, x, NULL, &loss) == TG_NULL_POINTER && tg_step(NULL, x, &label, &loss) == TG_NOT_READY);
    EXPECT(tg_infer(&m, x, y) == TG_OK && tg_step(&m, x, &label, &loss) == TG_OK && tg_update(&m) == TG_OK);
    float rate = 0.0f, zero = 0.0f;
    EXPECT(tg_get_learning_rate(&m, &rate) == TG_OK && rate == 0.01f);
    EXPECT(tg_set_learning_rate(&m, -1.0f) == TG_BAD_NUMBER && tg_set_learning_rate(&m, 1.0f / zero) == TG_BAD_NUMBER);
    EXPECT(tg_set_learning_rate(&m, zero / zero) == TG_BAD_NUMBER && tg_set_learning_rate(NULL, 0.5f) == TG_NOT_READY);
    EXPECT(tg_get_learning_rate(&m, &rate) == TG_OK && rate == 0.01f);
    EXPECT(tg_set_learning_rate(&m, 0.5f) == TG_OK && tg_get_learning_rate(&m, &rate) == TG_OK && rate == 0.5f);
    EXPECT(tg_get_learning_rate(&m, NULL) == TG_NULL_POINTER);
    return 0;
}

int main(int argc, char **argv)
{
    (void)argc, (void)argv;
    memset(state, 0x5a, sizeof state);
    memset(arena, 0x5a, sizeof arena);
#ifdef TG_BARE
    tg_count_begin();
    tg_count_end();
#endif
    EXPECT(tg_infer(&m, x, y) == TG_NOT_READY);
    int failed = check_images();
    if (!failed)
        failed = check_memories();
    return failed ? failed : check_tensors();
}

#ifdef TG_BARE
__attribute__((noinline)) void tg_count_begin(void) { __asm__ volatile(""); }
__attribute__((noinline)) void tg_count_end(void) { __asm__ volatile(""); }
void tg_other_core(void) { }
#endif
