/* The cluster's runtime (tg_cluster.h) on the chip. Core 0 conducts: it alone drives the DMA engines and hands kernels
 * to all cores; the others wait at the barrier for work. */
#include <string.h>
#include "mailbox.h"
#include "model.h"
#include "program.h"
#include "siracusa.h"
#include "tg_cluster.h"

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

/* ---- L2 <-> L1. A request holds the counters that its parts count against: one, unless parts of several requests are
 * added in turn, because a part counts against the counter taken last. */

enum { NO_REQUEST = -1 };
static struct {
    uint16_t counters[TG_DMA_REQUESTS];
    uint8_t is_open[TG_DMA_REQUESTS], is_inward[TG_DMA_REQUESTS];
    int latest; /* whose counter was taken last */
} dma = {.latest = NO_REQUEST};

/* Gives back a counter whose parts have all arrived, if every one is taken. */
static void make_room(void)
{
    uint32_t taken = 0;
    for (int i = 0; i < TG_DMA_REQUESTS; i++)
        taken |= dma.counters[i];
    if (taken != (1u << MCHAN_COUNTERS) - 1)
        return;
    uint32_t done;
    do
        done = taken & ~mchan_busy();
    while (done == 0);
    mchan_free(done);
    for (int i = 0; i < TG_DMA_REQUESTS; i++)
        dma.counters[i] &= (uint16_t)~done;
    dma.latest = NO_REQUEST;
}

int tg_dma_open(int inward)
{
    int request = 0;
    while (dma.is_open[request])
        request++;
    dma.is_open[request] = 1;
    dma.is_inward[request] = (uint8_t)inward;
    return request;
}

void tg_dma_add(int request, void *scratch, void *far, uint32_t row_bytes, uint32_t rows, uint32_t far_stride)
{
    if (row_bytes == 0 || rows == 0)
        return;
    if (dma.latest != request) {
        make_room();
        dma.counters[request] |= (uint16_t)(1u << mchan_take_counter());
        dma.latest = request;
    }
    mchan_push(scratch, far, row_bytes, rows, far_stride, dma.is_inward[request]);
}

void tg_dma_wait(int request)
{
    uint32_t counters = dma.counters[request];
    if (counters) {
        while (mchan_busy() & counters) {
        }
        mchan_free(counters);
    }
    dma.counters[request] = 0;
    dma.is_open[request] = 0;
    if (dma.latest == request)
        dma.latest = NO_REQUEST;
}

/* ---- L3 <-> L2. A channel that is taken again had finished, so a request is done where its channel is another's. */

enum { HYPER_LONGEST = 1 << 19 }; /* of one transfer; the size register has 20 bits */
static struct {
    uint32_t started;
    uint32_t owner[HYPER_CHANNELS]; /* the number of the request, from 1 */
} hyper;

/* Sizes are rounded up to whole words: buffers are aligned to eight bytes. */
int tg_l3_start(void *l2, uint32_t l3_offset, uint32_t bytes, int inward)
{
    unsigned char *near = l2;
    hyper.started++;
    for (uint32_t piece; bytes > 0; bytes -= piece) {
        piece = bytes < HYPER_LONGEST ? bytes : HYPER_LONGEST;
        hyper.owner[hyper_start(l3_offset, near, (piece + 3) & ~3u, inward)] = hyper.started;
        near += piece;
        l3_offset += piece;
    }
    return (int)hyper.started;
}

/* The engine moves one row at a time; rows that are no whole words are not asked for. */
int tg_l3_rows(void *l2, uint32_t l3_offset, uint32_t row_bytes, uint32_t rows, uint32_t l3_stride, int inward)
{
    unsigned char *near = l2;
    hyper.started++;
    for (; rows > 0; rows--, l3_offset += l3_stride)
        for (uint32_t done = 0, piece; done < row_bytes; done += piece, near += piece) {
            piece = row_bytes - done < HYPER_LONGEST ? row_bytes - done : HYPER_LONGEST;
            hyper.owner[hyper_start(l3_offset + done, near, piece, inward)] = hyper.started;
        }
    return (int)hyper.started;
}

void tg_l3_wait(int request)
{
    for (uint32_t i = 0; i < HYPER_CHANNELS; i++)
        if (hyper.owner[i] == (uint32_t)request)
            hyper_wait(i);
}

void tg_l3_write(uint32_t l3_offset, const void *data, uint32_t bytes)
{
    tg_l3_wait(tg_l3_start((void *)(uintptr_t)data, l3_offset, bytes, 0));
}

void tg_l3_read(uint32_t l3_offset, void *data, uint32_t bytes) { tg_l3_wait(tg_l3_start(data, l3_offset, bytes, 1)); }

void tg_l3_clear(uint32_t bytes)
{
    memset(bounce, 0, sizeof bounce);
    for (uint32_t offset = 0, piece; offset < bytes; offset += piece) {
        piece = bytes - offset < sizeof bounce ? bytes - offset : sizeof bounce;
        tg_l3_write(offset, bounce, piece);
    }
}

/* ---- All cores. What they work on is in L1, where reading it is cheap. */

extern struct {
    tg_kernel_call *call; /* none: the program is over */
    void *const *at;
    const void *args;
} _work;

void tg_start_cores(tg_kernel_call *call, const tg_job *job)
{
    _work.call = call;
    _work.at = job->at;
    _work.args = job->args;
    barrier();
}

void tg_finish_cores(tg_kernel_call *call, const tg_job *job)
{
    call(job->at, job->args, 0, TG_CORES);
    barrier();
}

void tg_attach(unsigned char *scratch, unsigned char *state, unsigned char *arena)
{
    (void)scratch;
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

enum { PAINT = 0x57ac57ac }; /* by start.S */
extern uint32_t _cluster_stacks[], _conductor_stack_bytes[], _worker_stack_bytes[];
static volatile uint32_t is_ready;

stack_use stack_of(int core)
{
    uint32_t conductor = (uint32_t)(uintptr_t)_conductor_stack_bytes, worker = (uint32_t)(uintptr_t)_worker_stack_bytes;
    uint32_t above = core == 0 ? 0 : conductor + worker * (uint32_t)(core - 1);
    stack_use stack = {0, core == 0 ? conductor : worker};
    const uint32_t *bottom = _cluster_stacks - (above + stack.bytes) / 4;
    while (stack.used < stack.bytes && bottom[stack.used / 4] == PAINT)
        stack.used += 4;
    stack.used = stack.bytes - stack.used;
    return stack;
}

void cluster_main(int core);
void cluster_main(int core)
{
    listen_to_barrier();
    if (core == 0) {
        barrier_set_up((1u << TG_CORES) - 1);
        is_ready = 1;
    } else {
        while (!is_ready) {
        }
    }
    barrier();
    if (core == 0) {
        run_program();
        _work.call = 0;
        barrier();
    } else {
        for (;;) {
            barrier();
            if (_work.call == 0)
                break;
            _work.call(_work.at, _work.args, core, TG_CORES);
            barrier();
        }
    }
    for (;;)
        event_load(EVENT_UNIT + EVENT_WAIT);
}
