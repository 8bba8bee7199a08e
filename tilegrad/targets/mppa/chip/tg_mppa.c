/* The cluster's runtime (tg_cluster.h) on the clusters of the MPPA: in each sixteen threads, one for each core, and its
 * DMA engine. The first thread of a cluster conducts; that of the first cluster runs the entries, and those of the
 * others what is launched over blocks. */
#define _POSIX_C_SOURCE 200112L /* pthread_barrier_t */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "model.h"
#include "tg_async.h"
#include "tg_cluster.h"
#include "tg_window.h"

/* ---- DDR <-> SMEM. */

#ifndef TG_CLUSTERS
#define TG_CLUSTERS 1
#define TG_L1_BYTES TG_SCRATCH_BYTES
#endif

enum { PARTS = 64 }; /* under way at once; the oldest is waited for when there are more */
typedef struct {
    int is_open[TG_DMA_REQUESTS], is_inward[TG_DMA_REQUESTS];
    tg_event events[PARTS];
    int owner[PARTS]; /* request + 1, or 0 */
    int next;
} dma_t;

/* The kernel call that all cores of a cluster work on. */
typedef struct {
    pthread_barrier_t barrier;
    tg_kernel_call *call;
    void *const *at;
    const void *args;
} work_t;

static struct {
    dma_t own_dma;
    work_t own_work;
    unsigned char *scratch;
} clusters[TG_CLUSTERS];
static __thread int cluster; /* whose thread this is */

#define dma clusters[cluster].own_dma
#define work clusters[cluster].own_work

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

static void *work_for_ever(void *core)
{
    int core_id = (int)(intptr_t)core % TG_CORES;
    cluster = (int)(intptr_t)core / TG_CORES;
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

/* ---- All clusters. */

#ifdef TG_BLOCKS
static struct {
    pthread_barrier_t begin, end;
    tg_block *run;
    void *context;
    int blocks;
} launch;

/* A cluster's blocks, one after the other. */
static void run_blocks(void)
{
    TG_INVALIDATE();
    for (int block = cluster; block < launch.blocks; block += TG_CLUSTERS)
        launch.run(launch.context, block, launch.blocks, clusters[cluster].scratch);
    TG_FENCE();
}

static void *conduct_for_ever(void *number)
{
    cluster = (int)(intptr_t)number;
    for (;;) {
        pthread_barrier_wait(&launch.begin);
        run_blocks();
        pthread_barrier_wait(&launch.end);
    }
    return NULL;
}

void tg_launch(const char *name, tg_block *run, void *context, int blocks)
{
    (void)name;
    launch.run = run;
    launch.context = context;
    launch.blocks = blocks;
    TG_FENCE();
    pthread_barrier_wait(&launch.begin);
}

void tg_barrier(void)
{
    run_blocks();
    pthread_barrier_wait(&launch.end);
    TG_INVALIDATE();
}
#endif

static void start_thread(void *(*function)(void *), int number)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, function, (void *)(intptr_t)number) != 0)
        abort();
}

/* The threads are started once, with the first instance. */
void tg_attach(unsigned char *scratch, unsigned char *state, unsigned char *arena)
{
    static int is_running;
    (void)state;
    (void)arena;
    for (int i = 0; i < TG_CLUSTERS; i++)
        clusters[i].scratch = scratch + (size_t)i * TG_L1_BYTES;
    if (is_running)
        return;
    is_running = 1;
    for (int i = 0; i < TG_CLUSTERS; i++) {
        if (pthread_barrier_init(&clusters[i].own_work.barrier, NULL, TG_CORES) != 0)
            abort();
        for (int core = 1; core < TG_CORES; core++)
            start_thread(work_for_ever, i * TG_CORES + core);
    }
#ifdef TG_BLOCKS
    if (pthread_barrier_init(&launch.begin, NULL, TG_CLUSTERS) != 0 ||
        pthread_barrier_init(&launch.end, NULL, TG_CLUSTERS) != 0)
        abort();
    for (int i = 1; i < TG_CLUSTERS; i++)
        start_thread(conduct_for_ever, i);
#endif
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
