/* A small model of Siracusa for tests: nine RV32 cores, their memories, and the registers that an image drives. It runs
 * the very ELF that is meant for the chip's cycle model, which no build machine has. It keeps no time. Like the cluster
 * simulator it is an adversary:
 *
 *  - Memory that nothing loaded or wrote is noise. A transfer's destination is noise until the transfer is seen to be
 *    done, and only then is its source read.
 *  - Cores take turns of random length.
 *  - Events of the DMA engine go to every core, and a core that listens to them leaves a barrier early, as on the chip.
 *  - What the chip does not have is a fault: floating point on the fabric controller, unaligned or foreign addresses, a
 *    register used out of order, a counter freed while it is busy.
 *
 * siracusa_model IMAGE.elf [SEED [LIMIT]]: the console on stdout, faults on stderr, the image's exit status; 99 a fault. */
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CORES = 9, FABRIC = 8, FAULT_STATUS = 99, COUNTERS = 16, CHANNELS = 2, LONGEST = 131071, POLLS = 3 };

typedef struct {
    uint32_t pc, x[32], f[32];
    uint64_t retired;
    int is_running, is_asleep;
    uint32_t mask, status, clears; /* of the event unit: what it listens to, what came, what waking up clears */
    int counter;                   /* of the DMA engine, taken last */
    int command_words;
    uint32_t command[5];
    int sleeps_in; /* register that a finished event load writes */
} core_t;

typedef struct {
    const char *name;
    uint32_t base, size;
    uint8_t *bytes;
} memory_t;

enum { L1, PRIVATE0, PRIVATE1, SHARED, MEMORIES };
static memory_t memories[MEMORIES] = {
    {"L1", 0x10000000, 0x40000, 0}, {"private 0", 0x1c000000, 0x8000, 0}, {"private 1", 0x1c008000, 0x8000, 0},
    {"L2", 0x1c010000, 0x1f0000, 0}};
static uint8_t l3[8 << 20];
static core_t cores[CORES];
static core_t *core; /* whose turn it is */
static uint32_t random_state = 1;

static void fault(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fprintf(stderr, "fault on core %d at 0x%08x: ", (int)(core - cores), core->pc);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    exit(FAULT_STATUS);
}

static uint32_t noise(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

static void spoil(uint8_t *bytes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)noise();
}

static int is_fabric(void) { return core == &cores[FABRIC]; }

static uint8_t *range(int which, uint32_t address, uint32_t bytes)
{
    memory_t *memory = &memories[which];
    if (address < memory->base || bytes > memory->size || address - memory->base > memory->size - bytes)
        fault("%u bytes at 0x%08x are not in %s", bytes, address, memory->name);
    return memory->bytes + (address - memory->base);
}

/* ---- Event unit. */

static struct {
    uint32_t trigger, target, status;
} barrier_unit;

static void wake(core_t *sleeper)
{
    if (!sleeper->is_asleep || !(sleeper->mask & sleeper->status))
        return;
    sleeper->status &= ~sleeper->clears;
    sleeper->is_asleep = 0;
}

static void send_event(uint32_t targets, uint32_t event)
{
    for (int i = 0; i < FABRIC; i++)
        if (targets >> i & 1) {
            cores[i].status |= event;
            wake(&cores[i]);
        }
}

static void event_load(uint32_t address)
{
    uint32_t self = 1u << (core - cores);
    if (is_fabric() || (address != 0x0020421c && address != 0x0020403c))
        fault("an event load from 0x%08x", address);
    core->clears = core->mask;
    core->is_asleep = 1;
    if (address == 0x0020421c) {
        if (!(barrier_unit.trigger & self))
            fault("this core is not part of the barrier");
        barrier_unit.status |= self;
        if (barrier_unit.status == barrier_unit.trigger) {
            barrier_unit.status = 0;
            send_event(barrier_unit.target, 1u << 16);
        }
    }
    wake(core);
}

/* ---- Cluster DMA. */

typedef struct transfer {
    uint32_t l1, l2, row_bytes, rows, stride;
    int inward, counter;
    struct transfer *next;
} transfer_t;
static struct {
    uint32_t taken;
    int polls[COUNTERS];
    transfer_t *first;
} mchan;

static void move(const transfer_t *transfer, int arrives)
{
    for (uint32_t row = 0; row < transfer->rows; row++) {
        uint8_t *near = range(L1, transfer->l1 + row * transfer->row_bytes, transfer->row_bytes);
        uint8_t *far = range(SHARED, transfer->l2 + row * transfer->stride, transfer->row_bytes);
        uint8_t *target = transfer->inward ? near : far, *source = transfer->inward ? far : near;
        if (arrives)
            memcpy(target, source, transfer->row_bytes);
        else
            spoil(target, transfer->row_bytes);
    }
}

static uint32_t mchan_busy(void)
{
    uint32_t busy = 0;
    for (const transfer_t *transfer = mchan.first; transfer; transfer = transfer->next)
        busy |= 1u << transfer->counter;
    return busy;
}

static void settle_transfers(int counter)
{
    for (transfer_t **link = &mchan.first; *link;) {
        transfer_t *transfer = *link;
        if (transfer->counter != counter) {
            link = &transfer->next;
            continue;
        }
        move(transfer, 1);
        *link = transfer->next;
        free(transfer);
    }
    send_event(0xff, 1u << 8);
}

static uint32_t mchan_read(uint32_t address)
{
    if (address == 0x00204400) {
        int counter = 0;
        while (counter < COUNTERS && mchan.taken >> counter & 1)
            counter++;
        if (counter == COUNTERS)
            fault("every counter of the DMA engine is taken: the core would wait for ever");
        mchan.taken |= 1u << counter;
        mchan.polls[counter] = (int)(noise() % POLLS);
        core->counter = counter;
        return (uint32_t)counter;
    }
    uint32_t busy = mchan_busy();
    for (int i = 0; i < COUNTERS; i++)
        if (busy >> i & 1 && mchan.polls[i]-- <= 0)
            settle_transfers(i);
    return mchan_busy() | mchan.taken << 16;
}

static void push_transfer(void)
{
    uint32_t *words = core->command, command = words[0], bytes = command & LONGEST;
    transfer_t transfer = {words[1], words[2], bytes, 1, bytes, command >> 17 & 1, core->counter, 0};
    if (command >> 19 & 1) {
        if (words[3] == 0 || bytes % words[3] != 0)
            fault("%u bytes in rows of %u", bytes, words[3]);
        transfer.row_bytes = words[3];
        transfer.rows = bytes / words[3];
        transfer.stride = words[4];
    }
    if (bytes == 0 || !(command >> 18 & 1) || command >> 21)
        fault("the DMA command 0x%08x", command);
    if (core->counter < 0 || !(mchan.taken >> core->counter & 1))
        fault("a transfer without a counter");
    move(&transfer, 0);
    transfer_t **end = &mchan.first;
    while (*end)
        end = &(*end)->next;
    *end = malloc(sizeof transfer);
    **end = transfer;
}

static void mchan_write(uint32_t address, uint32_t value)
{
    if (address == 0x00204404) {
        if (value & ~mchan.taken || value & mchan_busy())
            fault("counters 0x%x are freed, of which 0x%x are taken and 0x%x busy", value, mchan.taken, mchan_busy());
        mchan.taken &= ~value;
        return;
    }
    core->command[core->command_words++] = value;
    if (core->command_words == (core->command[0] >> 19 & 1 ? 5 : 3)) {
        core->command_words = 0;
        push_transfer();
    }
}

/* ---- HyperRAM. */

enum { CHANNEL_WORDS = 32, COMMON_WORDS = 10, IS_READ = 5, IS_WRITE = 1 };
static struct {
    uint32_t enabled, words[CHANNELS][CHANNEL_WORDS], common[COMMON_WORDS];
    int is_busy[CHANNELS], polls[CHANNELS], inward[CHANNELS], latest_half[CHANNELS];
} hyper;

static void hyper_move(int channel, int arrives)
{
    const uint32_t *words = hyper.words[channel];
    int inward = hyper.inward[channel], half = inward ? 0 : 3;
    uint32_t bytes = words[half + 1], at = words[7];
    uint8_t *near = range(SHARED, words[half], bytes);
    if (at > sizeof l3 || bytes > sizeof l3 - at || bytes == 0 || bytes % 4 != 0 || bytes >= 1u << 20)
        fault("%u bytes at %u of L3", bytes, at);
    if (!arrives)
        spoil(inward ? near : l3 + at, bytes);
    else
        memcpy(inward ? near : l3 + at, inward ? l3 + at : near, bytes);
}

static void poll_channel(int channel)
{
    if (hyper.is_busy[channel] && hyper.polls[channel]-- <= 0) {
        hyper_move(channel, 1);
        hyper.is_busy[channel] = 0;
    }
}

static uint32_t hyper_access(uint32_t offset, int is_write, uint32_t value)
{
    static const uint32_t set_up[COMMON_WORDS] = {3, 6, 1, 0xffffffff, 0, 0, 0, 0, 0, 0};
    if (offset == 0) {
        if (is_write)
            hyper.enabled = value;
        return hyper.enabled;
    }
    if (offset < 0x280 || !(hyper.enabled >> 4 & 1))
        fault("the uDMA's register 0x%x", offset);
    offset -= 0x280;
    int channel = (int)(offset / 0x80), word = (int)(offset % 0x80 / 4);
    if (channel == CHANNELS) {
        if (word >= COMMON_WORDS)
            fault("HyperRAM register %d", word);
        if (is_write)
            hyper.common[word] = value;
        if (is_write || word != 9)
            return hyper.common[word];
        for (channel = 0; channel < CHANNELS && hyper.is_busy[channel]; channel++) {
        }
        if (channel == CHANNELS)
            poll_channel((int)(noise() % CHANNELS));
        return (uint32_t)channel;
    }
    if (channel > CHANNELS || word > 15)
        fault("HyperRAM channel %d, register %d", channel, word);
    if (!is_write) {
        poll_channel(channel);
        return word == 9 ? (uint32_t)hyper.is_busy[channel] : hyper.words[channel][word];
    }
    if (hyper.is_busy[channel])
        fault("HyperRAM channel %d is busy", channel);
    hyper.words[channel][word] = value;
    if (word == 0 || word == 3)
        hyper.latest_half[channel] = word;
    if (word != 2 && word != 5)
        return 0;
    int inward = word == 2;
    if (value != 0x10 || hyper.latest_half[channel] != word - 2 ||
        hyper.words[channel][6] != (inward ? IS_READ : IS_WRITE) || memcmp(hyper.common, set_up, sizeof set_up) != 0)
        fault("HyperRAM channel %d is started before it is set up", channel);
    for (int i = 10; i < 16; i++)
        if (hyper.words[channel][i] != 0)
            fault("HyperRAM channel %d has two dimensions", channel);
    hyper.inward[channel] = inward;
    hyper.is_busy[channel] = 1;
    hyper.polls[channel] = (int)(noise() % POLLS);
    hyper_move(channel, 0);
    return 0;
}

/* ---- The bus. */

static uint32_t register_access(uint32_t address, int is_write, uint32_t value)
{
    static uint32_t boot[FABRIC], is_on, caches;
    if (address >= 0x1a102000 && address < 0x1a103000)
        return hyper_access(address - 0x1a102000, is_write, value);
    if (!is_fabric()) {
        if (address == 0x00204000 && is_write)
            return core->mask = value;
        if (address == 0x00204200 && is_write)
            return barrier_unit.trigger = value;
        if (address == 0x0020420c && is_write)
            return barrier_unit.target = value;
        if (address == 0x00204400 || address == 0x00204404) {
            if (!is_write)
                return mchan_read(address);
            mchan_write(address, value);
            return 0;
        }
    } else if (is_write) {
        if (address == 0x1a10f000 + 31 * 128) {
            putchar((int)value);
            return 0;
        }
        if (address == 0x1a1040a0) {
            fflush(stdout);
            uint64_t total = 0;
            for (int i = 0; i < CORES; i++)
                total += cores[i].retired;
            fprintf(stderr, "instructions %llu\n", (unsigned long long)total);
            exit(value >> 31 ? (int)(value & 0x7f) : FAULT_STATUS);
        }
        if (address == 0x10200020)
            return is_on = value;
        if (address == 0x10201400)
            return caches = value;
        if (address >= 0x10200040 && address < 0x10200040 + 4 * FABRIC)
            return boot[(address - 0x10200040) / 4] = value;
        if (address == 0x10200008) {
            if (is_on != 1 || caches != 0xffffffff || value >> FABRIC)
                fault("the cluster is started before it is set up");
            for (int i = 0; i < FABRIC; i++) {
                cores[i].is_running = (int)(value >> i & 1);
                cores[i].pc = boot[i];
            }
            return 0;
        }
    }
    fault("%s of register 0x%08x", is_write ? "a write" : "a read", address);
    return 0;
}

static uint8_t *find(uint32_t address, uint32_t bytes)
{
    if (address % bytes != 0)
        fault("an unaligned access of %u bytes at 0x%08x", bytes, address);
    for (int i = 0; i < MEMORIES; i++) {
        memory_t *memory = &memories[i];
        if (address - memory->base < memory->size) {
            int is_private = i == PRIVATE0 || i == PRIVATE1;
            if (is_private != is_fabric() && i != SHARED)
                fault("a core's access to %s", memory->name);
            return memory->bytes + (address - memory->base);
        }
    }
    return NULL;
}

static uint32_t load(uint32_t address, uint32_t bytes)
{
    uint32_t value = 0;
    const uint8_t *at = find(address, bytes);
    if (at != NULL)
        memcpy(&value, at, bytes);
    else if (bytes == 4)
        value = register_access(address, 0, 0);
    else
        fault("a read of %u bytes of register 0x%08x", bytes, address);
    return value;
}

static void store(uint32_t address, uint32_t value, uint32_t bytes)
{
    uint8_t *at = find(address, bytes);
    if (at != NULL)
        memcpy(at, &value, bytes);
    else if (bytes == 4)
        register_access(address, 1, value);
    else
        fault("a write of %u bytes of register 0x%08x", bytes, address);
}

static uint32_t fetch(uint32_t address)
{
    uint32_t value;
    int which = address >= memories[SHARED].base ? SHARED : PRIVATE1;
    memcpy(&value, range(which, address, 4), 4);
    return value;
}

/* ---- Floating point: the host's, which is IEEE's; NaNs are RISC-V's. */

static float real(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint32_t raw(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static uint32_t canonical(float value) { return isnan(value) ? 0x7fc00000u : raw(value); }

static uint32_t to_integer(float value, int is_unsigned, uint32_t rounding)
{
    if (rounding != 1)
        value = rintf(value);
    if (is_unsigned)
        return isnan(value) || value >= 4294967296.0f ? 0xffffffffu : value <= -1.0f ? 0 : (uint32_t)value;
    return isnan(value) || value >= 2147483648.0f ? 0x7fffffffu
           : value < -2147483648.0f               ? 0x80000000u
                                                  : (uint32_t)(int32_t)value;
}

static uint32_t minimum_or_maximum(uint32_t a, uint32_t b, int is_maximum)
{
    if (isnan(real(a)) || isnan(real(b)))
        return isnan(real(a)) ? (isnan(real(b)) ? 0x7fc00000u : b) : a;
    if (real(a) == 0.0f && real(b) == 0.0f)
        return is_maximum ? a & b : a | b;
    return (real(a) < real(b)) != is_maximum ? a : b;
}

static uint32_t class_of(uint32_t a)
{
    int negative = (int)(a >> 31), exponent = (int)(a >> 23 & 0xff);
    uint32_t mantissa = a & 0x7fffff;
    if (exponent == 0xff && mantissa)
        return mantissa >> 22 ? 1u << 9 : 1u << 8;
    if (exponent == 0xff)
        return negative ? 1u << 0 : 1u << 7;
    if (exponent == 0 && mantissa == 0)
        return negative ? 1u << 3 : 1u << 4;
    if (exponent == 0)
        return negative ? 1u << 2 : 1u << 5;
    return negative ? 1u << 1 : 1u << 6;
}

static void set(uint32_t rd, uint32_t value)
{
    if (rd)
        core->x[rd] = value;
}

static void run_float(uint32_t i)
{
    uint32_t rd = i >> 7 & 31, rounding = i >> 12 & 7, rs1 = i >> 15 & 31, rs2 = i >> 20 & 31;
    uint32_t a = core->f[rs1], b = core->f[rs2], kind = i >> 27;
    if (i >> 25 & 3)
        fault("double precision: 0x%08x", i);
    if ((kind < 4 || kind == 11 || kind == 26) && rounding != 0 && rounding != 7)
        fault("rounding mode %u: 0x%08x", rounding, i);
    switch (kind) {
    case 0: core->f[rd] = canonical(real(a) + real(b)); break;
    case 1: core->f[rd] = canonical(real(a) - real(b)); break;
    case 2: core->f[rd] = canonical(real(a) * real(b)); break;
    case 3: core->f[rd] = canonical(real(a) / real(b)); break;
    case 11: core->f[rd] = canonical(sqrtf(real(a))); break;
    case 4: {
        uint32_t sign = rounding == 0 ? b : rounding == 1 ? ~b : a ^ b;
        core->f[rd] = (a & 0x7fffffffu) | (sign & 0x80000000u);
        break;
    }
    case 5: core->f[rd] = minimum_or_maximum(a, b, rounding == 1); break;
    case 20:
        set(rd, rounding == 2 ? real(a) == real(b) : rounding == 1 ? real(a) < real(b) : real(a) <= real(b));
        break;
    case 24:
        if (rounding != 0 && rounding != 1 && rounding != 7)
            fault("rounding mode %u: 0x%08x", rounding, i);
        set(rd, to_integer(real(a), rs2 == 1, rounding));
        break;
    case 26: core->f[rd] = raw(rs2 == 1 ? (float)core->x[rs1] : (float)(int32_t)core->x[rs1]); break;
    case 28: set(rd, rounding == 1 ? class_of(a) : a); break;
    case 30: core->f[rd] = core->x[rs1]; break;
    default: fault("instruction 0x%08x", i);
    }
}

/* ---- RV32IM. */

static uint32_t arithmetic(uint32_t i, uint32_t a, uint32_t b)
{
    int32_t sa = (int32_t)a, sb = (int32_t)b;
    int is_register = (i & 0x7f) == 0x33;
    uint32_t seven = i >> 25;
    if (is_register && seven == 1) {
        switch (i >> 12 & 7) {
        case 0: return a * b;
        case 1: return (uint32_t)((int64_t)sa * sb >> 32);
        case 2: return (uint32_t)((int64_t)sa * (int64_t)(uint64_t)b >> 32);
        case 3: return (uint32_t)((uint64_t)a * b >> 32);
        case 4: return b == 0 ? 0xffffffffu : a == 0x80000000u && sb == -1 ? a : (uint32_t)(sa / sb);
        case 5: return b == 0 ? 0xffffffffu : a / b;
        case 6: return b == 0 ? a : a == 0x80000000u && sb == -1 ? 0 : (uint32_t)(sa % sb);
        default: return b == 0 ? a : a % b;
        }
    }
    if (is_register && seven != 0 && seven != 32)
        fault("instruction 0x%08x", i);
    switch (i >> 12 & 7) {
    case 0: return is_register && seven == 32 ? a - b : a + b;
    case 1: return a << (b & 31);
    case 2: return sa < sb;
    case 3: return a < b;
    case 4: return a ^ b;
    case 5: return i >> 30 & 1 ? (uint32_t)(sa >> (b & 31)) : a >> (b & 31);
    case 6: return a | b;
    default: return a & b;
    }
}

static int is_taken(uint32_t i, uint32_t a, uint32_t b)
{
    switch (i >> 12 & 7) {
    case 0: return a == b;
    case 1: return a != b;
    case 4: return (int32_t)a < (int32_t)b;
    case 5: return (int32_t)a >= (int32_t)b;
    case 6: return a < b;
    case 7: return a >= b;
    default: fault("instruction 0x%08x", i); return 0;
    }
}

static void run_load(uint32_t i, uint32_t rd, uint32_t address)
{
    switch (i >> 12 & 7) {
    case 0: set(rd, (uint32_t)(int8_t)load(address, 1)); break;
    case 1: set(rd, (uint32_t)(int16_t)load(address, 2)); break;
    case 2: set(rd, load(address, 4)); break;
    case 4: set(rd, load(address, 1)); break;
    case 5: set(rd, load(address, 2)); break;
    case 6:
        event_load(address);
        set(rd, 0);
        break;
    default: fault("instruction 0x%08x", i);
    }
}

static void run_control(uint32_t i, uint32_t rd)
{
    if (i >> 20 == 0x001) { /* fflags, which quiet comparisons save and restore: never looked at */
        set(rd, 0);
        return;
    }
    if ((i >> 12 & 7) != 2 || (i >> 15 & 31) != 0)
        fault("instruction 0x%08x", i);
    if (i >> 20 == 0xf14)
        set(rd, is_fabric() ? 31u << 5 : (uint32_t)(core - cores));
    else if (i >> 20 == 0xb00)
        set(rd, (uint32_t)core->retired);
    else
        fault("control register 0x%x", i >> 20);
}

static void step(void)
{
    uint32_t i = fetch(core->pc), next = core->pc + 4;
    uint32_t rd = i >> 7 & 31, rs1 = i >> 15 & 31, rs2 = i >> 20 & 31, a = core->x[rs1], b = core->x[rs2];
    uint32_t immediate = (uint32_t)((int32_t)i >> 20), store_offset = (uint32_t)((int32_t)i >> 25 << 5) | rd;
    core->retired++;
    if (is_fabric() && ((i & 0x7f) == 0x07 || (i & 0x7f) == 0x27 || (i & 0x60) == 0x40) && (i & 0x7f) != 0x63)
        if ((i & 0x1f) == 0x07 || (i & 0x73) == 0x43 || (i & 0x7f) == 0x53)
            fault("floating point on the fabric controller: 0x%08x", i);
    switch (i & 0x7f) {
    case 0x37: set(rd, i & 0xfffff000u); break;
    case 0x17: set(rd, core->pc + (i & 0xfffff000u)); break;
    case 0x6f:
        set(rd, next);
        next = core->pc + ((uint32_t)((int32_t)i >> 31 << 20) | (i & 0xff000u) | (i >> 9 & 0x800u) | (i >> 20 & 0x7feu));
        break;
    case 0x67:
        next = (a + immediate) & ~1u;
        set(rd, core->pc + 4);
        break;
    case 0x63:
        if (is_taken(i, a, b))
            next = core->pc + ((uint32_t)((int32_t)i >> 31 << 12) | (i << 4 & 0x800u) | (i >> 20 & 0x7e0u) | (i >> 7 & 0x1eu));
        break;
    case 0x03: run_load(i, rd, a + immediate); break;
    case 0x23:
        if ((i >> 12 & 7) > 2)
            fault("instruction 0x%08x", i);
        store(a + store_offset, b, 1u << (i >> 12 & 3));
        break;
    case 0x13: set(rd, arithmetic(i, a, immediate)); break;
    case 0x33: set(rd, arithmetic(i, a, b)); break;
    case 0x07:
        if ((i >> 12 & 7) != 2)
            fault("instruction 0x%08x", i);
        core->f[rd] = load(a + immediate, 4);
        break;
    case 0x27:
        if ((i >> 12 & 7) != 2)
            fault("instruction 0x%08x", i);
        store(a + store_offset, core->f[rs2], 4);
        break;
    case 0x43:
    case 0x47:
    case 0x4b:
    case 0x4f: {
        float x = real(core->f[rs1]), y = real(core->f[rs2]), z = real(core->f[i >> 27]);
        if (i >> 25 & 3 || ((i >> 12 & 7) != 0 && (i >> 12 & 7) != 7))
            fault("instruction 0x%08x", i);
        core->f[rd] = canonical((i & 0x7f) == 0x43   ? fmaf(x, y, z)
                                : (i & 0x7f) == 0x47 ? fmaf(x, y, -z)
                                : (i & 0x7f) == 0x4b ? fmaf(-x, y, z)
                                                     : fmaf(-x, y, -z));
        break;
    }
    case 0x53: run_float(i); break;
    case 0x73: run_control(i, rd); break;
    default: fault("instruction 0x%08x", i);
    }
    core->pc = next;
}

/* ---- Loading and running. */

static uint32_t word_of(const uint8_t *bytes, long at, int count)
{
    uint32_t value = 0;
    memcpy(&value, bytes + at, (size_t)count);
    return value;
}

static void load_image(const char *path)
{
    static uint8_t file[16 << 20];
    FILE *stream = fopen(path, "rb");
    size_t size = stream == NULL ? 0 : fread(file, 1, sizeof file, stream);
    core = &cores[FABRIC];
    if (size < 52 || memcmp(file, "\177ELF\1\1", 6) != 0 || word_of(file, 18, 2) != 243)
        fault("'%s' is no image for RV32", path);
    fclose(stream);
    long headers = (long)word_of(file, 28, 4), count = (long)word_of(file, 44, 2);
    for (long at = headers; at < headers + 32 * count; at += 32) {
        uint32_t offset = word_of(file, at + 4, 4), address = word_of(file, at + 8, 4), bytes = word_of(file, at + 16, 4);
        if (word_of(file, at, 4) != 1 || bytes == 0)
            continue;
        int which = address >= memories[SHARED].base ? SHARED : address >= memories[PRIVATE1].base ? PRIVATE1 : PRIVATE0;
        memcpy(range(which, address, bytes), file + offset, bytes);
    }
    cores[FABRIC].pc = word_of(file, 24, 4);
    cores[FABRIC].is_running = 1;
}

int main(int argc, char **argv)
{
    uint64_t limit = argc > 3 ? strtoull(argv[3], NULL, 10) : ~0ull, done = 0;
    random_state = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 1;
    for (int i = 0; i < MEMORIES; i++) {
        memories[i].bytes = malloc(memories[i].size);
        spoil(memories[i].bytes, memories[i].size);
    }
    spoil(l3, sizeof l3);
    for (int i = 0; i < CORES; i++)
        cores[i].counter = -1;
    load_image(argc > 1 ? argv[1] : "image.elf");
    while (done < limit) {
        for (int i = 0; i < CORES; i++) {
            core = &cores[i];
            uint32_t turn = 1 + noise() % (i == FABRIC ? 64 : 4096);
            for (; turn > 0 && core->is_running && !core->is_asleep; turn--, done++)
                step();
        }
        done++;
    }
    fault("no end after %llu instructions", (unsigned long long)limit);
    return FAULT_STATUS;
}
