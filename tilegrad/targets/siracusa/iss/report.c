/* What the model says: the image's console, faults with who, where and what came before, and the profile. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "iss.h"

/* ---- Symbols. */

typedef struct {
    uint32_t address;
    const char *name;
} symbol;
static symbol *symbols;
static int symbol_count, symbol_room;

void add_symbol(uint32_t address, const char *name)
{
    if (*name == 0 || *name == '$' || *name == '.')
        return;
    if (symbol_count == symbol_room) {
        symbol_room = 2 * symbol_room + 256;
        symbols = realloc(symbols, sizeof *symbols * (size_t)symbol_room);
        if (symbols == 0)
            exit(FAULT_STATUS);
    }
    symbols[symbol_count].address = address;
    symbols[symbol_count++].name = name;
}

static int by_address(const void *a, const void *b)
{
    const symbol *x = a, *y = b;
    return x->address < y->address ? -1 : x->address > y->address ? 1 : strcmp(x->name, y->name);
}

void sort_symbols(void)
{
    if (symbol_count > 0)
        qsort(symbols, (size_t)symbol_count, sizeof *symbols, by_address);
}

uint32_t address_of(const char *name)
{
    for (int i = 0; i < symbol_count; i++)
        if (strcmp(symbols[i].name, name) == 0)
            return symbols[i].address;
    return 0;
}

static const symbol *symbol_at(uint32_t address)
{
    const symbol *found = 0;
    for (int i = 0; i < symbol_count && symbols[i].address <= address; i++)
        found = &symbols[i];
    return found;
}

/* ---- The latest events. */

enum { NOTES = 16, NOTE_BYTES = 112 };
static char notes[NOTES][NOTE_BYTES];
static uint64_t note_count;

void note(int core, const char *format, ...)
{
    char *text = notes[note_count++ % NOTES];
    int length = core < 0         ? snprintf(text, NOTE_BYTES, "cycle %lld: ", (long long)now)
                 : core == FABRIC ? snprintf(text, NOTE_BYTES, "cycle %lld: fabric controller ", (long long)now)
                                  : snprintf(text, NOTE_BYTES, "cycle %lld: core %d ", (long long)now, core);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + length, (size_t)(NOTE_BYTES - length), format, arguments);
    va_end(arguments);
}

static void print_place(const core_state *core)
{
    const symbol *at = symbol_at(core->pc);
    if (core->number == FABRIC)
        fprintf(stderr, "fabric controller");
    else
        fprintf(stderr, "core %d", core->number);
    fprintf(stderr, " at 0x%08x", core->pc);
    if (at != 0 && core->pc - at->address < 1u << 20)
        fprintf(stderr, " (%s+0x%x)", at->name, core->pc - at->address);
}

void fault(const char *format, ...)
{
    va_list arguments;
    fflush(stdout);
    fprintf(stderr, "fault: ");
    print_place(current);
    fprintf(stderr, ", cycle %lld: ", (long long)now);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
    for (int i = 0; i < CLUSTER_CORES; i++)
        if (cores[i].state == IS_ASLEEP || cores[i].state == IS_BLOCKED) {
            fprintf(stderr, "waiting: ");
            print_place(&cores[i]);
            fprintf(stderr, "\n");
        }
    for (uint64_t i = note_count > NOTES ? note_count - NOTES : 0; i < note_count; i++)
        fprintf(stderr, "event: %s\n", notes[i % NOTES]);
    exit(FAULT_STATUS);
}

const char *console_until;

void console(uint32_t character)
{
    static size_t column, same;
    int is_end = (character & 255) == '\n';
    putchar((int)(character & 255));
    if (console_until == 0)
        return;
    if (is_end && same == strlen(console_until))
        leave(0);
    if (is_end) {
        column = same = 0;
    } else if (same == column++ && same < strlen(console_until)) {
        same += (char)character == console_until[same];
    }
}

/* ---- Marks: functions that cores come to. The profile has the counters of every core whenever one begins, enters a
 * nest or ends; the trace also has where calls of the driver begin and end. */

enum { PROFILED = 3, MARKS = 7, RETURNS = 96 };
static const char *const marks[MARKS] = {"tg_begin", "tg_enter", "tg_end", "tg_dma_wait", "tg_l3_wait", "tg_l3_start",
                                          "tg_finish_cores"};
static const char entered[MARKS] = {'B', 'E', 'X', 'w', 'l', 's', 'j'};
static uint32_t mark_addresses[MARKS], returns[RETURNS];
static char left[RETURNS];
static int return_count, mark_count;
static FILE *profile, *traced;
int is_traced;

static void hook_marks(int count)
{
    for (int i = 0; i < count; i++) {
        if (mark_addresses[i] != 0)
            continue;
        mark_addresses[i] = address_of(marks[i]);
        if (mark_addresses[i] != 0)
            hook_at(mark_addresses[i]);
    }
}

void open_profile(const char *path)
{
    profile = fopen(path, "w");
    if (profile == 0)
        fault("the profile '%s' cannot be written", path);
    fprintf(profile, "{\"reasons\": [");
#define NAME(name) "\"" #name "\", "
    static const char all[] = REASONS(NAME);
#undef NAME
    fprintf(profile, "%.*s],\n\"marks\": [", (int)strlen(all) - 2, all);
    hook_marks(PROFILED);
}

static void print_counters(void)
{
    for (int i = 0; i < CLUSTER_CORES; i++) {
        int64_t asleep = cores[i].state == IS_ASLEEP ? now - cores[i].slept_at : 0;
        fprintf(profile, "%s[%llu", i ? ", " : "", (unsigned long long)cores[i].instructions);
        for (int reason = 0; reason < REASON_COUNT; reason++)
            fprintf(profile, ", %llu", (unsigned long long)cores[i].lost[reason] +
                                           (reason == BY_sleep ? (unsigned long long)asleep : 0));
        fprintf(profile, "]");
    }
}

static void print_name(FILE *to, uint32_t address)
{
    const uint8_t *name = memory_at(address, 1);
    for (int i = 0; name != 0 && i < 200 && name[i] != 0; i++)
        if (name[i] >= ' ' && name[i] < 127 && name[i] != '"' && name[i] != '\\')
            fputc(name[i], to);
}

static void profile_mark(const core_state *core, int kind)
{
    fprintf(profile, "%s\n{\"kind\": \"%s\", \"name\": \"", mark_count++ ? "," : "", marks[kind] + 3);
    print_name(profile, core->x[10]);
    fprintf(profile, "\", \"cycle\": %lld, \"cores\": [", (long long)now);
    print_counters();
    fprintf(profile, "]}");
}

/* A line of the trace: what, cycle, core, two numbers. B, E and X are begin, enter and end of an entry, with a name. 'b':
 * a core comes to a barrier; 'p': all have; 'f': work is dispatched. 'd' and 'h' are commands to the DMA engine and to
 * HyperRAM, with bytes and whether they are inward, 'D' and 'H' their ends. 'w' and 'W', 'l' and 'L', 's' and 'S': a wait
 * for the DMA engine or HyperRAM, and the start of a move, begin and end; 'j': the conductor has come to the end of a call. */
void open_trace(const char *path)
{
    traced = fopen(path, "w");
    if (traced == 0)
        fault("the trace '%s' cannot be written", path);
    is_traced = 1;
    hook_marks(MARKS);
}

void trace(char kind, int core, uint32_t a, uint32_t b)
{
    if (is_traced)
        fprintf(traced, "%c %lld %d %u %u\n", kind, (long long)now, core, a, b);
}

static void trace_call(const core_state *core, int kind)
{
    if (kind < PROFILED) {
        fprintf(traced, "%c %lld %d 0 ", entered[kind], (long long)now, core->number);
        print_name(traced, core->x[10]);
        fputc('\n', traced);
        return;
    }
    trace(entered[kind], core->number, 0, 0);
    for (int i = 0; i < return_count; i++)
        if (returns[i] == core->x[1])
            return;
    if (return_count == RETURNS)
        return;
    returns[return_count] = core->x[1];
    left[return_count++] = (char)(entered[kind] - 'a' + 'A');
    hook_at(core->x[1]);
}

void mark(core_state *core)
{
    for (int i = 0; i < return_count; i++)
        if (returns[i] == core->pc)
            trace(left[i], core->number, 0, 0);
    for (int kind = 0; kind < MARKS; kind++)
        if (mark_addresses[kind] == core->pc) {
            if (profile != 0 && kind < PROFILED)
                profile_mark(core, kind);
            if (is_traced)
                trace_call(core, kind);
        }
}

void leave(int status)
{
    uint64_t total = 0;
    for (int i = 0; i < CORES; i++)
        total += cores[i].instructions;
    if (profile != 0) {
        fprintf(profile, "],\n\"cycles\": %lld, \"instructions\": %llu}\n", (long long)now, (unsigned long long)total);
        fclose(profile);
    }
    if (traced != 0)
        fclose(traced);
    fflush(stdout);
    fprintf(stderr, "instructions %llu cycles %lld\n", (unsigned long long)total, (long long)now);
    exit(status);
}
