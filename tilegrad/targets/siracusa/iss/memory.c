/* Memories, what an image loads into them, and the chip's registers. Nothing that was not loaded or written has a value:
 * it is noise. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "iss.h"

enum { L2_BANKS = 4, HOOKS = 128, MOST_FILE = 64 << 20 };
enum { PRIVATE0_BASE = 0x1c000000, PRIVATE1_BASE = 0x1c008000, PRIVATE_BYTES = 0x8000 };
/* The cluster's clock is faster than that of the fabric controller and L2, by these. */
enum { CLUSTER_CLOCK = 14407, FABRIC_CLOCK = 10000 };

uint8_t l1[L1_BYTES], shared[SHARED_BYTES];
int64_t l1_free[L1_BANKS];
instruction shared_code[SHARED_BYTES / 2];
static uint8_t private0[PRIVATE_BYTES], private1[PRIVATE_BYTES];
static instruction private_code[PRIVATE_BYTES / 2];
static struct {
    uint32_t from, to;
} code[16];
static int code_count;
static struct {
    uint32_t address;
    instruction hooked;
} hooks[HOOKS];
static int hook_count;
static int64_t l2_free[L2_BANKS];
static uint32_t noise_state = 1;
int is_adverse;

/* ---- Noise. */

void set_noise(uint32_t seed) { noise_state = seed; }

uint32_t noise(void)
{
    noise_state = noise_state * 1664525u + 1013904223u;
    return noise_state >> 8;
}

void spoil(uint8_t *bytes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)noise();
}

/* ---- Places. */

static uint8_t *inside(uint8_t *bytes, uint32_t base, uint32_t size, uint32_t address, uint32_t count)
{
    return address - base < size && count <= size - (address - base) ? bytes + (address - base) : 0;
}

uint8_t *memory_at(uint32_t address, uint32_t bytes)
{
    uint8_t *at;
    if (address - L1_BASE < L1_BYTES) {
        if (current->number == FABRIC)
            fault("an access of the fabric controller to L1, at 0x%08x", address);
        return inside(l1, L1_BASE, L1_BYTES, address, bytes);
    }
    if ((at = inside(shared, SHARED_BASE, SHARED_BYTES, address, bytes)) != 0)
        return at;
    if ((at = inside(private0, PRIVATE0_BASE, PRIVATE_BYTES, address, bytes)) == 0)
        at = inside(private1, PRIVATE1_BASE, PRIVATE_BYTES, address, bytes);
    if (at != 0 && current->number != FABRIC)
        fault("an access of a cluster core to the fabric controller's memory, at 0x%08x", address);
    return at;
}

uint8_t *shared_memory(uint32_t address, uint32_t bytes, const char *what)
{
    uint8_t *at = inside(shared, SHARED_BASE, SHARED_BYTES, address, bytes);
    if (at == 0)
        fault("%s: %u bytes at 0x%08x are not in the shared part of L2", what, bytes, address);
    return at;
}

uint8_t *scratchpad(uint32_t address, uint32_t bytes, const char *what)
{
    uint8_t *at = inside(l1, L1_BASE, L1_BYTES, address, bytes);
    if (at == 0)
        fault("%s: %u bytes at 0x%08x are not in L1", what, bytes, address);
    return at;
}

/* ---- Time. A bank serves a word in a cycle of its clock. */

int64_t fabric_cycle(int64_t cycle) { return cycle * FABRIC_CLOCK / CLUSTER_CLOCK; }

int64_t cluster_cycle(int64_t cycle) { return (cycle * CLUSTER_CLOCK + FABRIC_CLOCK - 1) / FABRIC_CLOCK; }

/* A request reaches its bank after `latency`; until then the bank works off what came before it. */
int64_t shared_delay(uint32_t address, uint32_t bytes, int64_t latency)
{
    int64_t cycle = fabric_cycle(now), delay = latency;
    uint32_t first = address / 4, count = (address + bytes + 3) / 4 - first;
    for (uint32_t i = 0; i < L2_BANKS && i < count; i++) {
        int64_t *free = &l2_free[(first + i) % L2_BANKS];
        if (*free < cycle)
            *free = cycle;
        if (*free - cycle > delay)
            delay = *free - cycle;
        *free += (count - i + L2_BANKS - 1) / L2_BANKS;
    }
    return delay;
}

/* ---- Code. */

static instruction *entry_of(uint32_t address)
{
    if (address - SHARED_BASE < SHARED_BYTES)
        return &shared_code[(address - SHARED_BASE) / 2];
    if (address - PRIVATE1_BASE < PRIVATE_BYTES)
        return &private_code[(address - PRIVATE1_BASE) / 2];
    return 0;
}

static instruction decode_at(uint32_t address)
{
    uint32_t word = 0;
    int is_code = 0;
    for (int i = 0; i < code_count; i++)
        is_code |= address >= code[i].from && address < code[i].to;
    if (!is_code || address % 2 != 0)
        fault("a jump to 0x%08x, where no code is", address);
    const uint8_t *at = address >= SHARED_BASE ? &shared[address - SHARED_BASE] : &private1[address - PRIVATE1_BASE];
    memcpy(&word, at, 2);
    if ((word & 3) == 3)
        memcpy(&word, at, 4);
    return decode(word);
}

const instruction *find_instruction(uint32_t address)
{
    instruction *entry = entry_of(address);
    if (entry == 0)
        fault("a jump to 0x%08x, where no code is", address);
    if (entry->op == OP_UNKNOWN)
        *entry = decode_at(address);
    return entry;
}

void hook_at(uint32_t address)
{
    instruction *entry = entry_of(address);
    if (entry == 0 || hook_count == HOOKS)
        return;
    hooks[hook_count].address = address;
    hooks[hook_count++].hooked = *instruction_at(address);
    entry->op = OP_HOOK;
}

const instruction *hooked_at(uint32_t address)
{
    int at = 0;
    while (hooks[at].address != address)
        at++;
    return &hooks[at].hooked;
}

/* ---- The image. */

static uint32_t number_at(const uint8_t *bytes, size_t at, size_t count)
{
    uint32_t value = 0;
    memcpy(&value, bytes + at, count);
    return value;
}

static int is_memory(uint32_t address, uint32_t bytes)
{
    return inside(l1, L1_BASE, L1_BYTES, address, bytes) || inside(shared, SHARED_BASE, SHARED_BYTES, address, bytes) ||
           inside(private0, PRIVATE0_BASE, PRIVATE_BYTES, address, bytes) ||
           inside(private1, PRIVATE1_BASE, PRIVATE_BYTES, address, bytes) || hyper_memory(address, bytes);
}

static void load_segment(const uint8_t *file, size_t size, size_t header)
{
    uint32_t offset = number_at(file, header + 4, 4), address = number_at(file, header + 12, 4); /* where it is stored */
    uint32_t used_at = number_at(file, header + 8, 4);
    uint32_t bytes = number_at(file, header + 16, 4), flags = number_at(file, header + 24, 4);
    if (number_at(file, header, 4) != 1 || bytes == 0)
        return;
    uint8_t *at = inside(shared, SHARED_BASE, SHARED_BYTES, address, bytes);
    if (at == 0)
        at = hyper_memory(address, bytes);
    if (at == 0)
        at = inside(private1, PRIVATE1_BASE, PRIVATE_BYTES, address, bytes);
    if (at == 0)
        at = inside(private0, PRIVATE0_BASE, PRIVATE_BYTES, address, bytes);
    if (at == 0 || !is_memory(used_at, bytes) || offset > size || bytes > size - offset)
        fault("an image of another chip: %u bytes at 0x%08x are in no memory that Siracusa loads", bytes,
              at == 0 ? address : used_at);
    memcpy(at, file + offset, bytes);
    if (flags & 1 && code_count < (int)(sizeof code / sizeof *code)) {
        code[code_count].from = address;
        code[code_count++].to = address + bytes;
    }
}

static void load_symbols(const uint8_t *file, size_t size)
{
    size_t headers = number_at(file, 32, 4), count = number_at(file, 48, 2);
    for (size_t i = 0; i < count && headers + 40 * (i + 1) <= size; i++) {
        size_t at = headers + 40 * i;
        if (number_at(file, at + 4, 4) != 2)
            continue;
        size_t first = number_at(file, at + 16, 4), bytes = number_at(file, at + 20, 4), link = number_at(file, at + 24, 4);
        size_t names_at = headers + 40 * link;
        if (link >= count || names_at + 40 > size || first > size || bytes > size - first)
            continue;
        size_t names = number_at(file, names_at + 16, 4), names_bytes = number_at(file, names_at + 20, 4);
        if (names > size || names_bytes > size - names || names_bytes == 0 || file[names + names_bytes - 1] != 0)
            continue;
        for (size_t symbol = first; symbol + 16 <= first + bytes; symbol += 16)
            if (number_at(file, symbol, 4) < names_bytes && (file[symbol + 12] & 15) <= 2)
                add_symbol(number_at(file, symbol + 4, 4), (const char *)file + names + number_at(file, symbol, 4));
    }
    sort_symbols();
}

void load_image(const char *path)
{
    FILE *stream = fopen(path, "rb");
    uint8_t *file = malloc(MOST_FILE); /* kept: symbols are named by it */
    size_t size = stream == 0 || file == 0 ? 0 : fread(file, 1, MOST_FILE, stream);
    spoil(l1, sizeof l1);
    spoil(private0, sizeof private0);
    spoil(private1, sizeof private1);
    spoil(shared, sizeof shared);
    if (size < 52 || memcmp(file, "\177ELF\1\1", 6) != 0 || number_at(file, 18, 2) != 243)
        fault("an image of another chip: '%s' is no program for a 32-bit RISC-V", path);
    fclose(stream);
    size_t headers = number_at(file, 28, 4), count = number_at(file, 44, 2);
    if (headers > size || 32 * count > size - headers)
        fault("an image that is cut off: its headers end behind it");
    for (size_t i = 0; i < count; i++)
        load_segment(file, size, headers + 32 * i);
    cores[FABRIC].pc = number_at(file, 24, 4);
    load_symbols(file, size);
    instruction_at(cores[FABRIC].pc);
}

/* ---- Registers. */

enum { CLUSTER_CONTROL = 0x10200000, CACHE_CONTROL = 0x10201400, DMA_BUS = 0x10201800, UDMA = 0x1a102000, UDMA_BYTES = 0x1000 };
enum { EXIT = 0x1a1040a0, CONSOLE = 0x1a10f000 + 31 * 128, EVENTS = 0x00204000, DMA = 0x00204400, PRIVATE_REGISTERS = 0x400 };
enum { BUS_DELAY = 2, UDMA_DELAY = 22, CLUSTER_IS_ON = 0x20, BOOT = 0x40, FETCH_ENABLE = 0x08 };

static void start_cores(uint32_t mask, const uint32_t *boot)
{
    reset_caches();
    for (int i = 0; i < CLUSTER_CORES; i++)
        if (mask >> i & 1 && cores[i].state == IS_OFF) {
            cores[i].pc = boot[i];
            cores[i].slept_at = now;
            resume(&cores[i], 0, BY_sleep);
        }
    note(FABRIC, "starts cores 0x%x", mask);
}

static int cluster_control(uint32_t address, uint32_t value)
{
    static uint32_t boot[CLUSTER_CORES], is_on, caches;
    uint32_t offset = address - CLUSTER_CONTROL;
    if (address == CACHE_CONTROL)
        caches = value;
    else if (offset == CLUSTER_IS_ON)
        is_on = value;
    else if (offset >= BOOT && offset < BOOT + 4 * CLUSTER_CORES)
        boot[(offset - BOOT) / 4] = value;
    else if (offset == FETCH_ENABLE) {
        if (is_on != 1 || caches != 0xffffffff || value >> CLUSTER_CORES)
            fault("the cluster is started before it is set up");
        start_cores(value, boot);
    } else
        return 0;
    return 1;
}

uint32_t access_register(core_state *core, uint32_t address, int is_write, uint32_t value, int64_t *delay)
{
    uint32_t near = address & ~0x10000000u;
    if (address - UDMA < UDMA_BYTES) {
        *delay = UDMA_DELAY;
        return hyper(address - UDMA, is_write, value);
    }
    if (core->number != FABRIC) {
        if (near - EVENTS < PRIVATE_REGISTERS)
            return event_unit(core, near - EVENTS, is_write, value);
        if (near - DMA < PRIVATE_REGISTERS)
            return mchan(core, near - DMA, is_write, value);
        if (address - DMA_BUS < 8 && !is_write) {
            *delay = BUS_DELAY;
            return mchan(core, address - DMA_BUS, is_write, value);
        }
    } else if (is_write) {
        if (address == CONSOLE) {
            console(value);
            return 0;
        }
        if (address == EXIT)
            leave(value >> 31 ? (int)(value & 0x7f) : FAULT_STATUS);
        if (cluster_control(address, value))
            return 0;
    }
    fault("%s 0x%08x, where no memory is", is_write ? "a write to" : "a read of", address);
}
