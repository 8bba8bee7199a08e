/* siracusa-iss IMAGE.elf [--limit CYCLES] [--until TEXT] [--seed NUMBER] [--adverse] [--profile FILE] [--trace FILE]
 * Runs an image to its end: its console on stdout, its exit status; 99 after a fault, which stderr tells of. With --until
 * it ends behind the first line of the console that begins with TEXT, with status 0. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "iss.h"

enum { DEAD_AFTER = 20000000, TURNS = 64 };

core_state cores[CORES], *current = &cores[FABRIC];
int64_t now;
int running[CLUSTER_CORES], running_count;

/* Cores that wait leave the list at the end of a cycle; those that go on by then keep their place. */
static void drop_waiting(void)
{
    int kept = 0;
    for (int i = 0; i < running_count; i++) {
        core_state *core = &cores[running[i]];
        core->is_listed = core->state == IS_RUNNING;
        if (core->is_listed)
            running[kept++] = running[i];
    }
    running_count = kept;
}

static int64_t next_of_cores(void)
{
    int64_t first = next_event();
    for (int i = 0; i < running_count; i++)
        if (cores[running[i]].next < first)
            first = cores[running[i]].next;
    return first;
}

/* Nothing can wake a core any more: only the fabric controller runs, and it does not. */
static void check_alive(int64_t latest)
{
    if (now - latest < DEAD_AFTER)
        return;
    for (int i = CLUSTER_CORES - 1; i >= 0; i--)
        if (cores[i].state == IS_ASLEEP)
            current = &cores[i];
    fault("a deadlock: every core of the cluster waits for an event, and none is under way");
}

/* Who runs for ever is a core of the cluster, if one runs at all. */
static void fail_after(int64_t limit)
{
    current = running_count > 0 ? &cores[running[0]] : &cores[FABRIC];
    fault("no end after %lld cycles", (long long)limit);
}

static void run(int64_t limit)
{
    int64_t fabric_next = 0, latest = 0;
    core_state *fabric = &cores[FABRIC];
    for (;;) {
        int64_t next = next_of_cores();
        while (fabric_next <= next) {
            if (fabric_next > now)
                now = fabric_next;
            if (now >= limit)
                fail_after(limit);
            int before = running_count;
            execute(fabric);
            fabric_next = cluster_cycle(fabric->next);
            if (next == NEVER) {
                if (cores[0].state != IS_OFF)
                    check_alive(latest);
                if (running_count != before)
                    break;
            }
        }
        if (next == NEVER)
            continue;
        if (next >= limit)
            fail_after(limit);
        latest = now = next;
        int has_waiting = 0;
        for (int i = 0; i < running_count; i++) {
            core_state *core = &cores[running[i]];
            if (core->next == now) {
                execute(core);
                has_waiting |= core->state != IS_RUNNING;
                if (is_adverse && core->state == IS_RUNNING && noise() % TURNS == 0)
                    core->next += noise() % TURNS;
            }
        }
        if (next_event() <= now)
            run_events();
        if (has_waiting)
            drop_waiting();
    }
}

static int64_t number_of(const char *text)
{
    char *end;
    long long value = strtoll(text, &end, 10);
    if (*text == 0 || *end != 0 || value < 0) {
        fprintf(stderr, "'%s' is no number\n", text);
        exit(FAULT_STATUS);
    }
    return value;
}

int main(int argc, char **argv)
{
    int64_t limit = NEVER - 1;
    const char *image = 0, *profile = 0, *trace_path = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--adverse") == 0)
            is_adverse = 1;
        else if (strcmp(argv[i], "--limit") == 0 && i + 1 < argc)
            limit = number_of(argv[++i]);
        else if (strcmp(argv[i], "--until") == 0 && i + 1 < argc)
            console_until = argv[++i];
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            set_noise((uint32_t)number_of(argv[++i]));
        else if (strcmp(argv[i], "--profile") == 0 && i + 1 < argc)
            profile = argv[++i];
        else if (strcmp(argv[i], "--trace") == 0 && i + 1 < argc)
            trace_path = argv[++i];
        else if (image == 0 && argv[i][0] != '-')
            image = argv[i];
        else {
            fprintf(stderr, "usage: %s IMAGE.elf [--limit CYCLES] [--until TEXT] [--seed NUMBER] [--adverse] "
                            "[--profile FILE] [--trace FILE]\n", argv[0]);
            return FAULT_STATUS;
        }
    }
    if (image == 0) {
        fprintf(stderr, "no image is given\n");
        return FAULT_STATUS;
    }
    for (int i = 0; i < CORES; i++)
        cores[i].number = i;
    cores[FABRIC].state = IS_RUNNING;
    load_image(image);
    if (profile != 0)
        open_profile(profile);
    if (trace_path != 0)
        open_trace(trace_path);
    run(limit);
}
