/* What a cluster's runtime offers: a scratchpad that cores compute in, a DMA engine that fills and empties it, a second
 * one between L2 and L3, and a way to run a kernel on all cores. One core conducts: it alone calls what is here. */
#ifndef TG_CLUSTER_H
#define TG_CLUSTER_H
#include <stdint.h>

/* Tells the runtime where an instance's memories are, and brackets a call of an entry. */
void tg_attach(unsigned char *scratch, unsigned char *state, unsigned char *arena);
void tg_begin(const char *entry);
void tg_end(const char *entry);

enum { TG_READ = 0, TG_WRITE = 1 }; /* what a kernel does with an operand */

/* Names the nest that follows, for messages; a chip has no use for it. */
void tg_enter(const char *nest);

/* L2 <-> scratchpad. A request may have several parts, added one by one, and is waited for as a whole, exactly once.
 * At most TG_DMA_REQUESTS are under way at a time: the engine has as many transfer counters.
 * A part is `rows` rows of `row_bytes`, dense in scratchpad, `far_stride` bytes apart in L2. */
enum { TG_DMA_REQUESTS = 16 };
int tg_dma_open(int inward);
void tg_dma_add(int request, void *scratch, void *far, uint32_t row_bytes, uint32_t rows, uint32_t far_stride);
void tg_dma_wait(int request);

/* L3 <-> L2, by offset into L3. Waited for exactly once. */
int tg_l3_start(void *l2, uint32_t l3_offset, uint32_t bytes, int inward);
void tg_l3_wait(int request);

/* Outside of entries: initial content and inspection of L3. */
void tg_l3_clear(uint32_t bytes);
void tg_l3_write(uint32_t l3_offset, const void *data, uint32_t bytes);
void tg_l3_read(uint32_t l3_offset, void *data, uint32_t bytes);

/* Runs `call(at, args, core_id, core_count)` on every core and returns when all are done. `bytes` and `access` describe
 * the operands at `at`; a chip has no use for them, a simulator checks them. */
typedef void tg_kernel_call(void *const *at, const void *args, int core_id, int core_count);
typedef struct {
    const char *name; /* of the nest, for messages */
    int tile;
    int operand_count;
    void *const *at;
    const uint32_t *bytes;
    const uint8_t *access;
    const void *args;
} tg_job;
void tg_run_on_cores(tg_kernel_call *call, const tg_job *job);

#endif
