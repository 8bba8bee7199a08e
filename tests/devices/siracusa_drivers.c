/* Takes the place of an image's program: drives the DMA engines in ways that no model does, and reports wrong bytes. */
#include <string.h>
#include "image.h"
#include "mailbox.h"
#include "program.h"
#include "tg_cluster.h"

enum { REQUESTS = 3, PARTS = 60, ROW = 24, ROWS = 3, LONG = 600 * 1024, PIECE = 1000 };
mailbox_t mailbox;
unsigned char bounce[4096] __attribute__((aligned(64)));
extern unsigned char _scratch[];
static unsigned char far[LONG] __attribute__((aligned(64)));

static void report(uint32_t kind, uint32_t value)
{
    volatile record *next = &mailbox.records[mailbox.written % MAILBOX_RECORDS];
    next->kind = kind;
    next->number = 0;
    next->value = value;
    next->cycles = 0;
    mailbox.written++;
}

static unsigned char pattern(uint32_t i, uint32_t salt) { return (unsigned char)((i + salt) * 2654435761u >> 24); }

static void paint(uint32_t salt)
{
    for (uint32_t i = 0; i < LONG; i++)
        far[i] = pattern(i, salt);
}

static uint32_t wrong(const unsigned char *bytes, uint32_t from, uint32_t count, uint32_t salt)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++)
        found += bytes[i] != pattern(from + i, salt);
    return found;
}

/* Parts of three requests in turn: more counters than there are. Rows of 24 bytes, 100 apart. */
static uint32_t mixed_parts(void)
{
    int requests[REQUESTS];
    uint32_t errors = 0, part_bytes = ROW * ROWS;
    paint(1);
    for (int i = 0; i < REQUESTS; i++)
        requests[i] = tg_dma_open(1);
    for (uint32_t i = 0; i < PARTS; i++)
        tg_dma_add(requests[i % REQUESTS], _scratch + i * part_bytes, far + i * 300, ROW, ROWS, 100);
    tg_dma_add(requests[1], _scratch, far, 0, 7, 0);
    for (int i = REQUESTS - 1; i >= 0; i--)
        tg_dma_wait(requests[i]);
    for (uint32_t i = 0; i < PARTS; i++)
        for (uint32_t row = 0; row < ROWS; row++)
            errors += wrong(_scratch + i * part_bytes + row * ROW, i * 300 + row * 100, ROW, 1);
    /* and back, packed */
    int back = tg_dma_open(0);
    tg_dma_add(back, _scratch, far + 100000, PARTS * part_bytes, 1, 0);
    tg_dma_wait(back);
    for (uint32_t i = 0; i < PARTS * part_bytes; i++)
        errors += far[100000 + i] != _scratch[i];
    tg_dma_wait(tg_dma_open(1)); /* nothing to wait for */
    return errors;
}

/* Five transfers on two channels, waited for in another order; a size that is no multiple of a word. */
static uint32_t many_to_l3(void)
{
    int requests[5];
    uint32_t errors = 0;
    paint(2);
    for (uint32_t i = 0; i < 5; i++)
        requests[i] = tg_l3_start(far + 1024 * i, 2048 * i, PIECE + (i == 3), 0);
    for (int i = 4; i >= 0; i--)
        tg_l3_wait(requests[i]);
    memset(far, 0, 8192);
    for (uint32_t i = 0; i < 5; i++)
        requests[i] = tg_l3_start(far + 1024 * i, 2048 * i, PIECE + (i == 3), 1);
    tg_l3_wait(requests[2]);
    errors += wrong(far + 2048, 2048, PIECE, 2);
    for (int i = 0; i < 5; i++)
        if (i != 2)
            tg_l3_wait(requests[i]);
    for (uint32_t i = 0; i < 5; i++)
        errors += wrong(far + 1024 * i, 1024 * i, PIECE + (i == 3), 2);
    return errors;
}

/* Longer than one transfer may be. */
static uint32_t long_to_l3(void)
{
    paint(3);
    tg_l3_write(4096, far, LONG);
    memset(far, 0, LONG);
    tg_l3_read(4096, far, LONG);
    uint32_t errors = wrong(far, 0, LONG, 3);
    tg_l3_clear(10000);
    tg_l3_read(4096, far, 10000);
    for (uint32_t i = 0; i < 10000; i++)
        errors += i < 10000 - 4096 ? far[i] != 0 : far[i] != pattern(i, 3);
    return errors;
}

void run_program(void)
{
    report(RECORD_WEIGHTS, mixed_parts() + many_to_l3() + long_to_l3());
    report(RECORD_END, 0);
}
