/* Saves a model that trains while power fails, and while bits flip. In the place of main.c; the model is simplemlp.
 *
 *   power cuts COUNT SEED SECTOR PAGE    power fails at a random byte of a save, COUNT times
 *   power flips COUNT SEED SECTOR PAGE   one bit of the storage flips, COUNT times; then one in each slot
 *   power size SECTOR PAGE               the bytes that a storage must have
 *   power write FILE BYTES STEPS         trains STEPS mini-batches (two an update), then saves to a file
 *   power read FILE BYTES                loads from a file, prints status, counters and the CRC-32 of what trains
 *
 * Ends with status 1 and a reason where something was lost. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tg_image.h"
#include "tg_storage_file.h"
#include "tg_storage_nor.h"

extern const uint32_t tg_weights[], tg_weights_bytes;

#ifdef TG_L3_BYTES
enum { ALL_BYTES = TG_STATE_BYTES + TG_L3_BYTES };
#else
enum { ALL_BYTES = TG_STATE_BYTES };
#endif
enum { MOST_BYTES = 1 << 20, MOST_PAGE = 4096 };

typedef struct {
    uint64_t minibatches, updates;
    uint32_t bytes;
    unsigned char tensors[ALL_BYTES];
} content;

static uint64_t random_state = 88172645463325252u;

static uint32_t draw(uint32_t bound)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32) % bound;
}

static void expect(int holds, const char *what)
{
    if (holds)
        return;
    printf("LOST: %s\n", what);
    exit(1);
}

static tg_model *fresh(void)
{
    tg_model *m = NULL;
    expect(tg_static_instance(&m, tg_weights, tg_weights_bytes) == TG_OK, "no instance");
    return m;
}

static int is_role(int index, const char *role) { return strcmp(tg_tensors[index].role, role) == 0; }

/* Everything that outlives a call, but for sums of gradients that the next step would start anew. */
static content content_of(const tg_model *m)
{
    content found = {.minibatches = m->minibatches, .updates = m->updates};
    unsigned char starts_anew = 1;
    for (int i = 0; i < TG_TENSOR_COUNT; i++)
        if (strcmp(tg_tensors[i].name, "tg.lazy_reset_grad") == 0)
            tg_read_tensor(m, i, &starts_anew, 1);
    for (int i = 0; i < TG_TENSOR_COUNT; i++) {
        if (is_role(i, "gradient") && starts_anew)
            continue;
        tg_read_tensor(m, i, found.tensors + found.bytes, tg_tensors[i].bytes);
        found.bytes += tg_tensors[i].bytes;
    }
    return found;
}

static int is_same(const content *a, const content *b)
{
    return a->minibatches == b->minibatches && a->updates == b->updates && a->bytes == b->bytes &&
           memcmp(a->tensors, b->tensors, a->bytes) == 0;
}

/* Mini-batch number `m->minibatches`; an update behind every second. */
static void train(tg_model *m, int stops_before_update)
{
    float x[64], loss;
    int64_t label = (int64_t)(m->minibatches % 10u);
    for (int i = 0; i < 64; i++)
        x[i] = (float)((m->minibatches * 31u + (uint64_t)i * 7u) % 17u) / 8.0f - 1.0f;
    expect(tg_step(m, x, &label, &loss) == TG_OK, "a step");
    if (!stops_before_update)
        expect(tg_update(m) == TG_OK, "an update");
}

static unsigned char memory[MOST_BYTES], page[MOST_PAGE];

static uint32_t needed(tg_model *m, uint32_t sector, uint32_t page_bytes)
{
    tg_nor nor;
    tg_storage storage;
    tg_nor_attach(&nor, &storage, memory, 2 * sector, sector, page_bytes, page);
    train(m, 1); /* with gradients, which takes most */
    tg_status status = tg_save(m, &storage);
    expect(status == TG_STORAGE_SMALL || status == TG_OK, "a save to a small storage");
    return storage.needed_bytes;
}

static void attach(tg_nor *nor, tg_storage *storage, uint32_t sector, uint32_t page_bytes)
{
    uint32_t bytes = needed(fresh(), sector, page_bytes);
    expect(bytes <= MOST_BYTES, "memory for the flash");
    memset(memory, 0xff, bytes);
    tg_nor_attach(nor, storage, memory, bytes, sector, page_bytes, page);
}

static int cuts(uint32_t count, uint32_t sector, uint32_t page_bytes)
{
    static content completed, attempted, loaded;
    tg_nor nor;
    tg_storage storage;
    uint32_t torn = 0, older = 0, reached = 0;
    attach(&nor, &storage, sector, page_bytes);
    tg_model *m = fresh();
    expect(tg_load(m, &storage) == TG_NO_SAVE, "a save in a new flash");
    expect(tg_save(m, &storage) == TG_OK, "the first save");
    completed = content_of(m);
    uint64_t all = nor.work;
    while (torn < count) {
        train(m, draw(4) == 0);
        attempted = content_of(m);
        nor.random = draw(0xffffffffu) + 1u;
        nor.cut_at = nor.work + draw((uint32_t)(all + all / 8));
        if (nor.cut_at == nor.work)
            nor.cut_at++;
        uint64_t before = nor.work;
        tg_status status = tg_save(m, &storage);
        expect(nor.fault == NULL, nor.fault);
        expect(status == TG_OK || nor.is_off, "a save that failed with power on");
        if (status == TG_OK) {
            completed = attempted;
            all = nor.work - before;
        }
        torn += nor.is_off != 0;
        tg_nor_power_on(&nor);
        m = fresh(); /* what was in RAM is gone */
        status = tg_load(m, &storage);
        expect(status == TG_OK || status == TG_OLDER_SAVE, "every save");
        older += status == TG_OLDER_SAVE;
        loaded = content_of(m);
        if (!is_same(&loaded, &completed)) { /* all of it was there when power failed */
            expect(is_same(&loaded, &attempted), "a completed save");
            completed = attempted;
            reached++;
        }
    }
    printf("cuts %u, reported %u, whole in spite of the cut %u, saves %u, erases %u, updates %u\n", (unsigned)torn,
           (unsigned)older, (unsigned)reached, (unsigned)storage.saves, (unsigned)storage.erases, (unsigned)m->updates);
    return 0;
}

static int flips(uint32_t count, uint32_t sector, uint32_t page_bytes)
{
    static content before, last, loaded, untouched;
    tg_nor nor;
    tg_storage storage;
    uint32_t used = 0, harmless = 0, none = 0;
    attach(&nor, &storage, sector, page_bytes);
    tg_model *m = fresh();
    untouched = content_of(m);
    for (int i = 0; i < 3; i++)
        train(m, 0);
    expect(tg_save(m, &storage) == TG_OK, "a save");
    before = content_of(m);
    train(m, 0);
    expect(tg_save(m, &storage) == TG_OK, "a save");
    last = content_of(m);
    for (uint32_t i = 0; i < 2 * count; i++) {
        uint32_t half = storage.bytes / 2, first = draw(i < count ? storage.bytes : half), second = half + draw(half);
        unsigned char bit = (unsigned char)(1u << draw(8)), other = i < count ? 0 : (unsigned char)(1u << draw(8));
        memory[first] ^= bit;
        memory[second] ^= other;
        m = fresh();
        tg_status status = tg_load(m, &storage);
        loaded = content_of(m);
        if (status == TG_OK) {
            expect(is_same(&loaded, &last), "the last save, or the status that says so");
            harmless++;
        } else if (status == TG_OLDER_SAVE) {
            expect(is_same(&loaded, &before), "the save before the damaged one");
            used++;
        } else {
            expect(status == TG_NO_SAVE && other != 0, "both saves to one bit");
            expect(is_same(&loaded, &untouched), "the state, to a save that was refused");
            none++;
        }
        memory[first] ^= bit;
        memory[second] ^= other;
    }
    printf("flips %u in one slot, %u in both: harmless %u, the save before used %u, none left %u\n", (unsigned)count,
           (unsigned)count, (unsigned)harmless, (unsigned)used, (unsigned)none);
    return 0;
}

static int with_file(int writes, const char *path, uint32_t bytes, uint32_t steps)
{
    tg_file file;
    tg_storage storage;
    tg_model *m = fresh();
    expect(tg_file_open(&file, &storage, path, bytes) == 0, "the file");
    if (writes)
        for (uint32_t i = 0; i < steps; i++)
            train(m, (i & 1u) == 0);
    tg_status status = writes ? tg_save(m, &storage) : tg_load(m, &storage);
    content found = content_of(m);
    printf("status %d minibatches %u updates %u crc %08x needed %u erases %u\n", (int)status, (unsigned)m->minibatches,
           (unsigned)m->updates, (unsigned)tg_crc32(0, found.tensors, found.bytes), (unsigned)storage.needed_bytes,
           (unsigned)storage.erases);
    tg_file_close(&file);
    return 0;
}

static uint32_t number(const char *text) { return (uint32_t)strtoul(text, NULL, 0); }

int main(int argc, char **argv)
{
    if (argc == 6 && (strcmp(argv[1], "cuts") == 0 || strcmp(argv[1], "flips") == 0)) {
        random_state ^= (uint64_t)number(argv[3]) * 0x9e3779b97f4a7c15u;
        uint32_t count = number(argv[2]), sector = number(argv[4]), page_bytes = number(argv[5]);
        return argv[1][0] == 'c' ? cuts(count, sector, page_bytes) : flips(count, sector, page_bytes);
    }
    if (argc == 4 && strcmp(argv[1], "size") == 0)
        return printf("%u\n", (unsigned)needed(fresh(), number(argv[2]), number(argv[3]))) < 0;
    if (argc == 5 && strcmp(argv[1], "write") == 0)
        return with_file(1, argv[2], number(argv[3]), number(argv[4]));
    if (argc == 4 && strcmp(argv[1], "read") == 0)
        return with_file(0, argv[2], number(argv[3]), 0);
    return 2;
}
