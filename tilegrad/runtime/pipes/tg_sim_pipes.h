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
    uint32_t filled, taken;
    unsigned char slots[TG_PIPE_DEPTH];
} ring_t;
static ring_t rings[TG_PIPES][TG_BLOCKS];

typedef struct {
    ucontext_t context;
    unsigned char *stack;
    int block, is_done;
    const tg_pipe *pipe; /* that it waits for, or null */
    int ready;
    uint32_t count;
} worker_t;
static worker_t workers[TG_CLUSTERS], *current;
static ucontext_t main_context;

/* What a ring leaves of its slice is a guard: poison that is still there when the launch ends. */
static unsigned char *guard_of(const tg_pipe *pipe, size_t slice, size_t *bytes)
{
    size_t used = (size_t)pipe->depth * pipe->slot_bytes;
    *bytes = pipe->slice_bytes - used;
    return sim.arena + pipe->workspace + slice * pipe->slice_bytes + used;
}

static ring_t *ring_of(const tg_pipe *pipe, int block)
{
    ring_t *ring = &rings[pipe->number][block];
    size_t bytes;
    unsigned char *guard = guard_of(pipe, (size_t)block, &bytes);
    if (ring->pipe == NULL)
        memset(guard, POISON, bytes);
    ring->pipe = pipe;
    return ring;
}

static void expect_guards(void)
{
    for (int i = 0; i < TG_PIPES; i++)
        for (int block = 0; block < TG_BLOCKS; block++) {
            const tg_pipe *pipe = rings[i][block].pipe;
            size_t bytes = 0;
            const unsigned char *guard = pipe == NULL ? NULL : guard_of(pipe, (size_t)block, &bytes);
            for (size_t at = 0; at < bytes; at++)
                if (guard[at] != POISON)
                    hazard("pipe %u, %s: byte %lu of the guard behind the slice of block %d was written",
                           (unsigned)pipe->number, pipe->name, (unsigned long)at, block);
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

/* Whose slot an address is, or null: only of a pipe that this block has asked for. */
static ring_t *ring_at(const unsigned char *p, uint32_t *slot)
{
    for (int i = 0; i < TG_PIPES && sim.block >= 0 && launch.members > 1; i++) {
        ring_t *ring = &rings[i][sim.block / launch.members];
        const tg_pipe *pipe = ring->pipe;
        const unsigned char *first = pipe == NULL ? NULL : sim.arena + pipe->workspace;
        if (pipe == NULL || !is_inside(p, 1, first, (size_t)pipe->slices * pipe->slice_bytes))
            continue;
        size_t slice = (size_t)(p - first) / pipe->slice_bytes, at = (size_t)(p - first) % pipe->slice_bytes;
        if (slice != (size_t)(sim.block / launch.members))
            hazard("pipe %u, %s: block %d is in the slice of block %lu", (unsigned)pipe->number, pipe->name,
                   sim.block / launch.members, (unsigned long)slice);
        *slot = (uint32_t)(at / pipe->slot_bytes);
        if (*slot >= pipe->depth)
            hazard("pipe %u, %s: block %d is in the guard behind its slice", (unsigned)pipe->number, pipe->name,
                   sim.block / launch.members);
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

static void pause_worker(void) { swapcontext(&current->context, &main_context); }

void tg_pipe_await(const tg_pipe *pipe, int block, int ready, uint32_t count)
{
    ring_t *ring = ring_of(pipe, block);
    event("p %u %d %u\n", (unsigned)pipe->number, ready, (unsigned)count);
    current->pipe = pipe;
    current->ready = ready;
    current->count = count;
    if (launch.order % 4 == 3)
        pause_worker(); /* the other side comes at every chance */
    while (ring->counts[ready] < count)
        pause_worker();
    current->pipe = NULL;
}

void tg_pipe_tell(const tg_pipe *pipe, int block, int ready, uint32_t count)
{
    static long tells;
    const char *fault = getenv("TG_SIM_DROP_TELL");
    ring_t *ring = ring_of(pipe, block);
    if (fault && ++tells == atol(fault))
        return;
    event("t %u %d %u\n", (unsigned)pipe->number, ready, (unsigned)count);
    for (uint32_t *done = ready ? &ring->filled : &ring->taken; *done < count; ++*done) {
        uint32_t slot = *done % pipe->depth;
        if (ring->slots[slot] != (ready ? FILLED : TAKEN))
            hazard("pipe %u, %s: slot %u is told to be %s, and is %s", (unsigned)pipe->number, pipe->name,
                   (unsigned)slot, slot_words[ready ? READY : FREE], slot_words[ring->slots[slot]]);
        ring->slots[slot] = ready ? READY : FREE;
        if (!ready)
            memset(sim.arena + pipe->workspace + (size_t)block * pipe->slice_bytes + (size_t)slot * pipe->slot_bytes,
                   POISON, pipe->slot_bytes);
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
        if (one->is_done || one->pipe == NULL)
            continue;
        const ring_t *ring = &rings[one->pipe->number][one->block / launch.members];
        own = &clusters[one->block % TG_CLUSTERS];
        sim.block = one->block;
        hazard("pipe %u, %s, is wedged: %u awaited as %s, %u are ready, %u free; slots: %s",
               (unsigned)one->pipe->number, one->pipe->name, (unsigned)one->count, one->ready ? "ready" : "free",
               (unsigned)ring->counts[1], (unsigned)ring->counts[0], slots_text(ring));
    }
    hazard("the launch of %s does not end", launch.name);
}

static int is_able(const worker_t *one)
{
    if (one->is_done || one->pipe == NULL)
        return !one->is_done;
    return rings[one->pipe->number][one->block / launch.members].counts[one->ready] >= one->count;
}

static void resume(worker_t *one)
{
    current = one;
    own = &clusters[one->block % TG_CLUSTERS];
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
    one->pipe = NULL;
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
