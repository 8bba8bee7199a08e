/* Runs the entries of a generated model on RV32 under QEMU with every kernel, transfer and wait left out: what remains
 * is the conducting core's own work in the tile runtime. Each nest runs between the counting plugin's markers, and a
 * record of what it did goes to standard output. Tables are really copied, by nobody's instructions: counting stops for
 * that, so a nest may be several stretches. */
#include <stddef.h>
#include "tg_tile.h"

enum { SYSCALL_WRITE = 64, SYSCALL_EXIT = 93, BUFFER_BYTES = 1 << 24 };

typedef struct {
    int32_t tiles, requests, parts, operands, stretches;
} record_t;

static unsigned char state[BUFFER_BYTES], arena[BUFFER_BYTES], scratch[BUFFER_BYTES], io[BUFFER_BYTES];
static record_t record;

#define START_COUNTING __asm__ volatile("slti x0, x0, 1" ::: "memory")
#define STOP_COUNTING __asm__ volatile("slti x0, x0, 2" ::: "memory")

static void system_call(int32_t number, int32_t a, int32_t b, int32_t c)
{
    register int32_t a0 __asm__("a0") = a, a1 __asm__("a1") = b, a2 __asm__("a2") = c, a7 __asm__("a7") = number;
    __asm__ volatile("ecall" : "+r"(a0) : "r"(a1), "r"(a2), "r"(a7) : "memory");
}

void *memcpy(void *to, const void *from, size_t bytes)
{
    size_t i = 0;
    if ((((uintptr_t)to | (uintptr_t)from) & 3) == 0)
        for (; i + 4 <= bytes; i += 4)
            *(uint32_t *)((char *)to + i) = *(const uint32_t *)((const char *)from + i);
    for (; i < bytes; i++)
        ((char *)to)[i] = ((const char *)from)[i];
    return to;
}

void *memset(void *to, int value, size_t bytes)
{
    size_t i = 0;
    uint32_t word = (uint32_t)(value & 255) * 0x01010101u;
    if (((uintptr_t)to & 3) == 0)
        for (; i + 4 <= bytes; i += 4)
            *(uint32_t *)((char *)to + i) = word;
    for (; i < bytes; i++)
        ((char *)to)[i] = (char)value;
    return to;
}

void tg_attach(unsigned char *l1, unsigned char *kept, unsigned char *free_between) { (void)l1, (void)kept, (void)free_between; }
void tg_begin(const char *entry, const uint32_t *first, uint32_t bytes)
{
    (void)entry, (void)first, (void)bytes;
}
void tg_enter(const char *nest) { (void)nest; }
void tg_table(const void *table, uint32_t bytes) { (void)table, (void)bytes; }
void tg_end(const char *entry) { (void)entry; }
int tg_l3_start(void *l2, uint32_t l3_offset, uint32_t bytes, int inward)
{
    (void)l2, (void)l3_offset, (void)bytes, (void)inward;
    return 0;
}
void tg_l3_wait(int request) { (void)request; }
void tg_l3_clear(uint32_t bytes) { (void)bytes; }
void tg_l3_write(uint32_t l3_offset, const void *data, uint32_t bytes) { (void)l3_offset, (void)data, (void)bytes; }
void tg_l3_read(uint32_t l3_offset, void *data, uint32_t bytes) { (void)l3_offset, (void)data, (void)bytes; }
int tg_dma_open(int inward)
{
    (void)inward;
    record.requests++;
    return 0;
}
void tg_dma_add(int request, void *l1, void *far, uint32_t row_bytes, uint32_t rows, uint32_t far_stride)
{
    (void)request, (void)rows, (void)far_stride;
    record.parts++;
    if ((uintptr_t)far >= (uintptr_t)state) /* constants come first in memory */
        return;
    if (record.stretches == 0) { /* the first table of an entry */
        memcpy(l1, far, row_bytes);
        return;
    }
    STOP_COUNTING;
    memcpy(l1, far, row_bytes);
    record.stretches++;
    START_COUNTING;
}
void tg_dma_wait(int request) { (void)request; }
void tg_run_on_cores(tg_kernel_call *call, const tg_job *job)
{
    (void)call;
    record.tiles++;
    record.operands = ((const tg_nest *)(const void *)job->nest)->operand_count;
}

void __real_tg_run_nests(tg_tiles *t, int count, const char *who);
void __wrap_tg_run_nests(tg_tiles *t, int count, const char *who)
{
    for (; count > 0; count--) {
        record = (record_t){0, 0, 0, 0, 1};
        START_COUNTING;
        __real_tg_run_nests(t, 1, who);
        STOP_COUNTING;
        system_call(SYSCALL_WRITE, 1, (int32_t)(intptr_t)&record, sizeof record);
        record.stretches = 0;
    }
}

typedef int entry_t(tg_model *, void *, void *, void *, void *, void *, void *);
void _start(void)
{
    tg_model m;
    tg_init(&m, state, arena, scratch, io);
    ((entry_t *)(void *)tg_step)(&m, io, io, io, io, io, io);
    ((entry_t *)(void *)tg_update)(&m, io, io, io, io, io, io);
    system_call(SYSCALL_EXIT, 0, 0, 0);
}
