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

void console(uint32_t character) { putchar((int)(character & 255)); }

/* ---- The profile: the counters of every core whenever one comes to a mark. */

static FILE *profile;
static const char *const marks[] = {"tg_begin", "tg_enter", "tg_end"};
static uint32_t mark_addresses[sizeof marks / sizeof *marks];
static int mark_count;

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
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        mark_addresses[i] = address_of(marks[i]);
        if (mark_addresses[i] != 0)
            hook_at(mark_addresses[i]);
    }
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

static void print_name(uint32_t address)
{
    const uint8_t *name = memory_at(address, 1);
    fputc('"', profile);
    for (int i = 0; name != 0 && i < 200 && name[i] != 0; i++)
        if (name[i] >= ' ' && name[i] < 127 && name[i] != '"' && name[i] != '\\')
            fputc(name[i], profile);
    fputc('"', profile);
}

void profile_mark(core_state *core)
{
    int kind = 0;
    while (mark_addresses[kind] != core->pc)
        kind++;
    fprintf(profile, "%s\n{\"kind\": \"%s\", \"name\": ", mark_count++ ? "," : "", marks[kind] + 3);
    print_name(core->x[10]);
    fprintf(profile, ", \"cycle\": %lld, \"cores\": [", (long long)now);
    print_counters();
    fprintf(profile, "]}");
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
    fflush(stdout);
    fprintf(stderr, "instructions %llu cycles %lld\n", (unsigned long long)total, (long long)now);
    exit(status);
}
