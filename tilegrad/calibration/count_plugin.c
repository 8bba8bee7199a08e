/* A QEMU (7.2, user mode) plugin that counts the instructions of RV32IMF kernels by class.
 *
 * Counting begins at the marker `slti x0, x0, 1` and ends at `slti x0, x0, 2`, which writes one line of counters to the
 * file given by `out=`. Accesses to addresses within [lo, hi) are accesses to operands; the rest are stack, arguments
 * and constants. Instructions of a block without a marker are added up when the block is translated, so that running it
 * costs one callback. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "qemu_plugin.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = 1;

enum { FMA, FP_OTHER, FDIV_SQRT, FMV, LOAD, STORE, BRANCH, TAKEN, JUMP, MUL, DIV, OTHER, LOAD_USE, DATA_LOADS, DATA_STORES,
       L0_MISSES, COUNTERS };
enum { NO_REGISTER = 64, MARKER_BITS = 0x02013, MOST_LINES = 160 };

/* What a run of instructions does: its share of the counters, the first and the last instruction, its cache lines. */
typedef struct {
    uint32_t counts[COUNTERS];
    uint32_t start, branch; /* of the last instruction, if it is a conditional branch */
    uint64_t first_sources;
    int last_load;    /* register that the last instruction loads, or NO_REGISTER */
    int marker;
} run_t;

static uint64_t counters[COUNTERS], operands_start, operands_stop;
static uint32_t branch;
static int loaded = NO_REGISTER;
static FILE *out;

static int class_of(uint32_t word)
{
    uint32_t opcode = word & 0x7f, funct7 = word >> 25, funct3 = word >> 12 & 7;
    switch (opcode) {
    case 0x03: case 0x07: return LOAD;
    case 0x23: case 0x27: return STORE;
    case 0x63: return BRANCH;
    case 0x67: case 0x6f: return JUMP;
    case 0x43: case 0x47: case 0x4b: case 0x4f: return FMA;
    case 0x53:
        if (funct7 == 0x0c || funct7 == 0x2c)
            return FDIV_SQRT;
        return (funct7 == 0x70 && funct3 == 0) || funct7 == 0x78 ? FMV : FP_OTHER;
    case 0x33: return funct7 == 1 ? (funct3 < 4 ? MUL : DIV) : OTHER;
    default: return OTHER;
    }
}

/* Registers read, as bits: x1..x31, then f0..f31. */
static uint64_t sources_of(uint32_t word)
{
    uint32_t opcode = word & 0x7f, funct7 = word >> 25;
    uint64_t one = 1, x1 = one << (word >> 15 & 31) & ~one, x2 = one << (word >> 20 & 31) & ~one;
    uint64_t f1 = one << (32 + (word >> 15 & 31)), f2 = one << (32 + (word >> 20 & 31)), f3 = one << (32 + (word >> 27));
    switch (opcode) {
    case 0x03: case 0x07: case 0x13: case 0x67: return x1;
    case 0x23: case 0x63: case 0x33: return x1 | x2;
    case 0x27: return x1 | f2;
    case 0x43: case 0x47: case 0x4b: case 0x4f: return f1 | f2 | f3;
    case 0x53:
        if (funct7 == 0x68 || funct7 == 0x78)
            return x1;
        return funct7 == 0x2c || funct7 == 0x60 || funct7 == 0x70 ? f1 : f1 | f2;
    default: return 0;
    }
}

static int load_of(uint32_t word)
{
    int rd = word >> 7 & 31;
    return (word & 0x7f) == 0x07 ? 32 + rd : (word & 0x7f) == 0x03 && rd ? rd : NO_REGISTER;
}

static int is_used(uint64_t sources, int reg) { return reg != NO_REGISTER && (sources >> reg & 1); }

/* The private instruction cache: 512 bytes, four ways of 16-byte lines, least recently used. */
static void fetch(uint32_t line)
{
    static uint32_t tags[8][4], last_line;
    static uint64_t stamps[8][4], now;
    int set = line & 7, oldest = 0;
    if (line == last_line)
        return;
    last_line = line;
    now++;
    for (int way = 0; way < 4; way++)
        if (tags[set][way] == line) {
            stamps[set][way] = now;
            return;
        }
    counters[L0_MISSES]++;
    for (int way = 1; way < 4; way++)
        if (stamps[set][way] < stamps[set][oldest])
            oldest = way;
    tags[set][oldest] = line;
    stamps[set][oldest] = now;
}

static void dump(void)
{
    for (int k = 0; k < COUNTERS; k++)
        fprintf(out, "%lu%c", (unsigned long)counters[k], k + 1 < COUNTERS ? ' ' : '\n');
}

static uint32_t size_of(const run_t *run)
{
    uint32_t size = 0;
    for (int k = 0; k <= OTHER; k++)
        size += k == TAKEN ? 0 : run->counts[k];
    return size;
}

static void on_run(unsigned cpu, void *data)
{
    const run_t *run = data;
    (void)cpu;
    uint32_t size = run->marker ? 1 : size_of(run);
    for (uint32_t line = run->start >> 4; line <= (run->start + 4 * size - 4) >> 4; line++)
        fetch(line);
    if (branch && run->start != branch + 4)
        counters[TAKEN]++;
    if (is_used(run->first_sources, loaded))
        counters[LOAD_USE]++;
    branch = run->branch;
    loaded = run->last_load;
    if (run->marker == 1)
        memset(counters, 0, sizeof counters);
    else if (run->marker)
        dump();
    else
        for (int k = 0; k < COUNTERS; k++)
            counters[k] += run->counts[k];
}

static void on_access(unsigned cpu, uint32_t info, uint64_t address, void *data)
{
    (void)cpu, (void)info;
    address &= 0xffffffffu;
    if (address >= operands_start && address < operands_stop)
        counters[data ? DATA_STORES : DATA_LOADS]++;
}

static uint32_t word_of(const struct qemu_plugin_insn *insn)
{
    uint32_t word;
    memcpy(&word, qemu_plugin_insn_data(insn), sizeof word);
    return word;
}

static void add(run_t *run, uint32_t word, uint32_t address)
{
    int kind = class_of(word);
    if (size_of(run) == 0) {
        run->start = address;
        run->first_sources = sources_of(word);
    } else if (is_used(sources_of(word), run->last_load))
        run->counts[LOAD_USE]++;
    run->counts[kind]++;
    run->branch = kind == BRANCH ? address : 0;
    run->last_load = load_of(word);
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    (void)id;
    size_t count = qemu_plugin_tb_n_insns(block);
    int has_marker = 0;
    for (size_t i = 0; i < count; i++)
        has_marker |= (word_of(qemu_plugin_tb_get_insn(block, i)) & 0xfffff) == MARKER_BITS;
    run_t *run = calloc(1, sizeof *run);
    for (size_t i = 0; i < count; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(block, i);
        uint32_t word = word_of(insn), address = (uint32_t)qemu_plugin_insn_vaddr(insn);
        int kind = class_of(word);
        if (has_marker && i > 0)
            run = calloc(1, sizeof *run);
        add(run, word, address);
        if ((word & 0xfffff) == MARKER_BITS)
            run->marker = (int)(word >> 20);
        if (has_marker)
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_run, QEMU_PLUGIN_NO_REGISTERS, run);
        if (kind == LOAD || kind == STORE)
            qemu_plugin_register_vcpu_mem_cb(insn, on_access, QEMU_PLUGIN_NO_REGISTERS, QEMU_PLUGIN_READS_AND_WRITES,
                                             (void *)(uintptr_t)(kind == STORE));
    }
    if (!has_marker)
        qemu_plugin_register_vcpu_tb_exec_cb(block, on_run, QEMU_PLUGIN_NO_REGISTERS, run);
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    (void)info;
    for (int i = 0; i < argc; i++) {
        if (!strncmp(argv[i], "lo=", 3))
            operands_start = strtoull(argv[i] + 3, 0, 0);
        if (!strncmp(argv[i], "hi=", 3))
            operands_stop = strtoull(argv[i] + 3, 0, 0);
        if (!strncmp(argv[i], "out=", 4))
            out = fopen(argv[i] + 4, "w");
    }
    if (!out)
        return 1;
    setvbuf(out, 0, _IOLBF, 0);
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    return 0;
}
