/* The cluster's runtime (tg_cluster.h) on one cluster of the MPPA: sixteen threads, one for each core, and the cluster's
 * DMA engine. The first thread conducts. Other clusters are not used yet. */
#define _POSIX_C_SOURCE 200112L /* pthread_barrier_t */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "model.h"
#include "tg_async.h"
#include "tg_cluster.h"
#include "tg_window.h"

/* ---- DDR <-> SMEM. */

enum { PARTS = 64 }; /* under way at once; the oldest is waited for when there are more */
static struct {
    int is_open[TG_DMA_REQUESTS], is_inward[TG_DMA_REQUESTS];
    tg_event events[PARTS];
    int owner[PARTS]; /* request + 1, or 0 */
    int next;
} dma;

static void settle(int part)
{
    if (dma.owner[part] != 0)
        tg_async_wait(&dma.events[part]);
    dma.owner[part] = 0;
}

int tg_dma_open(int inward)
{
    int request = 0;
    while (dma.is_open[request])
        request++;
    dma.is_open[request] = 1;
    dma.is_inward[request] = inward;
    return request;
}

void tg_dma_add(int request, void *scratch, void *far, uint32_t row_bytes, uint32_t rows, uint32_t far_stride)
{
    tg_part part = {scratch, far, row_bytes, rows, far_stride, dma.is_inward[request]};
    if (row_bytes == 0 || rows == 0)
        return;
    settle(dma.next);
    dma.owner[dma.next] = request + 1;
    TG_FENCE();
    tg_async_start(&part, &dma.events[dma.next]);
    dma.next = (dma.next + 1) % PARTS;
}

void tg_dma_wait(int request)
{
    for (int i = 0; i < PARTS; i++)
        if (dma.owner[i] == request + 1)
            settle(i);
    TG_INVALIDATE();
    dma.is_open[request] = 0;
}

/* ---- L3 would be the host's memory. DDR has room for every program so far, so what is planned into L3 stays in it. */

static unsigned char l3_memory[TG_L3_BYTES + 1];

int tg_l3_start(void *l2, uint32_t l3_offset, uint32_t bytes, int inward)
{
    if (inward)
        memcpy(l2, l3_memory + l3_offset, bytes);
    else
        memcpy(l3_memory + l3_offset, l2, bytes);
    TG_FENCE();
    return 0;
}

int tg_l3_rows(void *l2, uint32_t l3_offset, uint32_t row_bytes, uint32_t rows, uint32_t l3_stride, int inward)
{
    unsigned char *near = l2;
    for (; rows > 0; rows--, near += row_bytes, l3_offset += l3_stride)
        tg_l3_start(near, l3_offset, row_bytes, inward);
    return 0;
}

void tg_l3_wait(int request) { (void)request; }
void tg_l3_clear(uint32_t bytes) { memset(l3_memory, 0, bytes); }
void tg_l3_write(uint32_t l3_offset, const void *data, uint32_t bytes) { memcpy(l3_memory + l3_offset, data, bytes); }
void tg_l3_read(uint32_t l3_offset, void *data, uint32_t bytes) { memcpy(data, l3_memory + l3_offset, bytes); }

/* ---- All cores. */

static struct {
    pthread_barrier_t barrier;
    tg_kernel_call *call;
    void *const *at;
    const void *args;
} work;

static void *work_for_ever(void *core)
{
    int core_id = (int)(intptr_t)core;
    for (;;) {
        pthread_barrier_wait(&work.barrier);
        TG_INVALIDATE();
        work.call(work.at, work.args, core_id, TG_CORES);
        TG_FENCE();
        pthread_barrier_wait(&work.barrier);
    }
    return NULL;
}

void tg_start_cores(tg_kernel_call *call, const tg_job *job)
{
    work.call = call;
    work.at = job->at;
    work.args = job->args;
    TG_FENCE();
    pthread_barrier_wait(&work.barrier);
}

void tg_finish_cores(tg_kernel_call *call, const tg_job *job)
{
    call(job->at, job->args, 0, TG_CORES);
    TG_FENCE();
    pthread_barrier_wait(&work.barrier);
    TG_INVALIDATE();
}

/* The threads are started once, with the first instance. */
void tg_attach(unsigned char *scratch, unsigned char *state, unsigned char *arena)
{
    static int is_running;
    pthread_t thread;
    (void)scratch;
    (void)state;
    (void)arena;
    if (is_running)
        return;
    is_running = 1;
    if (pthread_barrier_init(&work.barrier, NULL, TG_CORES) != 0)
        abort();
    for (int core = 1; core < TG_CORES; core++)
        if (pthread_create(&thread, NULL, work_for_ever, (void *)(intptr_t)core) != 0)
            abort();
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
