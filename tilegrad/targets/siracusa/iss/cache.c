/* Instruction caches: a private one for each core, and two shared banks behind them. The victim of a refill is drawn from
 * an 8-bit register that shifts at each refill; ways that are empty are not preferred. A cache refills one line at a
 * time: a second miss waits for the first. A line that is on its way is a hit that waits for the rest of the way. */
#include "iss.h"

enum { SHARED_BANKS = 2, SHARED_SETS = 32, WORKER_SETS = 8, CONTROLLER_SETS = 32 };
enum { REFILL = 2, L2_LATENCY = 14, LINE_TIME = 1, EMPTY = 0xffffffff };

static cache shared_banks[SHARED_BANKS];

static void reset_cache(cache *which, uint32_t sets)
{
    which->sets = sets;
    for (uint32_t set = 0; set < sets; set++)
        for (int way = 0; way < CACHE_WAYS; way++) {
            which->tags[set][way] = EMPTY;
            which->filled[set][way] = -1;
        }
    which->free_at = -1;
}

void reset_caches(void)
{
    for (int i = 0; i < CLUSTER_CORES; i++)
        reset_cache(&cores[i].l0, i == CONTROLLER ? CONTROLLER_SETS : WORKER_SETS);
    for (int i = 0; i < SHARED_BANKS; i++)
        reset_cache(&shared_banks[i], SHARED_SETS);
}

static int victim(cache *which)
{
    unsigned bits = which->random;
    unsigned feedback = ~(bits >> 7 ^ bits >> 3 ^ bits >> 2 ^ bits >> 1) & 1;
    which->random = (uint8_t)(bits << 1 | feedback);
    return which->random >> 1 & (CACHE_WAYS - 1);
}

static int find(const cache *which, uint32_t set, uint32_t tag)
{
    for (int way = 0; way < CACHE_WAYS; way++)
        if (which->tags[set][way] == tag)
            return way;
    return -1;
}

static int64_t until(int64_t time, int64_t cycle) { return time > cycle ? time - cycle : 0; }

/* A line comes after `latency`, or later if another one is on its way. */
static int64_t refill(cache *which, uint32_t set, uint32_t tag, int64_t latency, int64_t cycle)
{
    int way = victim(which);
    int64_t delay = until(which->free_at, cycle) + latency + REFILL;
    which->tags[set][way] = tag;
    which->filled[set][way] = which->free_at = cycle + delay;
    return delay;
}

static int64_t shared_fetch(uint32_t line, int64_t cycle)
{
    cache *which = &shared_banks[line % SHARED_BANKS];
    uint32_t tag = line / SHARED_BANKS, set = tag % SHARED_SETS;
    int way = find(which, set, tag);
    if (way >= 0)
        return until(which->filled[set][way], cycle);
    int64_t latency = shared_delay(line * LINE_BYTES, LINE_BYTES, L2_LATENCY) + LINE_TIME;
    return refill(which, set, tag, latency, cycle);
}

int64_t fetch_delay(int core, uint32_t line, int64_t cycle)
{
    cache *l0 = &cores[core].l0;
    uint32_t set = line & (l0->sets - 1);
    int way = find(l0, set, line);
    if (way >= 0)
        return until(l0->filled[set][way], cycle);
    /* The victim is drawn before the line is asked for; both registers are independent. */
    return refill(l0, set, line, shared_fetch(line, cycle), cycle);
}
