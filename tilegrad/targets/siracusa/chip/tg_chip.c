/* The cluster's runtime (tg_cluster.h) on the chip. One core conducts: it alone drives the DMA engines and hands kernels
 * to the workers. That is the controller, which does nothing else, or, without one (TG_CONTROLLER 0), worker 0, which
 * joins the others when it has conducted what comes next. */
#include <string.h>
#include "mailbox.h"
#include "model.h"
#include "program.h"
#include "siracusa.h"
#include "tg_cluster.h"

#define IN_L1 __attribute__((section(".l1")))
enum { CONDUCTOR = TG_CONTROLLER ? CONTROLLER : 0 };
unsigned char already_in_l3[1];

/* ---- Memory: what gcc and the generated C call. `to` and `from` are the same where an input is made in its place. */

void *memcpy(void *to, const void *from, size_t bytes)
{
    unsigned char *target = to;
    const unsigned char *source = from;
    if (to == from)
        return to;
    if ((((uintptr_t)to | (uintptr_t)from) & 3) == 0) {
        for (; bytes >= 4; bytes -= 4, target += 4, source += 4)
            *(uint32_t __attribute__((may_alias)) *)target = *(const uint32_t __attribute__((may_alias)) *)source;
    }
    while (bytes-- > 0)
        *target++ = *source++;
    return to;
}

void *memset(void *to, int byte, size_t bytes)
{
    unsigned char *target = to;
    uint32_t word = (unsigned char)byte * 0x01010101u;
    if (((uintptr_t)to & 3) == 0) {
        for (; bytes >= 4; bytes -= 4, target += 4)
            *(uint32_t __attribute__((may_alias)) *)target = word;
    }
    while (bytes-- > 0)
        *target++ = (unsigned char)byte;
    return to;
}

/* ---- L2 <-> L1. A request is named by the counter it took first; parts of several requests that are added in turn take
 * further ones, because a part counts against the counter taken last. Which those are is in L1: a load from L2 would
 * take fifteen times as long. */

enum { NO_REQUEST = -1, INWARD = 1 << 4, ALL_COUNTERS = (1 << MCHAN_COUNTERS) - 1 };
IN_L1 static struct {
    uint32_t taken;                 /* counters */
    int latest;                     /* whose counter was taken last */
    uint32_t further;               /* counters that name no request */
    uint32_t owned[MCHAN_COUNTERS]; /* those of them that a request has, by its first counter */
} dma;

/* Gives back a counter whose parts have all arrived, and that names no request. */
static __attribute__((noinline)) void make_room(void)
{
    uint32_t done;
    do
        done = dma.further & ~mchan_busy();
    while (done == 0);
    mchan_free(done);
    dma.taken &= ~done;
    dma.further &= ~done;
    for (int i = 0; i < MCHAN_COUNTERS; i++)
        dma.owned[i] &= ~done;
    dma.latest = NO_REQUEST;
}

static inline uint32_t take_counter(void)
{
    uint32_t counter = mchan_take_counter();
    dma.taken |= 1u << counter;
    return counter;
}

static inline int open_request(int inward)
{
    int request = (int)take_counter();
    if (inward)
        request |= INWARD;
    dma.latest = request;
    return request;
}

/* What is rare is in functions of its own, so that the others need no stack. */
static __attribute__((noinline)) int open_when_there_is_room(int inward)
{
    make_room();
    return open_request(inward);
}

int tg_dma_open(int inward)
{
    if (dma.taken == ALL_COUNTERS)
        return open_when_there_is_room(inward);
    return open_request(inward);
}

static __attribute__((noinline)) void add_to_earlier(int request, void *scratch, void *far, uint32_t row_bytes,
                                                     uint32_t rows, uint32_t far_stride)
{
    if (dma.taken == ALL_COUNTERS)
        make_room();
    uint32_t counter = 1u << take_counter();
    dma.owned[request & ~INWARD] |= counter;
    dma.further |= counter;
    dma.latest = request;
    mchan_push(scratch, far, row_bytes, rows, far_stride, request & INWARD);
}

void tg_dma_add(int request, void *scratch, void *far, uint32_t row_bytes, uint32_t rows, uint32_t far_stride)
{
    if (row_bytes == 0 || rows == 0)
        return;
    if (dma.latest != request)
        add_to_earlier(request, scratch, far, row_bytes, rows, far_stride);
    else
        mchan_push(scratch, far, row_bytes, rows, far_stride, request & INWARD);
}

void tg_dma_wait(int request)
{
    uint32_t counters = 1u << (request & ~INWARD);
    if (dma.further) {
        counters |= dma.owned[request & ~INWARD];
        dma.owned[request & ~INWARD] = 0;
        dma.further &= ~counters;
    }
    while (mchan_busy() & counters) {
    }
    mchan_free(counters);
    dma.taken &= ~counters;
    if (dma.latest == request)
        dma.latest = NO_REQUEST;
}

/* ---- L3 <-> L2. A channel tells only whether it is idle, so each has one transfer at a time, by which is known when that
 * is done. Others wait here, in L1, and are started while the conductor waits for something. */

enum { HYPER_LONGEST = 1 << 19 /* of one transfer; the size register has 20 bits */, HYPER_WAITING = 32 };
IN_L1 static struct {
    uint32_t queued, started; /* transfers so far, numbered from 1 */
    struct {
        unsigned char *l2;
        uint32_t l3, bytes;
        int inward;
    } waiting[HYPER_WAITING];
    struct {
        uint32_t number; /* of the transfer under way, or 0 */
        int inward;      /* what the channel was told to do */
    } channels[HYPER_CHANNELS];
} hyper;

static void start_waiting(void)
{
    for (uint32_t i = 0; i < HYPER_CHANNELS; i++) {
        if (hyper.channels[i].number != 0 && !hyper_is_busy(i)) {
            (void)hyper_is_busy(i); /* once more: the last word may still be on its way from the channel to L2 */
            hyper.channels[i].number = 0;
        }
        if (hyper.channels[i].number != 0 || hyper.started == hyper.queued)
            continue;
        uint32_t at = hyper.started % HYPER_WAITING;
        int inward = hyper.waiting[at].inward;
        if (hyper.channels[i].inward != inward)
            hyper_direct(i, hyper.channels[i].inward = inward);
        hyper_start(i, hyper.waiting[at].l3, hyper.waiting[at].l2, hyper.waiting[at].bytes, inward);
        hyper.channels[i].number = ++hyper.started;
    }
}

/* Whether all transfers up to this one are done. */
static int are_done(uint32_t number)
{
    for (uint32_t i = 0; i < HYPER_CHANNELS; i++)
        if (hyper.channels[i].number != 0 && hyper.channels[i].number <= number)
            return 0;
    return hyper.started >= number;
}

/* Sizes are rounded up to whole words: buffers are aligned to eight bytes. A request is named by its last transfer. */
int tg_l3_start(void *l2, uint32_t l3_offset, uint32_t bytes, int inward)
{
    unsigned char *near = l2;
    for (uint32_t piece; bytes > 0; bytes -= piece) {
        piece = bytes < HYPER_LONGEST ? bytes : HYPER_LONGEST;
        while (hyper.queued - hyper.started == HYPER_WAITING)
            start_waiting();
        uint32_t at = hyper.queued++ % HYPER_WAITING;
        hyper.waiting[at].l2 = near;
        hyper.waiting[at].l3 = l3_offset;
        hyper.waiting[at].bytes = (piece + 3) & ~3u;
        hyper.waiting[at].inward = inward;
        start_waiting();
        near += piece;
        l3_offset += piece;
    }
    return (int)hyper.queued;
}

/* The engine moves one row at a time; rows that are no whole words are not asked for. */
int tg_l3_rows(void *l2, uint32_t l3_offset, uint32_t row_bytes, uint32_t rows, uint32_t l3_stride, int inward)
{
    unsigned char *near = l2;
    for (; rows > 0; rows--, l3_offset += l3_stride, near += row_bytes)
        (void)tg_l3_start(near, l3_offset, row_bytes, inward);
    return (int)hyper.queued;
}

void tg_l3_wait(int request)
{
    while (!are_done((uint32_t)request))
        start_waiting();
}

void tg_l3_write(uint32_t l3_offset, const void *data, uint32_t bytes)
{
    if (data != already_in_l3)
        tg_l3_wait(tg_l3_start((void *)(uintptr_t)data, l3_offset, bytes, 0));
}

void tg_l3_read(uint32_t l3_offset, void *data, uint32_t bytes)
{
    if (data != already_in_l3)
        tg_l3_wait(tg_l3_start(data, l3_offset, bytes, 1));
}

void tg_l3_clear(uint32_t bytes)
{
    memset(bounce, 0, sizeof bounce);
    for (uint32_t offset = 0, piece; offset < bytes; offset += piece) {
        piece = bytes - offset < sizeof bounce ? bytes - offset : sizeof bounce;
        tg_l3_write(offset, bounce, piece);
    }
}

/* ---- All cores. What they work on is in L1, where reading it is cheap. */

IN_L1 static struct {
    tg_kernel_call *call;
    void *const *at;
    const void *args;
} work;

#if TG_CONTROLLER
void tg_start_cores(tg_kernel_call *call, const tg_job *job)
{
    work.call = call;
    work.at = job->at;
    work.args = job->args;
    dispatch((uint32_t)(uintptr_t)call);
}

void tg_finish_cores(tg_kernel_call *call, const tg_job *job)
{
    (void)call;
    (void)job;
    while (hyper.started != hyper.queued && !barrier_is_passed())
        start_waiting();
    barrier_await();
}
#else
void tg_start_cores(tg_kernel_call *call, const tg_job *job)
{
    work.call = call;
    work.at = job->at;
    work.args = job->args;
    barrier();
}

void tg_finish_cores(tg_kernel_call *call, const tg_job *job)
{
    call(job->at, job->args, 0, TG_CORES);
    barrier();
}
#endif

#ifdef TG_BLOCKS
/* ---- Blocks: there is one cluster, which runs them one after the other. */

static struct {
    tg_block *run;
    void *context;
    int blocks;
    unsigned char *scratch;
} launch;

void tg_launch(const char *name, tg_block *run, void *context, int blocks)
{
    (void)name;
    launch.run = run;
    launch.context = context;
    launch.blocks = blocks;
}

void tg_barrier(void)
{
    for (int block = 0; block < launch.blocks; block++)
        launch.run(launch.context, block, launch.blocks, launch.scratch);
}
#endif

void tg_attach(unsigned char *scratch, unsigned char *state, unsigned char *arena)
{
#ifdef TG_BLOCKS
    launch.scratch = scratch;
#else
    (void)scratch;
#endif
    (void)state;
    (void)arena;
}

void tg_begin(const char *entry, const uint32_t *words, uint32_t bytes)
{
    (void)entry;
    (void)words;
    (void)bytes;
}

void tg_end(const char *entry) { (void)entry; }
void tg_enter(const char *nest) { (void)nest; }

void tg_table(const void *table, uint32_t bytes)
{
    (void)table;
    (void)bytes;
}

/* ---- The cores' way through the program. */

extern uint32_t _cluster_stacks[], _conductor_stack_bytes[], _worker_stack_bytes[];
extern uint32_t _l1_constants[], _l1_constants_end[], _l1_constants_stored[];
static volatile uint32_t is_ready;

stack_use stack_of(int core)
{
    uint32_t conductor = (uint32_t)(uintptr_t)_conductor_stack_bytes, worker = (uint32_t)(uintptr_t)_worker_stack_bytes;
    uint32_t above = core == CONDUCTOR ? 0 : conductor + worker * (uint32_t)core;
    return use_of_stack(_cluster_stacks - above / 4, core == CONDUCTOR ? conductor : worker);
}

/* Of all that is in L1, nothing is loaded: the cluster sleeps then. */
static void set_up(void)
{
    dma.taken = dma.further = 0;
    dma.latest = NO_REQUEST;
    hyper.queued = hyper.started = 0;
    for (uint32_t i = 0; i < HYPER_CHANNELS; i++) {
        hyper.channels[i].number = 0;
        hyper.channels[i].inward = NO_REQUEST;
    }
    for (int i = 0; i < MCHAN_COUNTERS; i++)
        dma.owned[i] = 0;
    for (uint32_t *to = _l1_constants, *from = _l1_constants_stored; to < _l1_constants_end;)
        *to++ = *from++;
    is_ready = 1;
}

void tg_work(int core);
void cluster_main(int core);
#if TG_CONTROLLER
/* A worker, for ever. */
void tg_work(int core)
{
    for (;;) {
        tg_kernel_call *call = (tg_kernel_call *)(uintptr_t)dispatched();
        call(work.at, work.args, core, TG_CORES);
        barrier_pass();
    }
}

void cluster_main(int core)
{
    if (core == CONDUCTOR) {
        listen_to(BARRIER_EVENT);
        barrier_set_up((1u << TG_CORES) - 1, 1u << CONDUCTOR);
        dispatch_to((1u << TG_CORES) - 1);
        set_up();
        run_program();
    } else {
        listen_to(DISPATCH_EVENT);
        while (!is_ready) {
        }
        tg_work(core);
    }
    for (;;)
        barrier_await();
}
#else
/* A worker, until the program is over. */
void tg_work(int core)
{
    for (;;) {
        barrier();
        if (work.call == 0)
            return;
        work.call(work.at, work.args, core, TG_CORES);
        barrier();
    }
}

void cluster_main(int core)
{
    listen_to(BARRIER_EVENT);
    if (core == CONDUCTOR) {
        barrier_set_up((1u << TG_CORES) - 1, (1u << TG_CORES) - 1);
        set_up();
    } else {
        while (!is_ready) {
        }
    }
    barrier();
    if (core == CONDUCTOR) {
        run_program();
        work.call = 0;
        barrier();
    } else {
        tg_work(core);
    }
    for (;;)
        barrier_await();
}
#endif
