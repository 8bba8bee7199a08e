/* A cluster, simulated as an adversary: what a program may rely on happens as late as it may, and everything else is
 * poison.
 *
 *  - A transfer's data arrives when it is waited for, not before. Until then its destination is poison, and its source
 *    must not change.
 *  - Scratchpad that is no operand of the running kernel and no source of a transfer is poison while it runs, and must
 *    be unchanged when it is done.
 *  - Cores run one after the other, forwards and backwards in turn, so a kernel that depends on their order fails.
 *  - A request is waited for exactly once, and none is under way when an entry ends.
 *
 * Whoever breaks a rule stops the run with the nest, the tile and the bytes concerned. Time is not kept here: events go
 * to a trace, from which cycles are computed. */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tg_tile.h"

enum { POISON = 0xff, MAX_PARTS = 4096, L3_REQUESTS = 256, TG_DMA_REQUESTS = 16 };

typedef struct {
    unsigned char *near, *far;
    uint32_t row_bytes, rows, stride;
} part_t;

/* A transfer under way, with a copy of its source as it was when it started. */
typedef struct {
    int is_open, is_inward, is_l3;
    int part_count;
    part_t parts[MAX_PARTS];
    unsigned char *snapshot;
    size_t snapshot_bytes;
} request_t;

static struct {
    unsigned char *scratch, *state, *arena;
    const char *entry, *nest;
    int tile;
    long waits, drop_wait;
    FILE *trace;
    int is_tracing; /* the first call of each entry is enough: all are alike */
    const char *traced[8];
} sim;
static unsigned char l3_memory[TG_L3_BYTES + 1];
static request_t requests[TG_DMA_REQUESTS], l3_requests[L3_REQUESTS];

static void hazard(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "hazard in %s, nest %s, tile %d: ", sim.entry ? sim.entry : "no entry", sim.nest ? sim.nest : "none",
            sim.tile);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(3);
}

static void event(const char *format, ...)
{
    if (!sim.is_tracing)
        return;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(sim.trace, format, arguments);
    va_end(arguments);
}

static int is_inside(const unsigned char *p, size_t bytes, const unsigned char *memory, size_t size)
{
    return p >= memory && bytes <= size && (size_t)(p - memory) <= size - bytes;
}

static int is_scratch(const void *p, size_t bytes) { return is_inside(p, bytes, sim.scratch, TG_SCRATCH_BYTES); }

static int is_l2(const void *p, size_t bytes)
{
    return is_inside(p, bytes, sim.state, TG_STATE_BYTES) || is_inside(p, bytes, sim.arena, TG_ARENA_BYTES);
}

/* Where an address is, in words, for messages. */
static const char *describe(const unsigned char *p)
{
    static char text[64];
    if (is_scratch(p, 0))
        snprintf(text, sizeof text, "L1+%ld", (long)(p - sim.scratch));
    else if (is_inside(p, 0, sim.state, TG_STATE_BYTES))
        snprintf(text, sizeof text, "L2 state+%ld", (long)(p - sim.state));
    else if (is_inside(p, 0, sim.arena, TG_ARENA_BYTES))
        snprintf(text, sizeof text, "L2 arena+%ld", (long)(p - sim.arena));
    else if (is_inside(p, 0, l3_memory, TG_L3_BYTES))
        snprintf(text, sizeof text, "L3+%ld", (long)(p - l3_memory));
    else
        snprintf(text, sizeof text, "nowhere");
    return text;
}

static int overlap(const unsigned char *a, size_t a_bytes, const unsigned char *b, size_t b_bytes)
{
    return a_bytes && b_bytes && a < b + b_bytes && b < a + a_bytes;
}

/* Whether a request touches a range, on the side it reads from or the side it writes to. */
static int touches(const request_t *request, const unsigned char *p, size_t bytes, int written)
{
    for (int i = 0; request->is_open && i < request->part_count; i++) {
        const part_t *part = &request->parts[i];
        int near_is_written = request->is_inward;
        if (near_is_written == written) {
            if (overlap(part->near, (size_t)part->row_bytes * part->rows, p, bytes))
                return 1;
            continue;
        }
        for (uint32_t row = 0; row < part->rows; row++)
            if (overlap(part->far + (size_t)row * part->stride, part->row_bytes, p, bytes))
                return 1;
    }
    return 0;
}

/* Stops if a transfer under way makes it wrong to read (or write) a range now. `own` is left out. */
static void expect_settled(const unsigned char *p, size_t bytes, int writing, const request_t *own, const char *who)
{
    for (int i = 0; i < TG_DMA_REQUESTS + L3_REQUESTS; i++) {
        const request_t *request = i < TG_DMA_REQUESTS ? &requests[i] : &l3_requests[i - TG_DMA_REQUESTS];
        if (request == own || !request->is_open)
            continue;
        if (touches(request, p, bytes, 1))
            hazard("%s %s %s, %lu bytes, where a transfer has not arrived", who, writing ? "writes" : "reads",
                   describe(p), (unsigned long)bytes);
        if (writing && touches(request, p, bytes, 0))
            hazard("%s writes %s, %lu bytes, which a transfer is still reading", who, describe(p), (unsigned long)bytes);
    }
}

static void copy_part(const part_t *part, int is_inward, unsigned char **snapshot, int settle)
{
    for (uint32_t row = 0; row < part->rows; row++) {
        unsigned char *near = part->near + (size_t)row * part->row_bytes, *far = part->far + (size_t)row * part->stride;
        unsigned char *source = is_inward ? far : near, *target = is_inward ? near : far;
        if (!settle) {
            memcpy(*snapshot, source, part->row_bytes);
            memset(target, POISON, part->row_bytes);
        } else {
            if (memcmp(*snapshot, source, part->row_bytes) != 0)
                hazard("the source of a transfer, %s, changed before it was waited for", describe(source));
            memcpy(target, *snapshot, part->row_bytes);
        }
        *snapshot += part->row_bytes;
    }
}

static void add_part(request_t *request, part_t part, const char *who)
{
    size_t bytes = (size_t)part.row_bytes * part.rows;
    if (request->part_count == MAX_PARTS)
        hazard("%s has too many parts", who);
    if (!request->is_l3)
        expect_settled(part.near, bytes, request->is_inward, request, who);
    for (uint32_t row = 0; row < part.rows; row++) {
        const unsigned char *far = part.far + (size_t)row * part.stride;
        expect_settled(far, part.row_bytes, !request->is_inward, request, who);
    }
    if (request->is_l3)
        expect_settled(part.near, bytes, request->is_inward, request, who);
    request->snapshot = realloc(request->snapshot, request->snapshot_bytes + bytes + 1);
    if (request->snapshot == NULL)
        hazard("the simulator is out of memory");
    unsigned char *end = request->snapshot + request->snapshot_bytes;
    copy_part(&part, request->is_inward, &end, 0);
    request->snapshot_bytes += bytes;
    request->parts[request->part_count++] = part;
}

static void settle_request(request_t *request, const char *who)
{
    if (!request->is_open)
        hazard("%s is waited for, but none is under way", who);
    if (++sim.waits == sim.drop_wait)
        return;
    unsigned char *snapshot = request->snapshot;
    for (int i = 0; i < request->part_count; i++)
        copy_part(&request->parts[i], request->is_inward, &snapshot, 1);
    free(request->snapshot);
    memset(request, 0, offsetof(request_t, parts));
    request->snapshot = NULL;
    request->snapshot_bytes = 0;
}

static int free_request(request_t *table, int count, const char *who)
{
    for (int i = 0; i < count; i++)
        if (!table[i].is_open)
            return i;
    hazard("more than %d %s under way", count, who);
    return 0;
}

int tg_dma_open(int inward)
{
    int id = free_request(requests, TG_DMA_REQUESTS, "transfers between L1 and L2 are");
    requests[id].is_open = 1;
    requests[id].is_inward = inward;
    event("o %d %d\n", id, inward);
    return id;
}

void tg_dma_add(int id, void *scratch, void *far, uint32_t row_bytes, uint32_t rows, uint32_t far_stride)
{
    part_t part = {scratch, far, row_bytes, rows, far_stride};
    size_t bytes = (size_t)row_bytes * rows;
    if (id < 0 || id >= TG_DMA_REQUESTS || !requests[id].is_open)
        hazard("a part is added to a request that is not open");
    if (!is_scratch(scratch, bytes))
        hazard("a transfer of %lu bytes passes the end of L1", (unsigned long)bytes);
    if (rows && !is_l2(far, (size_t)(rows - 1) * far_stride + row_bytes))
        hazard("a transfer of %lu bytes passes the end of L2", (unsigned long)bytes);
    /* The engine takes no longer ones; the runtime splits by rows. */
    if (bytes > TG_DMA_LONGEST)
        hazard("a transfer of %lu bytes is longer than the engine takes", (unsigned long)bytes);
    event("a %d %u %u\n", id, (unsigned)row_bytes, (unsigned)rows);
    add_part(&requests[id], part, "a DMA transfer");
}

void tg_dma_wait(int id)
{
    event("w %d\n", id);
    if (id < 0 || id >= TG_DMA_REQUESTS)
        hazard("a request that never was is waited for");
    settle_request(&requests[id], "a DMA transfer");
}

int tg_l3_start(void *l2, uint32_t l3_offset, uint32_t bytes, int inward)
{
    int id = free_request(l3_requests, L3_REQUESTS, "transfers between L2 and L3 are");
    if (!is_l2(l2, bytes))
        hazard("a transfer of %lu bytes passes the end of L2", (unsigned long)bytes);
    if (l3_offset > TG_L3_BYTES || bytes > TG_L3_BYTES - l3_offset)
        hazard("a transfer of %lu bytes passes the end of L3", (unsigned long)bytes);
    l3_requests[id].is_open = l3_requests[id].is_l3 = 1;
    l3_requests[id].is_inward = inward;
    event("s %d %d %u\n", id, inward, (unsigned)bytes);
    part_t part = {l2, l3_memory + l3_offset, bytes, 1, bytes};
    add_part(&l3_requests[id], part, "an L3 transfer");
    return id;
}

void tg_l3_wait(int id)
{
    event("v %d\n", id);
    if (id < 0 || id >= L3_REQUESTS)
        hazard("an L3 request that never was is waited for");
    settle_request(&l3_requests[id], "an L3 transfer");
}

void tg_l3_clear(uint32_t bytes) { memset(l3_memory, 0, bytes); }
void tg_l3_write(uint32_t l3_offset, const void *data, uint32_t bytes) { memcpy(l3_memory + l3_offset, data, bytes); }
void tg_l3_read(uint32_t l3_offset, void *data, uint32_t bytes) { memcpy(data, l3_memory + l3_offset, bytes); }

void tg_attach(unsigned char *scratch, unsigned char *state, unsigned char *arena)
{
    const char *fault = getenv("TG_SIM_DROP_WAIT"), *trace = getenv("TG_SIM_TRACE");
    sim.scratch = scratch;
    sim.state = state;
    sim.arena = arena;
    sim.drop_wait = fault ? atol(fault) : 0;
    sim.trace = trace ? fopen(trace, "w") : NULL;
    memset(scratch, POISON, TG_SCRATCH_BYTES);
    memset(arena, POISON, TG_ARENA_BYTES);
}

void tg_begin(const char *entry)
{
    int i = 0;
    sim.entry = entry;
    sim.nest = NULL;
    while (sim.traced[i] && strcmp(sim.traced[i], entry) != 0)
        i++;
    sim.is_tracing = sim.trace != NULL && sim.traced[i] == NULL;
    sim.traced[i] = entry;
    event("B %s\n", entry);
}

void tg_end(const char *entry)
{
    event("E %s\n", entry);
    for (int i = 0; i < TG_DMA_REQUESTS; i++)
        if (requests[i].is_open)
            hazard("a DMA transfer is still under way when the entry ends");
    for (int i = 0; i < L3_REQUESTS; i++)
        if (l3_requests[i].is_open)
            hazard("an L3 transfer is still under way when the entry ends");
    if (sim.trace)
        fflush(sim.trace);
    sim.entry = NULL;
}

/* Poisons scratchpad but for the job's operands and what transfers still touch; keeps a copy to compare with. */
static void poison_the_rest(const tg_job *job, unsigned char *kept)
{
    memset(kept, 0, TG_SCRATCH_BYTES);
    for (int i = 0; i < job->operand_count; i++)
        if (job->bytes[i] && is_scratch(job->at[i], job->bytes[i]))
            memset(kept + ((unsigned char *)job->at[i] - sim.scratch), 1, job->bytes[i]);
    for (int i = 0; i < TG_DMA_REQUESTS; i++)
        for (int k = 0; requests[i].is_open && k < requests[i].part_count; k++) {
            const part_t *part = &requests[i].parts[k];
            memset(kept + (part->near - sim.scratch), 1, (size_t)part->row_bytes * part->rows);
        }
    for (size_t i = 0; i < TG_SCRATCH_BYTES; i++)
        if (!kept[i])
            sim.scratch[i] = POISON;
}

static void expect_poison_outside(const unsigned char *kept)
{
    for (size_t i = 0; i < TG_SCRATCH_BYTES; i++)
        if (!kept[i] && sim.scratch[i] != POISON)
            hazard("the kernel wrote L1+%lu, which is none of its operands", (unsigned long)i);
}

void tg_run_on_cores(tg_kernel_call *call, const tg_job *job)
{
    static unsigned char kept[TG_SCRATCH_BYTES];
    sim.nest = job->name;
    sim.tile = job->tile;
    event("k %s %d\n", job->name, job->tile);
    for (int i = 0; i < job->operand_count; i++) {
        if (!job->bytes[i])
            continue;
        if (!is_scratch(job->at[i], job->bytes[i]) && !is_l2(job->at[i], job->bytes[i]))
            hazard("operand %d lies where a core cannot reach: %s", i, describe(job->at[i]));
        expect_settled(job->at[i], job->bytes[i], job->access[i] == TG_WRITE, NULL, "the kernel");
    }
    poison_the_rest(job, kept);
    for (int i = 0; i < TG_CORES; i++)
        call(job->at, job->args, job->tile & 1 ? TG_CORES - 1 - i : i, TG_CORES);
    expect_poison_outside(kept);
}
