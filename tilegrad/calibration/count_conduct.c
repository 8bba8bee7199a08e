/* Runs the entries of a generated model on RV32 under QEMU with every kernel, transfer and wait left out: what remains
 * is the conducting core's own work in the tile runtime. Each nest runs between the counting plugin's markers, and a
 * record of what it did goes to standard output. */
#include <stddef.h>
#include "tg_tile.h"

enum { SYSCALL_WRITE = 64, SYSCALL_EXIT = 93, BUFFER_BYTES = 1 << 24 };

/* Written by `tg_run_nest`'s stand-ins. */
typedef struct {
    int32_t tiles, requests, parts, words, fields, loops, operands, dims, mode;
} record_t;

static unsigned char state[BUFFER_BYTES], arena[BUFFER_BYTES], scratch[BUFFER_BYTES], io[BUFFER_BYTES];
static record_t record;

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
void tg_begin(const char *entry) { (void)entry; }
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
    (void)request, (void)l1, (void)far, (void)row_bytes, (void)rows, (void)far_stride;
    record.parts++;
}
void tg_dma_wait(int request) { (void)request; }
void tg_run_on_cores(tg_kernel_call *call, const tg_job *job)
{
    (void)call, (void)job;
    record.tiles++;
}

void __real_tg_run_nest(const tg_model *m, const tg_nest *nest, const uint32_t *homes, const char *who);
void __wrap_tg_run_nest(const tg_model *m, const tg_nest *nest, const uint32_t *homes, const char *who)
{
    record = (record_t){0, 0, 0, nest->words, nest->field_count, nest->loop_count, 0, 0, nest->mode};
    for (int i = 0; i < nest->operand_count; i++)
        if (homes[i] != TG_ABSENT) {
            record.operands++;
            record.dims += nest->operands[i].rank;
        }
    __asm__ volatile("slti x0, x0, 1" ::: "memory");
    __real_tg_run_nest(m, nest, homes, who);
    __asm__ volatile("slti x0, x0, 2" ::: "memory");
    system_call(SYSCALL_WRITE, 1, (int32_t)(intptr_t)&record, sizeof record);
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
