/* What a cluster's runtime offers: a scratchpad that cores compute in, a DMA engine that fills and empties it, a second
 * one between L2 and L3, and a way to run a kernel on all cores. One core conducts: it alone calls what is here. */
#ifndef TG_CLUSTER_H
#define TG_CLUSTER_H
#include <stdint.h>

/* Tells the runtime where an instance's memories are, and brackets a call of an entry; `words` are constants in L2 that
 * describe the program. */
void tg_attach(unsigned char *scratch, unsigned char *state, unsigned char *arena);
void tg_begin(const char *entry, const uint32_t *words, uint32_t bytes);
void tg_end(const char *entry);

enum { TG_READ = 0, TG_WRITE = 1 }; /* what a kernel does with an operand */

/* For a simulator alone; a chip's may be empty. `tg_enter` names the nest that begins, `tg_table` says that the
 * conductor is about to read words it has had brought to scratchpad (or, with none, that it needs them no more). */
void tg_enter(const char *nest);
void tg_table(const void *table, uint32_t bytes);

/* L2 <-> scratchpad. A request may have several parts, added one by one, and is waited for as a whole, exactly once.
 * At most TG_DMA_REQUESTS are under way at a time: an engine has some transfer counters more, for parts added in turn.
 * A part is `rows` rows of `row_bytes`, dense in scratchpad, `far_stride` bytes apart in L2; one row has no stride. */
enum { TG_DMA_REQUESTS = 8 };
int tg_dma_open(int inward);
void tg_dma_add(int request, void *scratch, void *far, uint32_t row_bytes, uint32_t rows, uint32_t far_stride);
void tg_dma_wait(int request);

/* L3 <-> L2, by offset into L3. Waited for exactly once; at most TG_L3_QUEUE (model.h) are under way at a time. Rows are
 * dense in L2 and `l3_stride` bytes apart in L3. */
int tg_l3_start(void *l2, uint32_t l3_offset, uint32_t bytes, int inward);
int tg_l3_rows(void *l2, uint32_t l3_offset, uint32_t row_bytes, uint32_t rows, uint32_t l3_stride, int inward);
void tg_l3_wait(int request);

/* Outside of entries: initial content and inspection of L3. */
void tg_l3_clear(uint32_t bytes);
void tg_l3_write(uint32_t l3_offset, const void *data, uint32_t bytes);
void tg_l3_read(uint32_t l3_offset, void *data, uint32_t bytes);

/* Runs `call(job->at, job->args, core_id, core_count)` on every core. Between start and finish the other cores compute
 * while the conductor goes on; then it does its own share, and finish returns when all are done. What the job points at
 * must stay as it is until then. The rest of the job is for a simulator: who runs, which tile, and the nest's table as
 * it was before the first tile (see tg_tile.h), from which follows what each operand covers. */
typedef void tg_kernel_call(void *const *at, const void *args, int core_id, int core_count);
typedef struct {
    const char *name;
    int tile;
    void *const *at;
    const void *args;
    const uint32_t *nest;
    uint32_t results; /* that leave, as bits of operands; all others are only read where they are */
} tg_job;
void tg_start_cores(tg_kernel_call *call, const tg_job *job);
void tg_finish_cores(tg_kernel_call *call, const tg_job *job);

/* Runs `run(context, block, blocks, scratch)` for each block, on the clusters there are, and where blocks are more than
 * these, one after the other. Each has a conductor, a scratchpad and a DMA engine of its own: what is above is then the
 * cluster's that calls it. tg_launch begins, and may return before anything is done; tg_barrier returns when all is.
 * Between the two the one that launched touches nothing that blocks do. */
typedef void tg_block(void *context, int block, int blocks, unsigned char *scratch);
void tg_launch(const char *name, tg_block *run, void *context, int blocks);
void tg_barrier(void);

#ifdef TG_PIPES
/* A pipe from one nest to another of those that are launched together: of each block `lanes` rings of slots, which boxes
 * take in turn, with a count of the boxes that are ready and one of those that were read, whose slots are free again.
 * Rings lie in a workspace in the arena, `slice_bytes` apart; what a ring leaves of that is nobody's. Where engines share
 * their L1, those of a block lie there: ring i in the scratchpad of its member `near` - 1 + i % `near_lanes`. */
typedef struct {
    const char *name; /* of its operators */
    uint32_t number, workspace, slot_bytes, depth, slices, slice_bytes, lanes, near, near_lanes;
} tg_pipe;
/* As tg_launch, where `members` of every block are one after the other in number and run side by side: each goes on
 * while others wait. Their scratchpads are TG_L1_BYTES apart, and where pipes lie in L1, each reaches the others'. Counts
 * begin at 0. */
void tg_launch_joined(const char *name, tg_block *run, void *context, int blocks, int members);
/* Returns when the count (`ready`, or free) of a ring of a block is `count` or more; makes it `count`, behind all that
 * was written. */
void tg_pipe_await(const tg_pipe *pipe, int block, uint32_t ring, int ready, uint32_t count);
void tg_pipe_tell(const tg_pipe *pipe, int block, uint32_t ring, int ready, uint32_t count);
#endif

#endif
