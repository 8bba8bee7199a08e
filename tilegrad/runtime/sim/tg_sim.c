/* A cluster, simulated as an adversary: what a program may rely on happens as late as it may, and everything else is
 * poison.
 *
 *  - A transfer's data arrives when it is waited for, not before. Until then its destination is poison, and its source
 *    must not change.
 *  - What a kernel reads in scratchpad must have been brought there for this nest, or be a result of the nest before as
 *    it was when that ended. What leaves must have been produced by a kernel of this nest or, once, of the one before.
 *    Nests that come to scratchpad together find there what those before them brought or made.
 *    Results are poison before their first tile and after they left, or a nest later.
 *  - Nothing is brought to where a result has not left or where a table is in use, and a table is read when it is there.
 *  - A kernel sees copies of its operands, each between guard zones: what lies beside them is poison, must be unchanged
 *    when it is done, and so must be what it only reads.
 *  - Cores run one after the other, in either order, so a kernel that depends on their order fails.
 *  - A request is waited for exactly once, and none is under way when an entry ends.
 *  - An entry finds its arena and scratchpad poisoned: only state survives a call.
 *  - Blocks of a launch do nothing before its barrier, and then run one after the other, in several orders; each finds
 *    the scratchpad of its cluster poisoned. Two that write the same byte of L2, or one that reads what another writes,
 *    are a race, whatever the order.
 *
 * Whoever breaks a rule stops the run with the nest, the tile and the bytes concerned. Time is not kept here: events go
 * to a trace, from which cycles are computed. */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tg_tile.h"

#ifndef TG_CLUSTERS
#define TG_CLUSTERS 1
#define TG_L1_BYTES TG_SCRATCH_BYTES
#endif

enum { POISON = 0xff, GUARD_BYTES = 1024 };
/* What a byte of scratchpad holds; BEFORE is added where it is of the nest before. */
enum { ABSENT = 0, BROUGHT, PRODUCED, LEAVING, LEFT, KEPT, BEFORE = 8 };

typedef struct {
    unsigned char *near, *far;
    uint32_t row_bytes, rows, stride;
} part_t;

/* A transfer under way, with a copy of its source as it was when it started. */
typedef struct {
    int is_open, is_inward, is_l3;
    int part_count, part_room;
    part_t *parts;
    unsigned char *near_start, *near_stop, *far_start, *far_stop; /* around all parts */
    unsigned char *snapshot;
    size_t snapshot_bytes;
    const char *nest; /* who started it */
    int tile;
#ifdef TG_CARRIES
    int is_ahead; /* for the next launch, before the barrier */
#endif
} request_t;

/* What the conductor must leave as it is while cores compute. */
enum { MOST_ARGS = 128 };
typedef struct {
    int is_running;
    void *at[TG_MAX_OPERANDS];
    uint32_t args[MOST_ARGS];
} started_t;

/* A cluster: its scratchpad, what each byte of that holds, its DMA engine and its cores. */
typedef struct {
    unsigned char *scratch;
    const unsigned char *table, *next_table; /* in scratchpad: the current nest's, and the one that is up next */
    size_t table_bytes, next_table_bytes;
    int is_further;          /* the one that is up next has come together with the current one */
    tg_kernel_call *made_by; /* what has made the current tile, if it is made, and of which nest */
    const uint32_t *made_of;
#ifdef TG_CARRIES
    unsigned char *ahead; /* a table for the next launch, and a copy with what the conductor has made of it */
    size_t ahead_bytes;
    unsigned char ahead_copy[TG_L1_BYTES];
#endif
    const char *nest;
    int tile;
    unsigned char holds[TG_L1_BYTES];
    unsigned char *touched, *touched_stop; /* by a block: what is poisoned behind it */
    request_t requests[TG_DMA_REQUESTS];
    started_t started;
} cluster_t;

static cluster_t clusters[TG_CLUSTERS], *own = clusters;

static struct {
    unsigned char *scratch, *state, *arena;
    const unsigned char *words; /* the program's constants */
    size_t word_bytes;
    const char *entry;
    int block; /* the one that runs, or -1 */
    long waits, drop_wait;
    uint32_t calls;
    FILE *trace;
    int is_tracing; /* the first call of each entry is enough: all are alike */
    const char *traced[8];
} sim;
static unsigned char l3_memory[TG_L3_BYTES + 1];
static request_t l3_requests[TG_L3_QUEUE];

#ifdef TG_BLOCKS
/* The launch that has begun and not ended. */
static struct {
    const char *name;
    tg_block *run;
    void *context;
    int blocks;
    uint32_t count; /* of launches so far */
    int members;    /* of each block, side by side */
    uint32_t order;
} launch;
#endif

static void hazard(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "hazard in %s, nest %s, tile %d", sim.entry ? sim.entry : "no entry",
            own->nest ? own->nest : "none", own->tile);
#ifdef TG_BLOCKS
    if (sim.block >= 0)
        fprintf(stderr, ", block %d of %d", sim.block, launch.blocks);
#endif
    fprintf(stderr, ": ");
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

static int is_scratch(const void *p, size_t bytes) { return is_inside(p, bytes, own->scratch, TG_L1_BYTES); }

static int is_words(const void *p, size_t bytes) { return is_inside(p, bytes, sim.words, sim.word_bytes); }

static int is_l2(const void *p, size_t bytes)
{
    return is_inside(p, bytes, sim.state, TG_STATE_BYTES) || is_inside(p, bytes, sim.arena, TG_ARENA_BYTES);
}

#ifdef TG_BLOCKS
/* Blocks of a launch may do now what they do: nobody else goes on. */
static void expect_no_launch(const char *what)
{
    if (launch.run != NULL && sim.block < 0)
        hazard("%s while the %d blocks of the launch of %s have not met at a barrier", what, launch.blocks,
               launch.name);
}
#else
static void expect_no_launch(const char *what) { (void)what; }
#endif

/* Where an address is, in words, for messages. */
static const char *describe(const unsigned char *p)
{
    static char text[64];
    if (is_scratch(p, 0))
        snprintf(text, sizeof text, "L1+%ld", (long)(p - own->scratch));
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
    int is_near = request->is_inward == written;
    const unsigned char *start = is_near ? request->near_start : request->far_start;
    const unsigned char *stop = is_near ? request->near_stop : request->far_stop;
    if (!request->part_count || !overlap(start, (size_t)(stop - start), p, bytes))
        return 0;
    for (int i = 0; i < request->part_count; i++) {
        const part_t *part = &request->parts[i];
        if (is_near) {
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

static int is_touched(const request_t *request, const unsigned char *p, size_t bytes)
{
    return touches(request, p, bytes, 0) || touches(request, p, bytes, 1);
}

#ifdef TG_CARRIES
/* Other clusters' engines may still read what was asked for before the barrier. */
static void expect_not_ahead(const unsigned char *p, size_t bytes, const char *who)
{
    for (int i = 0; i < TG_CLUSTERS; i++)
        for (int k = 0; k < TG_DMA_REQUESTS; k++)
            if (clusters[i].requests[k].is_ahead && touches(&clusters[i].requests[k], p, bytes, 0))
                hazard("%s writes %s, %lu bytes, which a transfer for the next launch is still reading", who,
                       describe(p), (unsigned long)bytes);
}
#endif

/* Stops if a transfer under way makes it wrong to read (or write) a range now. `apart` is left out. */
static void expect_settled(const unsigned char *p, size_t bytes, int writing, const request_t *apart, const char *who)
{
#ifdef TG_CARRIES
    if (writing)
        expect_not_ahead(p, bytes, who);
#endif
    for (int i = 0; i < TG_DMA_REQUESTS + TG_L3_QUEUE; i++) {
        const request_t *request = i < TG_DMA_REQUESTS ? &own->requests[i] : &l3_requests[i - TG_DMA_REQUESTS];
        if (request == apart || !request->is_open)
            continue;
        if (touches(request, p, bytes, 1))
            hazard("%s %s %s, %lu bytes, where a transfer has not arrived", who, writing ? "writes" : "reads",
                   describe(p), (unsigned long)bytes);
        if (writing && touches(request, p, bytes, 0))
            hazard("%s writes %s, %lu bytes, which a transfer is still reading", who, describe(p),
                   (unsigned long)bytes);
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

static void *grown(void *memory, size_t bytes)
{
    void *result = realloc(memory, bytes);
    if (result == NULL)
        hazard("the simulator is out of memory");
    return result;
}

/* Parts of one request may not meet on the side they write to, nor write what another part reads. */
static void expect_apart(const request_t *request, const part_t *part, const char *who)
{
    unsigned char *target = request->is_inward ? part->near : part->far;
    uint32_t rows = request->is_inward ? 1 : part->rows;
    size_t bytes = (size_t)part->row_bytes * (request->is_inward ? part->rows : 1);
    for (uint32_t row = 0; row < rows; row++, target += part->stride)
        if (is_touched(request, target, bytes))
            hazard("%s writes %s, %lu bytes, twice", who, describe(target), (unsigned long)bytes);
}

static void widen(request_t *request, const part_t *part)
{
    unsigned char *near_stop = part->near + (size_t)part->row_bytes * part->rows;
    unsigned char *far_stop = part->far + (size_t)(part->rows - 1) * part->stride + part->row_bytes;
    if (!request->part_count || part->near < request->near_start)
        request->near_start = part->near;
    if (!request->part_count || near_stop > request->near_stop)
        request->near_stop = near_stop;
    if (!request->part_count || part->far < request->far_start)
        request->far_start = part->far;
    if (!request->part_count || far_stop > request->far_stop)
        request->far_stop = far_stop;
}

static void add_part(request_t *request, part_t part, const char *who)
{
    size_t bytes = (size_t)part.row_bytes * part.rows;
    if (!bytes)
        return;
    expect_settled(part.near, bytes, request->is_inward, request, who);
    for (uint32_t row = 0; row < part.rows; row++)
        expect_settled(part.far + (size_t)row * part.stride, part.row_bytes, !request->is_inward, request, who);
    expect_apart(request, &part, who);
    request->snapshot = grown(request->snapshot, request->snapshot_bytes + bytes);
    unsigned char *end = request->snapshot + request->snapshot_bytes;
    copy_part(&part, request->is_inward, &end, 0);
    request->snapshot_bytes += bytes;
    if (request->part_count == request->part_room) {
        request->part_room = 2 * request->part_room + 8;
        request->parts = grown(request->parts, (size_t)request->part_room * sizeof *request->parts);
    }
    widen(request, &part);
    request->parts[request->part_count++] = part;
}

/* A result has arrived in L2. One of the nest before may still be read here. */
static void leave(unsigned char *near, size_t bytes)
{
    unsigned char *first = own->holds + (near - own->scratch);
    if (bytes && first[0] & BEFORE) {
        memset(first, BEFORE | LEFT, bytes);
        return;
    }
    memset(near, POISON, bytes);
    memset(first, ABSENT, bytes);
}

static void settle_request(request_t *request, const char *who)
{
    if (!request->is_open)
        hazard("%s is waited for, but none is under way", who);
    if (++sim.waits == sim.drop_wait)
        return;
    unsigned char *snapshot = request->snapshot;
    for (int i = 0; i < request->part_count; i++) {
        const part_t *part = &request->parts[i];
        size_t bytes = (size_t)part->row_bytes * part->rows;
        copy_part(part, request->is_inward, &snapshot, 1);
        if (!request->is_l3 && request->is_inward)
            memset(own->holds + (part->near - own->scratch), BROUGHT, bytes);
        if (!request->is_l3 && !request->is_inward)
            leave(part->near, bytes);
    }
    free(request->snapshot);
    free(request->parts);
    memset(request, 0, sizeof *request);
}

static int open_request(request_t *table, int count, int inward, int is_l3, const char *who)
{
    int id = 0;
    while (id < count && table[id].is_open)
        id++;
    if (id == count)
        hazard("more than %d %s under way", count, who);
    table[id] = (request_t){.is_open = 1, .is_inward = inward, .is_l3 = is_l3, .nest = own->nest, .tile = own->tile};
    return id;
}

/* Whether bytes of scratchpad all hold one thing. */
static int all(const void *p, size_t bytes, int what)
{
    const unsigned char *first = own->holds + ((const unsigned char *)p - own->scratch);
    return bytes == 0 || (first[0] == what && memcmp(first, first + 1, bytes - 1) == 0);
}

/* An address of L2 for the trace. */
static const char *place(const unsigned char *p)
{
    static char text[32];
    if (is_words(p, 1)) {
        snprintf(text, sizeof text, "words %ld", (long)(p - sim.words));
        return text;
    }
    int is_state = is_inside(p, 0, sim.state, TG_STATE_BYTES) && !is_inside(p, 1, sim.arena, TG_ARENA_BYTES);
    snprintf(text, sizeof text, "%s %ld", is_state ? "state" : "arena", (long)(p - (is_state ? sim.state : sim.arena)));
    return text;
}

static void expect_l2(const unsigned char *far, uint32_t rows, uint32_t row_bytes, uint32_t far_stride)
{
    if (rows && !is_l2(far, (size_t)(rows - 1) * far_stride + row_bytes))
        hazard("a transfer of %lu bytes at %s passes the end of L2", (unsigned long)rows * row_bytes, describe(far));
}

/* Nothing may be brought to where something else is still needed. */
static void expect_free(const unsigned char *p, size_t bytes)
{
    const unsigned char *first = own->holds + (p - own->scratch);
    if (memchr(first, PRODUCED, bytes) != NULL || memchr(first, BEFORE | PRODUCED, bytes) != NULL)
        hazard("a transfer to %s, %lu bytes, where a result has not left", describe(p), (unsigned long)bytes);
    if (overlap(p, bytes, own->table, own->table_bytes) || overlap(p, bytes, own->next_table, own->next_table_bytes))
        hazard("a transfer to %s, %lu bytes, where a table is in use", describe(p), (unsigned long)bytes);
#ifdef TG_CARRIES
    if (overlap(p, bytes, own->ahead, own->ahead_bytes))
        hazard("a transfer to %s, %lu bytes, where a table for the next launch is", describe(p), (unsigned long)bytes);
#endif
}

#ifdef TG_PIPES
static long near_offset(const unsigned char *p);
#else
#define near_offset(p) ((void)(p), -1L)
#endif

#ifdef TG_BLOCKS
/* ---- Races: which block of a launch writes and reads which byte of L2, by its number + 1. */

enum { MANY = 65535, L2_BYTES = TG_STATE_BYTES + TG_ARENA_BYTES };
static uint16_t writers[L2_BYTES + 1], readers[L2_BYTES + 1];
static size_t claimed = L2_BYTES, claimed_stop; /* what is to be forgotten behind the launch */

static void expect_no_race(size_t at, size_t bytes, int block, int writing, const unsigned char *p)
{
    for (size_t i = at; i < at + bytes; i++) {
        int writer = writers[i], reader = readers[i];
        if (writer && writer != block)
            hazard("launch of %s: block %d %s %s, byte %lu of %lu, which block %d writes", launch.name, block - 1,
                   writing ? "writes" : "reads", describe(p), (unsigned long)(i - at), (unsigned long)bytes,
                   writer - 1);
        if (writing && reader && reader != block)
            hazard("launch of %s: block %d writes %s, byte %lu of %lu, which %s reads", launch.name, block - 1,
                   describe(p), (unsigned long)(i - at), (unsigned long)bytes,
                   reader == MANY ? "more than one block" : "another block");
        if (writing)
            writers[i] = (uint16_t)block;
        else
            readers[i] = (uint16_t)(reader && reader != block ? MANY : block);
    }
}

#ifdef TG_PIPES
static int use_slot(const unsigned char *p, uint32_t bytes, int writing);
static int use_near(unsigned char *p, uint32_t bytes, int writing);
#endif

/* What a block moves to L2 or from there is its own as long as the launch lasts, or nobody's who writes. */
static void claim(const unsigned char *far, uint32_t rows, uint32_t row_bytes, uint32_t stride, int writing)
{
    for (uint32_t row = 0; row < rows && sim.block >= 0; row++, far += stride) {
        int is_state = is_inside(far, row_bytes, sim.state, TG_STATE_BYTES);
        size_t at = is_state ? (size_t)(far - sim.state) : TG_STATE_BYTES + (size_t)(far - sim.arena);
#ifdef TG_PIPES
        expect_no_race(at, row_bytes, use_slot(far, row_bytes, writing), writing, far);
#else
        expect_no_race(at, row_bytes, sim.block + 1, writing, far);
#endif
        claimed = at < claimed ? at : claimed;
        claimed_stop = at + row_bytes > claimed_stop ? at + row_bytes : claimed_stop;
    }
}

static void forget_claims(void)
{
    if (claimed < claimed_stop) {
        memset(writers + claimed, 0, (claimed_stop - claimed) * sizeof *writers);
        memset(readers + claimed, 0, (claimed_stop - claimed) * sizeof *readers);
    }
    claimed = L2_BYTES;
    claimed_stop = 0;
}
#endif

static void touch(unsigned char *scratch, size_t bytes)
{
    if (own->touched == NULL || scratch < own->touched)
        own->touched = scratch;
    if (own->touched_stop == NULL || scratch + bytes > own->touched_stop)
        own->touched_stop = scratch + bytes;
}

int tg_dma_open(int inward)
{
    expect_no_launch("a transfer begins");
    int id = open_request(own->requests, TG_DMA_REQUESTS, inward, 0, "transfers between L1 and L2 are");
    event("o %d %d\n", id, inward);
    return id;
}

void tg_dma_add(int id, void *scratch, void *far, uint32_t row_bytes, uint32_t rows, uint32_t far_stride)
{
    part_t part = {scratch, far, row_bytes, rows, far_stride};
    size_t bytes = (size_t)row_bytes * rows;
    if (id < 0 || id >= TG_DMA_REQUESTS || !own->requests[id].is_open)
        hazard("a part is added to a request that is not open");
    if (!is_scratch(scratch, bytes))
        hazard("a transfer of %lu bytes at %s passes the end of L1", (unsigned long)bytes, describe(scratch));
    if (!own->requests[id].is_inward || !is_words(far, bytes)) {
        expect_l2(far, rows, row_bytes, far_stride);
#ifdef TG_BLOCKS
        claim(far, rows, row_bytes, far_stride, !own->requests[id].is_inward);
#endif
    }
    if (near_offset(scratch) >= 0)
        hazard("a transfer of %lu bytes at %s, in a slot of a pipe", (unsigned long)bytes, describe(scratch));
    touch(scratch, bytes);
    /* The engine takes no longer ones; the runtime splits by rows. */
    if (bytes > TG_DMA_LONGEST)
        hazard("a transfer of %lu bytes is longer than the engine takes", (unsigned long)bytes);
    int is_before = all(scratch, bytes, BEFORE | PRODUCED);
    if (!own->requests[id].is_inward && bytes && !is_before && !all(scratch, bytes, PRODUCED))
        hazard("a transfer takes %lu bytes from %s that no kernel produced", (unsigned long)bytes, describe(scratch));
    if (own->requests[id].is_inward)
        expect_free(scratch, bytes);
    event("a %d %u %u %u %ld %s\n", id, (unsigned)row_bytes, (unsigned)rows, (unsigned)far_stride,
          (long)((unsigned char *)scratch - own->scratch), place(far));
    add_part(&own->requests[id], part, "a DMA transfer");
    memset(own->holds + ((unsigned char *)scratch - own->scratch),
           own->requests[id].is_inward ? ABSENT : LEAVING | (is_before ? BEFORE : 0), bytes);
}

void tg_dma_wait(int id)
{
    event("w %d\n", id);
    if (id < 0 || id >= TG_DMA_REQUESTS)
        hazard("a request that never was is waited for");
    settle_request(&own->requests[id], "a DMA transfer");
}

int tg_l3_start(void *l2, uint32_t l3_offset, uint32_t bytes, int inward)
{
    expect_no_launch("a transfer begins");
    int id = open_request(l3_requests, TG_L3_QUEUE, inward, 1, "transfers between L2 and L3 are");
    if (!is_l2(l2, bytes))
        hazard("a transfer of %lu bytes passes the end of L2", (unsigned long)bytes);
    if (l3_offset > TG_L3_BYTES || bytes > TG_L3_BYTES - l3_offset)
        hazard("a transfer of %lu bytes passes the end of L3", (unsigned long)bytes);
    event("s %d %d %u %s %u\n", id, inward, (unsigned)bytes, place(l2), (unsigned)l3_offset);
    part_t part = {l2, l3_memory + l3_offset, bytes, 1, bytes};
    add_part(&l3_requests[id], part, "an L3 transfer");
    return id;
}

int tg_l3_rows(void *l2, uint32_t l3_offset, uint32_t row_bytes, uint32_t rows, uint32_t l3_stride, int inward)
{
    expect_no_launch("a transfer begins");
    int id = open_request(l3_requests, TG_L3_QUEUE, inward, 1, "transfers between L2 and L3 are");
    size_t bytes = (size_t)row_bytes * rows, reach = (size_t)(rows - 1) * l3_stride + row_bytes;
    if (!is_l2(l2, bytes))
        hazard("a transfer of %lu bytes passes the end of L2", (unsigned long)bytes);
    if (l3_offset > TG_L3_BYTES || reach > TG_L3_BYTES - l3_offset)
        hazard("a transfer of %lu bytes passes the end of L3", (unsigned long)bytes);
    event("s %d %d %u %s %u %u %u\n", id, inward, (unsigned)bytes, place(l2), (unsigned)l3_offset, (unsigned)rows,
          (unsigned)l3_stride);
    part_t part = {l2, l3_memory + l3_offset, row_bytes, rows, l3_stride};
    add_part(&l3_requests[id], part, "an L3 transfer");
    return id;
}

void tg_l3_wait(int id)
{
    event("v %d\n", id);
    if (id < 0 || id >= TG_L3_QUEUE)
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
    sim.block = -1;
    for (int i = 0; i < TG_CLUSTERS; i++)
        clusters[i].scratch = scratch + (size_t)i * TG_L1_BYTES;
    sim.state = state;
    sim.arena = arena;
    sim.drop_wait = fault ? atol(fault) : 0;
    sim.trace = trace ? fopen(trace, "w") : NULL;
}

#ifdef TG_CARRIES
/* What was brought for the next launch is for this one, or nobody waits for it. */
static void forget_ahead(void)
{
    own->ahead_bytes = 0;
    for (int i = 0; i < TG_DMA_REQUESTS; i++)
        own->requests[i].is_ahead = 0;
}
#endif

static void expect_all_left(int what)
{
    const unsigned char *left = memchr(own->holds, what, sizeof own->holds);
    if (left != NULL)
        hazard("a result at L1+%ld never left", (long)(left - own->holds));
}

static void expect_none_under_way(const request_t *table, int count, const char *what)
{
#ifdef TG_CARRIES
    request_t others[TG_DMA_REQUESTS + TG_L3_QUEUE]; /* what was asked for ahead is waited for in the next launch */
    for (int i = 0; i < count; i++) {
        others[i] = table[i];
        others[i].is_open = table[i].is_open && !table[i].is_ahead;
    }
    table = others;
#endif
    for (int i = 0; i < count; i++)
        if (table[i].is_open)
            hazard("%s that %s started at tile %d is still under way when %s ends", what,
                   table[i].nest ? table[i].nest : "no nest", table[i].tile, sim.block < 0 ? "the entry" : "the block");
}

void tg_begin(const char *entry, const uint32_t *words, uint32_t bytes)
{
    int i = 0;
    sim.words = (const unsigned char *)words;
    sim.word_bytes = bytes;
    own->table_bytes = own->next_table_bytes = 0;
    sim.entry = entry;
    own->nest = "first_table"; /* which is brought before there is a nest */
    own->tile = 0;
    memset(sim.scratch, POISON, TG_SCRATCH_BYTES);
    memset(sim.arena, POISON, TG_ARENA_BYTES);
    while (sim.traced[i] && strcmp(sim.traced[i], entry) != 0)
        i++;
    sim.is_tracing = sim.trace != NULL && sim.traced[i] == NULL;
    sim.traced[i] = entry;
    event("B %s\n", entry);
}

void tg_end(const char *entry)
{
    event("E %s\n", entry);
    expect_no_launch("the entry ends");
#ifdef TG_CARRIES
    for (own = clusters + TG_CLUSTERS - 1; own > clusters; own--) {
        forget_ahead();
        expect_none_under_way(own->requests, TG_DMA_REQUESTS, "a DMA transfer");
    }
    forget_ahead();
#endif
    expect_none_under_way(own->requests, TG_DMA_REQUESTS, "a DMA transfer");
    expect_none_under_way(l3_requests, TG_L3_QUEUE, "an L3 transfer");
    expect_all_left(PRODUCED);
    expect_all_left(BEFORE | PRODUCED);
    if (sim.trace)
        fflush(sim.trace);
    sim.entry = NULL;
}

static int is_result(unsigned char held) { return held == PRODUCED || held == LEAVING || held == KEPT; }

/* Results become those of the nest before; what was that is no more. */
static void age_results(void)
{
    const unsigned char *end = own->holds + sizeof own->holds, *left = own->holds;
    for (; (left = memchr(left, BEFORE | LEFT, (size_t)(end - left))) != NULL; left++)
        own->scratch[left - own->holds] = POISON;
    for (left = own->holds; (left = memchr(left, BEFORE | KEPT, (size_t)(end - left))) != NULL; left++)
        own->scratch[left - own->holds] = POISON;
    for (size_t i = 0; i < sizeof own->holds; i++)
        own->holds[i] = is_result(own->holds[i]) ? own->holds[i] | BEFORE : ABSENT;
}

/* Of nests that have come together, what was brought or made for one is there for those behind it. */
static void keep_results(void)
{
    for (size_t i = 0; i < sizeof own->holds; i++)
        own->holds[i] = is_result(own->holds[i]) ? own->holds[i] | BEFORE : own->holds[i];
}

void tg_enter(const char *nest)
{
    expect_no_launch("a nest begins");
    expect_all_left(BEFORE | PRODUCED);
    if (own->is_further)
        keep_results();
    else
        age_results();
    own->is_further = 0;
    own->made_by = NULL;
    own->nest = nest;
    own->tile = 0;
    own->table = own->next_table;
    own->table_bytes = own->next_table_bytes;
    own->next_table_bytes = 0;
    event("n %s\n", nest);
}

void tg_table(const void *table, uint32_t bytes)
{
    if (!bytes) {
        own->table_bytes = own->next_table_bytes = 0;
        return;
    }
    if (!is_scratch(table, bytes))
        hazard("a table of %lu bytes at %s passes the end of L1", (unsigned long)bytes, describe(table));
    if (is_inside(table, bytes, own->table, own->table_bytes)) {
        own->is_further = 1; /* what lies before it is needed no more when its turn has come */
        own->next_table = (const unsigned char *)table;
        own->next_table_bytes = own->table_bytes - (size_t)(own->next_table - own->table);
        return;
    }
#ifdef TG_CARRIES
    if (sim.block >= 0 && own->next_table_bytes) { /* of the next launch: this one's is in use until the block ends */
        own->table = own->next_table;
        own->table_bytes = own->next_table_bytes;
    }
#endif
    expect_settled(table, bytes, 0, NULL, "the conductor");
    if (!all(table, bytes, BROUGHT))
        hazard("a table at %s, %lu bytes, was not brought", describe(table), (unsigned long)bytes);
    own->next_table = table;
    own->next_table_bytes = bytes;
}

/* A word of a nest's table for a tile: boxes that loops move have another size at the edges. Computed from the tile's
 * number alone, where the runtime goes from tile to tile. */
static uint32_t word_for(const uint32_t *nest_words, uint32_t place, int tile)
{
    const tg_nest *nest = (const void *)nest_words;
    const tg_loop *loop = (const void *)((const tg_operand *)(const void *)(nest + 1) + nest->operand_count);
    for (int i = 0; i < nest->loop_count; i++, loop++) {
        int32_t count = (loop->extent + loop->tile - 1) / loop->tile, start = tile % count * loop->tile;
        int32_t last = (start + loop->tile < loop->extent ? start + loop->tile : loop->extent) - 1;
        const tg_dim *dim = (const void *)(nest_words + loop->dims);
        for (int k = 0; k < loop->read_count + loop->write_count; k++, dim++) {
            int32_t size = 0;
            if (!dim->shape || (uint32_t)dim->shape != place)
                continue;
            for (int32_t at = 0; dim->divisor && at < dim->extent; at++) {
                int32_t from = dim->coefficient * (dim->coefficient > 0 ? start : last) + dim->low;
                int32_t to = dim->coefficient * (dim->coefficient > 0 ? last : start) + dim->high;
                size += dim->divisor * at >= from && dim->divisor * at <= to;
            }
            return (uint32_t)(dim->factor * (dim->divisor ? size : last - start + 1));
        }
        tile /= count;
    }
    return nest_words[place];
}

static uint32_t operand_bytes(const tg_job *job, int i)
{
    const tg_nest *nest = (const void *)job->nest;
    const tg_operand *operand = (const tg_operand *)(const void *)(nest + 1) + i;
    uint32_t at = (uint32_t)((const uint32_t *)(const void *)&operand->row_bytes - job->nest);
    uint32_t bytes = word_for(job->nest, at, job->tile) * word_for(job->nest, at + 1, job->tile);
    for (uint32_t k = 0; operand->levels && k < job->nest[operand->levels]; k++)
        bytes *= word_for(job->nest, (uint32_t)operand->levels + 1 + 2 * k, job->tile);
    return job->at[i] ? bytes : 0;
}

/* A job with what its operands cover. */
typedef struct {
    int operand_count;
    void *const *at;
    uint32_t bytes[TG_MAX_OPERANDS];
    int access[TG_MAX_OPERANDS];
} work_t;

static work_t work_of(const tg_job *job)
{
    const tg_nest *nest = (const void *)job->nest;
    const tg_operand *operand = (const void *)(nest + 1);
    work_t work = {.operand_count = nest->operand_count, .at = job->at};
    for (int i = 0; i < nest->operand_count; i++, operand++) {
        work.bytes[i] = operand_bytes(job, i);
        work.access[i] = operand->access;
    }
    return work;
}

/* Bytes that a kernel's operands cover, and the copy that the kernel sees: operands at one address share it. */
typedef struct {
    unsigned char *start, *stop, *copy;
    int is_written;
} region_t;

enum { MAX_REGIONS = TG_MAX_OPERANDS };
static unsigned char stage[TG_STATE_BYTES + TG_ARENA_BYTES + TG_SCRATCH_BYTES + (MAX_REGIONS + 1) * (GUARD_BYTES + 64)]
    __attribute__((aligned(64)));

static int find_regions(const work_t *job, region_t *regions)
{
    int count = 0;
    for (int i = 0; i < job->operand_count; i++) {
        unsigned char *start = job->at[i], *stop = start + job->bytes[i];
        region_t joined = {start, stop, NULL, job->access[i] == TG_WRITE};
        int kept = 0;
        if (!job->bytes[i])
            continue;
        for (int k = 0; k < count; k++) {
            region_t *other = &regions[k];
            if (!overlap(other->start, (size_t)(other->stop - other->start), joined.start,
                         (size_t)(joined.stop - joined.start))) {
                regions[kept++] = *other;
                continue;
            }
            joined.start = other->start < joined.start ? other->start : joined.start;
            joined.stop = other->stop > joined.stop ? other->stop : joined.stop;
            joined.is_written |= other->is_written;
        }
        regions[kept++] = joined;
        count = kept;
    }
    return count;
}

static void copy_regions(region_t *regions, int count)
{
    unsigned char *next = stage;
    for (int i = 0; i < count; i++) {
        size_t bytes = (size_t)(regions[i].stop - regions[i].start);
        memset(next, POISON, GUARD_BYTES);
        regions[i].copy = next + GUARD_BYTES;
        memcpy(regions[i].copy, regions[i].start, bytes);
        next = regions[i].copy + bytes;
        while ((size_t)(next - stage) % 64 != 0)
            *next++ = POISON;
    }
    memset(next, POISON, GUARD_BYTES);
}

static void expect_guard(const unsigned char *guard, size_t bytes, const region_t *region, const char *side)
{
    for (size_t i = 0; i < bytes; i++)
        if (guard[i] != POISON)
            hazard("the kernel wrote %s its operand at %s", side, describe(region->start));
}

static void check_regions(const region_t *regions, int count)
{
    for (int i = 0; i < count; i++) {
        const region_t *region = &regions[i];
        size_t bytes = (size_t)(region->stop - region->start);
        expect_guard(region->copy - GUARD_BYTES, GUARD_BYTES, region, "before");
        expect_guard(region->copy + bytes, GUARD_BYTES, region, "behind");
        if (!region->is_written && memcmp(region->copy, region->start, bytes) != 0)
            hazard("the kernel wrote its operand at %s, which it only reads", describe(region->start));
    }
}

static unsigned char *copy_of(const region_t *regions, const unsigned char *p)
{
    const region_t *region = regions;
    while (p < region->start || p >= region->stop)
        region++;
    return region->copy + (p - region->start);
}

/* Whether this is a result of the nest before: to leave, leaving or left. */
static int is_result_before(const unsigned char *at, size_t bytes)
{
    return all(at, bytes, BEFORE | PRODUCED) || all(at, bytes, BEFORE | LEAVING) || all(at, bytes, BEFORE | LEFT) ||
           all(at, bytes, BEFORE | KEPT);
}

/* Whether a result goes on from a sum that was brought to its place: an operand that is read is where it is written. */
static int is_continued(const work_t *job, int i)
{
    for (int k = 0; k < job->operand_count; k++)
        if (job->at[k] == job->at[i] && job->bytes[k] == job->bytes[i] && job->access[k] != job->access[i])
            return 1;
    return 0;
}

static void expect_operand(const work_t *job, int i)
{
    unsigned char *at = job->at[i];
#ifdef TG_PIPES
    if (use_near(at, job->bytes[i], job->access[i] == TG_WRITE))
        return;
#endif
    if (!is_scratch(at, job->bytes[i]) && !is_l2(at, job->bytes[i]))
        hazard("operand %d lies where a core cannot reach: %s", i, describe(at));
    expect_settled(at, job->bytes[i], job->access[i] == TG_WRITE, NULL, "the kernel");
    if (!is_scratch(at, job->bytes[i]))
        return;
    int goes_on = is_continued(job, i), is_begun = goes_on && all(at, job->bytes[i], BROUGHT);
    if (goes_on && all(at, job->bytes[i], PRODUCED))
        return; /* an earlier tile went on from it */
    if (job->access[i] == TG_READ && !all(at, job->bytes[i], BROUGHT) && !is_result_before(at, job->bytes[i]))
        hazard("operand %d at %s, %lu bytes, was not brought", i, describe(at), (unsigned long)job->bytes[i]);
    if (job->access[i] == TG_WRITE &&
        memchr(own->holds + (at - own->scratch), BEFORE | PRODUCED, job->bytes[i]) != NULL)
        hazard("operand %d at %s is written where a result has not left", i, describe(at));
    if (job->access[i] == TG_WRITE && !own->made_by && !all(at, job->bytes[i], PRODUCED) && !is_begun)
        memset(at, POISON, job->bytes[i]);
}

/* Whether a kernel goes on with a tile that another has made: of that one, the first is traced. */
static int goes_on(tg_kernel_call *call, const tg_job *job)
{
    return own->made_by && own->made_by != call && own->made_of == job->nest && own->tile == job->tile;
}

static void trace_start(const tg_job *job, const work_t *work)
{
    event("k %s %d", job->name, job->tile);
    for (int i = 0; i < work->operand_count; i++) {
        int is_in_scratch = work->bytes[i] && is_scratch(job->at[i], work->bytes[i]);
        event(" %ld:%u", is_in_scratch ? (long)((unsigned char *)job->at[i] - own->scratch) : near_offset(job->at[i]),
              (unsigned)work->bytes[i]);
    }
    event("\n");
}

void tg_start_cores(tg_kernel_call *call, const tg_job *job)
{
    const tg_nest *nest = (const void *)job->nest;
    work_t work = work_of(job);
    if (!goes_on(call, job)) {
        trace_start(job, &work);
        own->made_by = NULL;
    }
    own->nest = job->name;
    own->tile = job->tile;
    if (own->started.is_running)
        hazard("a kernel is started while another runs");
    if (nest->arg_count > MOST_ARGS)
        hazard("a kernel has more arguments than the simulator keeps");
    own->started.is_running = 1;
    memcpy(own->started.at, job->at, (size_t)nest->operand_count * sizeof *own->started.at);
    memcpy(own->started.args, job->args, (size_t)nest->arg_count * sizeof *own->started.args);
    for (int i = 0; i < work.operand_count; i++)
        if (work.bytes[i])
            expect_operand(&work, i);
}

/* All shares run here, on what is there when the last of them would still be running. */
void tg_finish_cores(tg_kernel_call *call, const tg_job *job)
{
    const tg_nest *nest = (const void *)job->nest;
    region_t regions[MAX_REGIONS];
    void *at[TG_MAX_OPERANDS];
    work_t work = work_of(job);
    if (!own->made_by)
        event("j\n");
    if (!own->started.is_running)
        hazard("a kernel is waited for, but none runs");
    own->started.is_running = 0;
    if (memcmp(own->started.at, job->at, (size_t)nest->operand_count * sizeof *own->started.at) != 0 ||
        memcmp(own->started.args, job->args, (size_t)nest->arg_count * sizeof *own->started.args) != 0)
        hazard("arguments changed while cores were reading them");
    for (int i = 0; i < work.operand_count; i++)
        if (work.bytes[i])
            expect_operand(&work, i);
    int count = find_regions(&work, regions);
    copy_regions(regions, count);
    for (int i = 0; i < work.operand_count; i++)
        at[i] = work.bytes[i] ? copy_of(regions, job->at[i]) : job->at[i];
    uint32_t is_backwards = sim.calls++ * 2654435761u >> 31;
    for (int i = 0; i < TG_CORES; i++)
        call(at, job->args, is_backwards ? TG_CORES - 1 - i : i, TG_CORES);
    check_regions(regions, count);
    for (int i = 0; i < work.operand_count; i++) {
        if (!work.bytes[i] || work.access[i] != TG_WRITE)
            continue;
        memcpy(job->at[i], at[i], work.bytes[i]);
        if (near_offset(job->at[i]) >= 0)
            continue; /* a slot of a pipe */
        if (is_scratch(job->at[i], work.bytes[i]))
            touch(job->at[i], work.bytes[i]);
        if (is_scratch(job->at[i], work.bytes[i]))
            memset(own->holds + ((unsigned char *)job->at[i] - own->scratch), job->results >> i & 1 ? PRODUCED : KEPT,
                   work.bytes[i]);
    }
    own->made_by = own->made_by ? own->made_by : call;
    own->made_of = job->nest;
}

#ifdef TG_BLOCKS
/* ---- Launches. */

#ifdef TG_CARRIES
/* What was asked for before the barrier is read by blocks of this launch. */
static void claim_ahead(void)
{
    for (sim.block = TG_CLUSTERS - 1; sim.block >= 0; sim.block--)
        for (int i = 0; i < TG_DMA_REQUESTS; i++) {
            const request_t *request = &clusters[sim.block].requests[i];
            for (int k = 0; k < request->part_count && request->is_ahead; k++) {
                const part_t *part = &request->parts[k];
                claim(part->far, part->rows, part->row_bytes, part->stride, 0);
            }
        }
}
#endif

void tg_launch(const char *name, tg_block *run, void *context, int blocks)
{
    expect_no_launch("a launch begins");
    expect_none_under_way(own->requests, TG_DMA_REQUESTS, "a DMA transfer");
    expect_all_left(PRODUCED);
    expect_all_left(BEFORE | PRODUCED);
    if (blocks < 1 || blocks >= MANY)
        hazard("a launch of %s over %d blocks", name, blocks);
    launch.name = name;
    launch.run = run;
    launch.context = context;
    launch.blocks = blocks;
#ifdef TG_CARRIES
    claim_ahead();
#endif
}

/* Upwards, downwards, or every other one first. */
static int block_at(int i, int blocks, uint32_t order)
{
    if (order % 3 == 2)
        return 2 * i < blocks ? 2 * i : 2 * (i - (blocks + 1) / 2) + 1;
    return order % 3 == 1 ? blocks - 1 - i : i;
}

/* What was there is gone; where a block has had a table brought for the next launch, not that. */
static void clear_scratch(void)
{
    size_t bytes = (size_t)(own->touched_stop - own->touched);
    if (own->touched == NULL)
        return;
#ifdef TG_CARRIES
    if (own->ahead_bytes && memcmp(own->ahead, own->ahead_copy, own->ahead_bytes) != 0)
        hazard("a table for the next launch at %s was overwritten", describe(own->ahead));
#endif
    memset(own->touched, POISON, bytes);
    memset(own->holds + (own->touched - own->scratch), ABSENT, bytes);
    own->touched = own->touched_stop = NULL;
#ifdef TG_CARRIES
    if (!own->ahead_bytes)
        return;
    memcpy(own->ahead, own->ahead_copy, own->ahead_bytes);
    memset(own->holds + (own->ahead - own->scratch), BROUGHT, own->ahead_bytes);
    touch(own->ahead, own->ahead_bytes);
#endif
}

/* Members of a block are on scratchpads side by side. */
static int cluster_of(int block)
{
    return block % (launch.members > 1 ? TG_CLUSTERS / launch.members * launch.members : TG_CLUSTERS);
}

static void enter_block(int block)
{
    own = &clusters[cluster_of(block)];
    sim.block = block;
    own->nest = launch.name;
    own->tile = 0;
    own->table_bytes = own->next_table_bytes = 0;
    clear_scratch();
#ifdef TG_CARRIES
    forget_ahead();
#endif
    event("b %d\n", block);
}

/* Nothing stays but a second table, and requests of what it says. */
static void leave_block(void)
{
    if (own->started.is_running)
        hazard("a kernel still runs when the block ends");
#ifdef TG_CARRIES
    if (own->table_bytes) {
        own->ahead = own->scratch + (own->next_table - own->scratch);
        own->ahead_bytes = own->next_table_bytes;
        memcpy(own->ahead_copy, own->ahead, own->ahead_bytes);
        for (int i = 0; i < TG_DMA_REQUESTS; i++)
            own->requests[i].is_ahead = own->requests[i].is_inward;
    }
#endif
    expect_none_under_way(own->requests, TG_DMA_REQUESTS, "a DMA transfer");
    expect_all_left(PRODUCED);
}

static void run_block(int block)
{
    enter_block(block);
    launch.run(launch.context, block, launch.blocks, own->scratch);
    leave_block();
}

#ifdef TG_PIPES
#include "tg_sim_pipes.h"

void tg_launch_joined(const char *name, tg_block *run, void *context, int blocks, int members)
{
    tg_launch(name, run, context, blocks);
    launch.members = members;
}
#endif

void tg_barrier(void)
{
    if (launch.run == NULL)
        hazard("a barrier without a launch");
    uint32_t order = launch.count++ * 2654435761u >> 16;
#ifdef TG_PIPES
    if (launch.members > 1)
        run_joined(order);
#endif
    for (int i = 0; i < launch.blocks && launch.members <= 1; i++)
        run_block(block_at(i, launch.blocks, order));
    launch.members = 1;
    event("r\n");
    forget_claims();
    own = clusters;
    own->table_bytes = own->next_table_bytes = 0;
    clear_scratch();
    sim.block = -1;
    launch.run = NULL;
}
#endif
