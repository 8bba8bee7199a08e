/* Runs the entries of a generated model on RV32 under QEMU with every kernel, transfer and wait left out: what remains
 * is the conducting core's own work in the tile runtime. Each call of it runs between the counting plugin's markers, and
 * a record of it goes to standard output. It is counted in stretches, between kernel calls and while other cores would
 * compute. Tables are really copied, by nobody's instructions: counting stops for that too. What the nests do is known
 * from their plan. */
#include <stddef.h>
#include "tg_tile.h"

enum { SYSCALL_WRITE = 64, SYSCALL_EXIT = 93, BUFFER_BYTES = 1 << 24, MOST_STRETCHES = 1 << 16 };

/* Of each stretch, whether it is one while cores compute. */
typedef struct {
    int32_t nests, stretches;
    unsigned char is_meanwhile[MOST_STRETCHES];
} record_t;

static unsigned char state[BUFFER_BYTES] __attribute__((aligned(64))), arena[BUFFER_BYTES] __attribute__((aligned(64)));
static unsigned char scratch[BUFFER_BYTES] __attribute__((aligned(64))), io[BUFFER_BYTES];
static record_t record;
static tg_tiles *running;

#define START_COUNTING __asm__ volatile("slti x0, x0, 1" ::: "memory")
#define STOP_COUNTING __asm__ volatile("slti x0, x0, 2" ::: "memory")

static int is_meanwhile;

/* Around what is not counted. */
#define PAUSE STOP_COUNTING
#define GO_ON                                                                                                          \
    record.is_meanwhile[record.stretches++] = (unsigned char)is_meanwhile;                                             \
    START_COUNTING

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
void tg_table(const void *table, uint32_t bytes)
{
    if (running == 0 || bytes == 0)
        return;
    PAUSE;
    const tg_call call = *(const tg_call *)(const void *)running->call; /* the next one may come to lie there */
    memcpy((void *)table, running->program + running->position - call.next_words, call.next_words * 4);
    memcpy((uint32_t *)table + call.next_words, running->program + call.next_table, call.next_table_words * 4);
    GO_ON;
}
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
    return 0;
}
void tg_dma_add(int request, void *l1, void *far, uint32_t row_bytes, uint32_t rows, uint32_t far_stride)
{
    (void)request, (void)l1, (void)far, (void)row_bytes, (void)rows, (void)far_stride;
}
void tg_dma_wait(int request) { (void)request; }
void tg_start_cores(tg_kernel_call *call, const tg_job *job)
{
    PAUSE;
    (void)call, (void)job;
    is_meanwhile = 1;
    GO_ON;
}
void tg_finish_cores(tg_kernel_call *call, const tg_job *job)
{
    PAUSE;
    (void)call, (void)job;
    is_meanwhile = 0;
    GO_ON;
}

void __real_tg_start(tg_tiles *t, tg_model *m, const tg_program *program, const tg_entry *entry);
void __wrap_tg_start(tg_tiles *t, tg_model *m, const tg_program *program, const tg_entry *entry)
{
    running = 0;
    __real_tg_start(t, m, program, entry);
    memcpy(t->call, t->program + entry->position, entry->call_words * 4);
    memcpy(t->words, t->program + entry->table, entry->table_words * 4);
    running = t;
}

void __real_tg_run_nests(tg_tiles *t, const tg_call *first, int count, const char *who);
void __wrap_tg_run_nests(tg_tiles *t, const tg_call *first, int count, const char *who)
{
    record.nests = count;
    record.stretches = 0;
    GO_ON;
    __real_tg_run_nests(t, first, count, who);
    PAUSE;
    system_call(SYSCALL_WRITE, 1, (int32_t)(intptr_t)&record, (int32_t)offsetof(record_t, is_meanwhile) + record.stretches);
}

typedef int entry_t(tg_model *, void *, void *, void *, void *, void *, void *);
void _start(void)
{
    tg_model m;
    if (tg_bind(&m, state, arena, scratch) != TG_OK)
        system_call(SYSCALL_EXIT, 1, 0, 0);
    ((entry_t *)(void *)tg_step)(&m, io, io, io, io, io, io);
    ((entry_t *)(void *)tg_update)(&m, io, io, io, io, io, io);
    system_call(SYSCALL_EXIT, 0, 0, 0);
}
