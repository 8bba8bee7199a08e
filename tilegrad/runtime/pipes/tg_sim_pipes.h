/* Pipes of a simulated chip. A part of tg_sim.c: only that includes it.
 *
 * Nests that are launched together take turns: one goes on until it must wait, or at every chance, in several orders. A
 * slot is written when it is free and read when it is ready, and what was read is poison. Where all wait, the pipe is
 * wedged, and the run ends. */
#ifndef TG_SIM_PIPES_H
#define TG_SIM_PIPES_H
#include <ucontext.h>

enum { STACK_BYTES = 256 * 1024 };
enum { FREE = 0, FILLED, READY, TAKEN }; /* a slot */
static const char *const slot_words[] = {"free", "filled", "ready", "taken"};

typedef struct {
    const tg_pipe *pipe;
    uint32_t counts[2]; /* free, ready */
    uint32_t filled, taken, slice; /* which of the pipe's rings it is */
    unsigned char slots[TG_PIPE_DEPTH];
} ring_t;
static ring_t rings[TG_PIPES][TG_BLOCKS * TG_PIPE_LANES];
static const tg_pipe *known[TG_PIPES]; /* those that the launch has asked for */

typedef struct {
    ucontext_t context;
    unsigned char *stack;
    int block, is_done;
    const ring_t *ring; /* that it waits for, or null */
    int ready;
    uint32_t count;
} worker_t;
static worker_t workers[TG_CLUSTERS], *current;
static ucontext_t main_context;

/* What a ring leaves of its slice is a guard: poison that is still there when the launch ends. Rings in L1 have none: a
 * kernel sees copies of them, and a transfer never goes there. */
static unsigned char *guard_of(const tg_pipe *pipe, size_t slice, size_t *bytes)
{
    size_t used = (size_t)pipe->depth * pipe->slot_bytes;
    *bytes = pipe->near ? 0 : pipe->slice_bytes - used;
    return sim.arena + pipe->workspace + slice * pipe->slice_bytes + used;
}

/* Where a ring begins. */
static unsigned char *first_slot(const ring_t *ring)
{
    const tg_pipe *pipe = ring->pipe;
    if (!pipe->near)
        return sim.arena + pipe->workspace + (size_t)ring->slice * pipe->slice_bytes;
    uint32_t own_ring = ring->slice % pipe->lanes, lane = own_ring % pipe->near_lanes;
    int worker = (int)(ring->slice / pipe->lanes) * launch.members + (int)(pipe->near - 1 + lane);
    return clusters[cluster_of(worker)].scratch + pipe->workspace +
           (size_t)(own_ring / pipe->near_lanes) * pipe->slice_bytes;
}

static ring_t *ring_of(const tg_pipe *pipe, int block, uint32_t number)
{
    size_t slice = (size_t)block * pipe->lanes + number, bytes;
    ring_t *ring = &rings[pipe->number][slice];
    unsigned char *guard = guard_of(pipe, slice, &bytes);
    if (ring->pipe == NULL)
        memset(guard, POISON, bytes);
    ring->pipe = known[pipe->number] = pipe;
    ring->slice = (uint32_t)slice;
    return ring;
}

static void expect_guards(void)
{
    for (int i = 0; i < TG_PIPES; i++)
        for (int slice = 0; slice < TG_BLOCKS * TG_PIPE_LANES; slice++) {
            const tg_pipe *pipe = rings[i][slice].pipe;
            size_t bytes = 0;
            const unsigned char *guard = pipe == NULL ? NULL : guard_of(pipe, (size_t)slice, &bytes);
            for (size_t at = 0; at < bytes; at++)
                if (guard[at] != POISON)
                    hazard("pipe %u, %s: byte %lu of the guard behind the slice of block %d was written",
                           (unsigned)pipe->number, pipe->name, (unsigned long)at, slice / (int)pipe->lanes);
        }
}

static const char *slots_text(const ring_t *ring)
{
    static char text[16 * TG_PIPE_DEPTH];
    size_t length = 0;
    for (uint32_t i = 0; i < ring->pipe->depth; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%s", i ? ", " : "",
                                   slot_words[ring->slots[i]]);
    return text;
}

/* Whose slot an address in the arena is, or null. */
static ring_t *ring_at(const unsigned char *p, uint32_t *slot)
{
    for (int i = 0; i < TG_PIPES && sim.block >= 0 && launch.members > 1; i++) {
        int block = sim.block / launch.members;
        const tg_pipe *pipe = known[i];
        const unsigned char *first = pipe == NULL ? NULL : sim.arena + pipe->workspace;
        if (pipe == NULL || pipe->near ||
            !is_inside(p, 1, first, (size_t)pipe->slices * pipe->lanes * pipe->slice_bytes))
            continue;
        size_t slice = (size_t)(p - first) / pipe->slice_bytes, at = (size_t)(p - first) % pipe->slice_bytes;
        if (slice / pipe->lanes != (size_t)block)
            hazard("pipe %u, %s: block %d is in the slice of block %lu", (unsigned)pipe->number, pipe->name, block,
                   (unsigned long)(slice / pipe->lanes));
        *slot = (uint32_t)(at / pipe->slot_bytes);
        if (*slot >= pipe->depth)
            hazard("pipe %u, %s: block %d is in the guard behind its slice", (unsigned)pipe->number, pipe->name, block);
        return ring_of(pipe, block, (uint32_t)(slice % pipe->lanes));
    }
    return NULL;
}

/* The same of an operand in L1, where the slot begins. */
static ring_t *near_ring_at(const unsigned char *p, uint32_t *slot)
{
    for (int i = 0; i < TG_PIPES && sim.block >= 0 && launch.members > 1; i++)
        for (int k = 0; k < TG_PIPE_LANES; k++) {
            const tg_pipe *pipe = known[i];
            if (pipe == NULL || !pipe->near || (uint32_t)k >= pipe->lanes)
                continue;
            ring_t *ring = ring_of(pipe, sim.block / launch.members, (uint32_t)k);
            unsigned char *first = first_slot(ring);
            if (!is_inside(p, 1, first, (size_t)pipe->depth * pipe->slot_bytes))
                continue;
            *slot = (uint32_t)((size_t)(p - first) / pipe->slot_bytes);
            if ((size_t)(p - first) % pipe->slot_bytes)
                hazard("pipe %u, %s: an operand is not where slot %u begins", (unsigned)pipe->number, pipe->name,
                       (unsigned)*slot);
            return ring;
        }
    return NULL;
}

/* A transfer to a slot or from one begins; whose bytes it is, as claims count. */
static int use_slot(const unsigned char *p, uint32_t bytes, int writing)
{
    uint32_t slot;
    ring_t *ring = ring_at(p, &slot);
    if (ring == NULL)
        return sim.block + 1;
    if (bytes > ring->pipe->slot_bytes)
        hazard("pipe %u, %s: %lu bytes in a slot of %lu", (unsigned)ring->pipe->number, ring->pipe->name,
               (unsigned long)bytes, (unsigned long)ring->pipe->slot_bytes);
    if (ring->slots[slot] != (writing ? FREE : READY))
        hazard("pipe %u, %s: slot %u is %s while it is %s", (unsigned)ring->pipe->number, ring->pipe->name,
               (unsigned)slot, writing ? "written" : "read", slot_words[ring->slots[slot]]);
    ring->slots[slot] = writing ? FILLED : TAKEN;
    return 1 + launch.blocks + sim.block / launch.members;
}

/* A kernel begins or ends with an operand in a slot of a ring in L1; whether it is in one. */
static int use_near(unsigned char *p, uint32_t bytes, int writing)
{
    uint32_t slot;
    ring_t *ring = near_ring_at(p, &slot);
    if (ring == NULL)
        return 0;
    const tg_pipe *pipe = ring->pipe;
    int before = writing ? FREE : READY, now = writing ? FILLED : TAKEN;
    if (bytes > pipe->slot_bytes)
        hazard("pipe %u, %s: %lu bytes in a slot of %lu", (unsigned)pipe->number, pipe->name, (unsigned long)bytes,
               (unsigned long)pipe->slot_bytes);
    if (ring->slots[slot] != before && ring->slots[slot] != now)
        hazard("pipe %u, %s: slot %u is %s while it is %s", (unsigned)pipe->number, pipe->name, (unsigned)slot,
               writing ? "written" : "read", slot_words[ring->slots[slot]]);
    if (writing && ring->slots[slot] == FREE)
        memset(p, POISON, pipe->slot_bytes);
    ring->slots[slot] = (unsigned char)now;
    return 1;
}

/* Where in its scratchpad an operand in such a slot lies, or -1. */
static long near_offset(const unsigned char *p)
{
    uint32_t slot;
    const ring_t *ring = near_ring_at(p, &slot);
    if (ring == NULL)
        return -1;
    uint32_t before = ring->slice % ring->pipe->lanes / ring->pipe->near_lanes;
    return (long)(ring->pipe->workspace + before * ring->pipe->slice_bytes + slot * ring->pipe->slot_bytes);
}

static void pause_worker(void) { swapcontext(&current->context, &main_context); }

void tg_pipe_await(const tg_pipe *pipe, int block, uint32_t number, int ready, uint32_t count)
{
    ring_t *ring = ring_of(pipe, block, number);
    event("p %u %u %d %u\n", (unsigned)pipe->number, (unsigned)number, ready, (unsigned)count);
    current->ring = ring;
    current->ready = ready;
    current->count = count;
    if (launch.order % 4 == 3)
        pause_worker(); /* the other side comes at every chance */
    while (ring->counts[ready] < count)
        pause_worker();
    current->ring = NULL;
}

void tg_pipe_tell(const tg_pipe *pipe, int block, uint32_t number, int ready, uint32_t count)
{
    static long tells;
    const char *fault = getenv("TG_SIM_DROP_TELL");
    ring_t *ring = ring_of(pipe, block, number);
    if (fault && ++tells == atol(fault))
        return;
    event("t %u %u %d %u\n", (unsigned)pipe->number, (unsigned)number, ready, (unsigned)count);
    for (uint32_t *done = ready ? &ring->filled : &ring->taken; *done < count; ++*done) {
        uint32_t slot = *done % pipe->depth;
        if (ring->slots[slot] != (ready ? FILLED : TAKEN))
            hazard("pipe %u, %s: slot %u is told to be %s, and is %s", (unsigned)pipe->number, pipe->name,
                   (unsigned)slot, slot_words[ready ? READY : FREE], slot_words[ring->slots[slot]]);
        ring->slots[slot] = ready ? READY : FREE;
        if (!ready)
            memset(first_slot(ring) + (size_t)slot * pipe->slot_bytes, POISON, pipe->slot_bytes);
    }
    ring->counts[ready] = count;
}

static void start_worker(void)
{
    worker_t *self = current;
    enter_block(self->block);
    launch.run(launch.context, self->block, launch.blocks, own->scratch);
    leave_block();
    self->is_done = 1;
    swapcontext(&self->context, &main_context);
}

static void expect_not_wedged(int count)
{
    for (int i = 0; i < count; i++) {
        const worker_t *one = &workers[i];
        if (one->is_done || one->ring == NULL)
            continue;
        const ring_t *ring = one->ring;
        own = &clusters[cluster_of(one->block)];
        sim.block = one->block;
        hazard("pipe %u, %s, is wedged: %u awaited as %s, %u are ready, %u free; slots: %s",
               (unsigned)ring->pipe->number, ring->pipe->name, (unsigned)one->count, one->ready ? "ready" : "free",
               (unsigned)ring->counts[1], (unsigned)ring->counts[0], slots_text(ring));
    }
    hazard("the launch of %s does not end", launch.name);
}

static int is_able(const worker_t *one)
{
    return !one->is_done && (one->ring == NULL || one->ring->counts[one->ready] >= one->count);
}

static void resume(worker_t *one)
{
    current = one;
    own = &clusters[cluster_of(one->block)];
    sim.block = one->block;
    event("b %d\n", one->block);
    swapcontext(&main_context, &one->context);
}

static void prepare_worker(worker_t *one, int block)
{
    if (one->stack == NULL)
        one->stack = grown(NULL, STACK_BYTES);
    one->block = block;
    one->is_done = 0;
    one->ring = NULL;
    getcontext(&one->context);
    one->context.uc_stack.ss_sp = one->stack;
    one->context.uc_stack.ss_size = STACK_BYTES;
    one->context.uc_link = NULL;
    makecontext(&one->context, start_worker, 0);
}

/* One after the other goes on as long as it can, until all are done. */
static void run_workers(int count, uint32_t order)
{
    for (int left = count; left > 0;) {
        int went_on = 0;
        for (int i = 0; i < count; i++) {
            worker_t *one = &workers[block_at(i, count, order)];
            if (!is_able(one))
                continue;
            resume(one);
            went_on = 1;
            left -= one->is_done;
        }
        if (!went_on)
            expect_not_wedged(count);
    }
}

/* As many at once as there are scratchpads; those of one block are always together. */
static void run_joined(uint32_t order)
{
    int together = TG_CLUSTERS / launch.members * launch.members;
    memset(rings, 0, sizeof rings);
    memset(known, 0, sizeof known);
    launch.order = order;
    for (int first = 0; first < launch.blocks; first += together) {
        int count = launch.blocks - first < together ? launch.blocks - first : together;
        for (int i = 0; i < count; i++)
            prepare_worker(&workers[i], first + i);
        run_workers(count, order);
    }
    expect_guards();
}
#endif
