/* Siracusa's registers, and the few lines that drive them. Addresses and sequences are those that ran on the chip's
 * cycle model; docs/siracusa-image.md says which and why.
 *
 * One thing is deliberate: a cluster core listens to one event, the barrier's or that of the dispatch FIFO. The DMA
 * engine's event goes to all cores, and a core that listened to it would go on early. So transfers are polled. */
#ifndef SIRACUSA_H
#define SIRACUSA_H
#include <stdint.h>

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))

static inline uint32_t cycle_count(void)
{
    uint32_t cycles;
    __asm__ volatile("csrr %0, 0xB00" : "=r"(cycles)::"memory");
    return cycles;
}

/* ---- Console and exit: the fabric controller's. */
#define CONSOLE (0x1A10F000u + 31 * 128)
static inline void console_put(char c) { REGISTER(CONSOLE) = (uint32_t)(unsigned char)c; }

/* ---- Event unit, as a cluster core sees it. An event load sleeps until the event, and clears it. */
#define EVENT_UNIT 0x00204000u
enum {
    EVENT_MASK = 0x00,
    EVENT_BUFFER = 0x1c,
    EVENT_WAIT = 0x3c,
    DISPATCH_FIFO = 0x80,
    DISPATCH_TEAM = 0x84,
    BARRIER_TRIGGER_MASK = 0x200,
    BARRIER_TARGET_MASK = 0x20c,
    BARRIER_TRIGGER_SELF = 0x214,
    BARRIER_WAIT = 0x21c
};
#define BARRIER_EVENT (1u << 16)
#define DISPATCH_EVENT (1u << 18)
enum { CONTROLLER = 8 }; /* the cluster's ninth core */

static inline uint32_t event_load(uint32_t address)
{
    uint32_t value;
    __asm__ volatile(".insn i 0x03, 6, %0, %1, 0" : "=r"(value) : "r"(address) : "memory");
    return value;
}

static inline void listen_to(uint32_t event) { REGISTER(EVENT_UNIT + EVENT_MASK) = event; }

/* By one core, before any core comes: who comes to the barrier, and who goes on when they are all there. */
static inline void barrier_set_up(uint32_t cores, uint32_t woken)
{
    REGISTER(EVENT_UNIT + BARRIER_TRIGGER_MASK) = cores;
    REGISTER(EVENT_UNIT + BARRIER_TARGET_MASK) = woken;
}

/* Comes to the barrier and waits, comes there and goes on, or waits without being one of those who come. */
static inline void barrier(void) { (void)event_load(EVENT_UNIT + BARRIER_WAIT); }
static inline void barrier_pass(void) { REGISTER(EVENT_UNIT + BARRIER_TRIGGER_SELF) = 0; }
static inline void barrier_await(void) { (void)event_load(EVENT_UNIT + EVENT_WAIT); }
static inline uint32_t barrier_is_passed(void) { return REGISTER(EVENT_UNIT + EVENT_BUFFER) & BARRIER_EVENT; }

/* Every core of the team gets each word that is dispatched, once; it sleeps until there is one. */
static inline void dispatch_to(uint32_t cores) { REGISTER(EVENT_UNIT + DISPATCH_TEAM) = cores; }
static inline void dispatch(uint32_t word) { REGISTER(EVENT_UNIT + DISPATCH_FIFO) = word; }
static inline uint32_t dispatched(void) { return event_load(EVENT_UNIT + DISPATCH_FIFO); }

/* ---- Cluster DMA (mchan): L2 <-> L1. A transfer counts against the counter that this core took last. */
#define MCHAN 0x00204400u
#define MCHAN_STATUS (MCHAN + 4)
enum { MCHAN_COUNTERS = 16, MCHAN_LONGEST = 131071 };
#define MCHAN_INWARD (1u << 17)
#define MCHAN_INCREMENT (1u << 18)
#define MCHAN_2D (1u << 19)
#define MCHAN_EVENT (1u << 20)

static inline uint32_t mchan_take_counter(void) { return REGISTER(MCHAN); }
static inline uint32_t mchan_busy(void) { return REGISTER(MCHAN_STATUS) & ((1u << MCHAN_COUNTERS) - 1); }
static inline void mchan_free(uint32_t counters) { REGISTER(MCHAN_STATUS) = counters; }

/* `rows` rows of `row_bytes`, dense in L1, `stride` bytes apart in L2; at most MCHAN_LONGEST bytes in all. */
static inline void mchan_push(void *l1, const void *l2, uint32_t row_bytes, uint32_t rows, uint32_t stride, int inward)
{
    uint32_t command = row_bytes * rows | MCHAN_INCREMENT | MCHAN_EVENT | (inward ? MCHAN_INWARD : 0);
    REGISTER(MCHAN) = rows > 1 ? command | MCHAN_2D : command;
    REGISTER(MCHAN) = (uint32_t)(uintptr_t)l1;
    REGISTER(MCHAN) = (uint32_t)(uintptr_t)l2;
    if (rows > 1) {
        REGISTER(MCHAN) = row_bytes;
        REGISTER(MCHAN) = stride;
    }
}

/* ---- HyperRAM through the uDMA: L3 <-> L2, from any core. HYPER_CHANNELS is 2 or 8 by the model's configuration. */
#ifndef HYPER_CHANNELS
#define HYPER_CHANNELS 2
#endif
#define UDMA 0x1A102000u
#define HYPER_PERIPHERAL 4
#define HYPER_CHANNEL(i) (UDMA + (HYPER_PERIPHERAL << 7) + 0x80 + 0x80 * (uint32_t)(i))
#define HYPER_COMMON HYPER_CHANNEL(HYPER_CHANNELS)

enum { HYPER_BUSY = 0x24, HYPER_READS = 5, HYPER_WRITES = 1 };

static inline void hyper_set_up(void)
{
    REGISTER(UDMA) |= 1u << HYPER_PERIPHERAL;
    REGISTER(HYPER_COMMON + 0x08) = 1;
    REGISTER(HYPER_COMMON + 0x20) = 0;
    REGISTER(HYPER_COMMON + 0x0c) = 0xffffffff;
    REGISTER(HYPER_COMMON + 0x04) = 6;
    REGISTER(HYPER_COMMON + 0x00) = 3;
    for (uint32_t channel = 0; channel < HYPER_CHANNELS; channel++)
        for (uint32_t i = 0; i < 6; i++) /* one dimension */
            REGISTER(HYPER_CHANNEL(channel) + 0x28 + 4 * i) = 0;
}

/* What a channel does next. */
static inline void hyper_direct(uint32_t channel, int inward)
{
    REGISTER(HYPER_CHANNEL(channel) + 0x18) = inward ? HYPER_READS : HYPER_WRITES;
}

/* Starts a transfer on a channel that is idle. Which half of the channel was written last says whether it
 * reads or writes, so two cores must not do this at once. */
static inline void hyper_start(uint32_t channel, uint32_t l3, void *l2, uint32_t bytes, int inward)
{
    uint32_t half = HYPER_CHANNEL(channel) + (inward ? 0x0 : 0xc);
    REGISTER(HYPER_CHANNEL(channel) + 0x1c) = l3;
    REGISTER(half) = (uint32_t)(uintptr_t)l2;
    REGISTER(half + 4) = bytes;
    REGISTER(half + 8) = 0x10;
}

static inline uint32_t hyper_is_busy(uint32_t channel) { return REGISTER(HYPER_CHANNEL(channel) + HYPER_BUSY) & 1; }

/* ---- Fabric controller: lets the cores of a mask run from `entry`. */
static inline void cluster_start(void (*entry)(void), uint32_t cores)
{
    REGISTER(0x10200020) = 1;
    REGISTER(0x10201400) = 0xffffffff; /* instruction caches on */
    for (uint32_t i = 0; cores >> i; i++)
        REGISTER(0x10200040 + 4 * i) = (uint32_t)(uintptr_t)entry;
    REGISTER(0x10200008) = cores;
}

#endif
