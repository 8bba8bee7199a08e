/* A QEMU plugin that counts the instructions of each core, and of each kernel, while an entry runs.
 *
 * map=FILE has a line for each function that matters, addresses in hexadecimal:
 *   begin ADDRESS          a core that comes here starts to count from zero
 *   end ADDRESS            a core that comes here writes what it has counted since, as one line to out=FILE:
 *                          core, instructions, then of each kernel in the order of the map
 *   kernel START STOP      a kernel: what it executes and what it calls is its own
 *   glue START STOP        all else that calls kernels or is called beside them
 * A block of code is counted as a whole when it starts. In glue each instruction is counted by itself, because an access
 * to a device register leaves a block in its middle, and only glue has any. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "qemu_plugin.h"

enum { MOST_CORES = 8, MOST_RANGES = 4096, MOST_KERNELS = 256, GLUE = 0, INHERITED = -1 };

typedef struct {
    uint32_t start, stop;
    int owner;
} range_t;

typedef struct {
    uint32_t instructions;
    int owner;
    enum { NEITHER, BEGIN, END } marker;
} piece_t;

typedef struct {
    uint64_t counts[MOST_KERNELS + 1];
    int owner, is_counting;
} core_t;

QEMU_PLUGIN_EXPORT int qemu_plugin_version = 1;
static range_t ranges[MOST_RANGES];
static core_t cores[MOST_CORES];
static int range_count, kernel_count;
static uint32_t begin_address, end_address;
static FILE *out;

static void report(unsigned number, const core_t *core)
{
    uint64_t total = 0;
    for (int k = 0; k <= kernel_count; k++)
        total += core->counts[k];
    fprintf(out, "%u %llu", number, (unsigned long long)total);
    for (int k = 1; k <= kernel_count; k++)
        fprintf(out, " %llu", (unsigned long long)core->counts[k]);
    fputc('\n', out);
    fflush(out);
}

static void on_piece(unsigned number, void *data)
{
    const piece_t *piece = data;
    core_t *core = &cores[number % MOST_CORES];
    if (piece->marker == BEGIN) {
        memset(core, 0, sizeof *core);
        core->is_counting = 1;
    } else if (piece->marker == END && core->is_counting) {
        core->is_counting = 0;
        report(number, core);
    } else if (core->is_counting) {
        if (piece->owner != INHERITED)
            core->owner = piece->owner;
        core->counts[core->owner] += piece->instructions;
    }
}

static int owner_of(uint32_t address)
{
    for (int i = 0; i < range_count; i++)
        if (address >= ranges[i].start && address < ranges[i].stop)
            return ranges[i].owner;
    return INHERITED;
}

static piece_t *piece_at(uint32_t address, uint32_t instructions)
{
    piece_t *piece = calloc(1, sizeof *piece);
    piece->instructions = instructions;
    piece->owner = owner_of(address);
    piece->marker = address == begin_address ? BEGIN : address == end_address ? END : NEITHER;
    return piece;
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    (void)id;
    size_t count = qemu_plugin_tb_n_insns(block);
    piece_t *whole = piece_at((uint32_t)qemu_plugin_tb_vaddr(block), (uint32_t)count);
    if (whole->owner != GLUE || whole->marker != NEITHER) {
        qemu_plugin_register_vcpu_tb_exec_cb(block, on_piece, QEMU_PLUGIN_NO_REGISTERS, whole);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(block, i);
        piece_t *piece = piece_at((uint32_t)qemu_plugin_insn_vaddr(insn), 1);
        qemu_plugin_register_vcpu_insn_exec_cb(insn, on_piece, QEMU_PLUGIN_NO_REGISTERS, piece);
    }
}

static int read_map(const char *path)
{
    FILE *map = fopen(path, "r");
    char word[16];
    unsigned start, stop;
    if (map == NULL)
        return 0;
    while (fscanf(map, "%15s %x", word, &start) == 2) {
        if (!strcmp(word, "begin"))
            begin_address = start;
        else if (!strcmp(word, "end"))
            end_address = start;
        else if (fscanf(map, "%x", &stop) != 1 || range_count == MOST_RANGES || kernel_count == MOST_KERNELS)
            break;
        else
            ranges[range_count++] = (range_t){start, stop, !strcmp(word, "kernel") ? ++kernel_count : GLUE};
    }
    int is_complete = feof(map) && begin_address != 0 && end_address != 0;
    fclose(map);
    return is_complete;
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    int has_map = 0;
    (void)info;
    for (int i = 0; i < argc; i++) {
        if (!strncmp(argv[i], "map=", 4))
            has_map = read_map(argv[i] + 4);
        if (!strncmp(argv[i], "out=", 4))
            out = fopen(argv[i] + 4, "w");
    }
    if (!has_map || out == NULL) {
        fprintf(stderr, "count_entries: cannot read the map, or cannot write the counts\n");
        return 1;
    }
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    return 0;
}
