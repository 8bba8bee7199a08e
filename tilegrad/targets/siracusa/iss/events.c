/* What is scheduled, and the event unit: events of each core, hardware barriers, the dispatch FIFO, and sleep. */
#include "iss.h"

/* ---- The schedule: few entries, sorted by cycle; those of one cycle in the order in which they came. */

enum { MOST_EVENTS = 64 };
typedef struct {
    int64_t cycle;
    event_handler *handler;
    int argument;
} scheduled;
static scheduled events[MOST_EVENTS];
static int event_count;

void schedule(event_handler *handler, int argument, int64_t delay)
{
    scheduled entry = {now + delay, handler, argument};
    if (event_count == MOST_EVENTS)
        fault("more than %d events are scheduled", MOST_EVENTS);
    int at = event_count++;
    for (; at > 0 && events[at - 1].cycle > entry.cycle; at--)
        events[at] = events[at - 1];
    events[at] = entry;
}

int is_scheduled(event_handler *handler)
{
    for (int i = 0; i < event_count; i++)
        if (events[i].handler == handler)
            return 1;
    return 0;
}

int64_t next_event(void) { return event_count > 0 ? events[0].cycle : NEVER; }

void run_events(void)
{
    while (event_count > 0 && events[0].cycle <= now) {
        scheduled first = events[0];
        event_count--;
        for (int i = 0; i < event_count; i++)
            events[i] = events[i + 1];
        first.handler(first.argument);
    }
}

/* ---- Event unit. */

enum { WAKE_UP = 2, GO_ON = 2, BARRIERS = 9, FIFO_ENTRIES = 8, BARRIER_EVENT = 16, DISPATCH_EVENT = 18, SW_EVENTS = 8 };
enum { AT_MASK = 0x00, AT_MASK_AND = 0x04, AT_MASK_OR = 0x08, AT_BUFFER = 0x1c, AT_MASKED = 0x20, AT_CLEAR = 0x28,
       AT_WAIT = 0x38, AT_WAIT_CLEAR = 0x3c, AT_FIFO = 0x80, AT_TEAM = 0x84, AT_SW = 0x100, AT_BARRIERS = 0x200 };
enum { BARRIER_TRIGGER_MASK = 0x00, BARRIER_STATUS = 0x04, BARRIER_TARGET_MASK = 0x0c, BARRIER_TRIGGER = 0x10,
       BARRIER_SELF = 0x14, BARRIER_WAIT = 0x18, BARRIER_WAIT_CLEAR = 0x1c, BARRIER_BYTES = 0x20 };

static struct {
    uint32_t mask, status, clears; /* what it listens to, what came, what waking up clears */
    uint32_t rd, value;            /* what its event load gives, and where */
    int is_asleep, is_waking, fifo_at;
} units[CLUSTER_CORES];
static struct {
    uint32_t members, target, status;
} barriers[BARRIERS];
static struct {
    uint32_t value, ready, team, waiting;
} fifo[FIFO_ENTRIES];
static uint32_t fifo_team;
static int fifo_head;

static void wake(int number)
{
    core_state *core = &cores[number];
    units[number].is_waking = 0;
    units[number].is_asleep = 0;
    if (units[number].rd != 0)
        core->x[units[number].rd] = units[number].value;
    note(number, "wakes up");
    resume(core, GO_ON, BY_sleep);
}

static void clear_after_waking(int number)
{
    units[number].status &= ~units[number].clears;
    units[number].clears = 0;
}

static void check(int number)
{
    if (units[number].is_asleep && !units[number].is_waking && units[number].mask & units[number].status) {
        clear_after_waking(number);
        units[number].is_waking = 1;
        schedule(wake, number, WAKE_UP);
    }
}

/* No target at all means every core. */
void send_event(uint32_t targets, uint32_t event)
{
    for (int i = 0; i < CLUSTER_CORES; i++)
        if (targets == 0 || targets >> i & 1) {
            units[i].status |= 1u << event;
            check(i);
        }
}

/* A core waits even where its event is there already: it takes as long. */
static void wait_for_event(core_state *core)
{
    int number = core->number;
    wait_for(core, IS_ASLEEP);
    units[number].is_asleep = 1;
    units[number].is_waking = 0;
    check(number);
}

static void check_barrier(int which)
{
    if (barriers[which].status == barriers[which].members) {
        barriers[which].status = 0;
        trace('p', -1, (uint32_t)which, 0);
        send_event(barriers[which].target, BARRIER_EVENT);
    }
}

static void push_fifo(core_state *core, uint32_t value)
{
    int at = fifo_head;
    fifo_head = (fifo_head + 1) % FIFO_ENTRIES;
    note(core->number, "dispatches 0x%08x to cores 0x%x", value, fifo_team);
    trace('f', core->number, fifo_team, 0);
    fifo[at].value = value;
    fifo[at].team = fifo_team;
    fifo[at].ready = 0xffffffff;
    for (int i = 0; i < CLUSTER_CORES; i++) {
        if (!(fifo[at].waiting >> i & 1))
            continue;
        fifo[at].waiting &= ~(1u << i);
        fifo[at].ready &= ~(1u << i);
        units[i].fifo_at = (units[i].fifo_at + 1) % FIFO_ENTRIES;
        if (fifo[at].team >> i & 1) {
            units[i].value = value;
            send_event(1u << i, DISPATCH_EVENT);
        } else {
            fifo[units[i].fifo_at].waiting |= 1u << i;
        }
    }
}

static void take_fifo(core_state *core, uint32_t rd)
{
    int number = core->number;
    uint32_t self = 1u << number;
    while (fifo[units[number].fifo_at].ready & self && !(fifo[units[number].fifo_at].team & self)) {
        fifo[units[number].fifo_at].ready &= ~self;
        units[number].fifo_at = (units[number].fifo_at + 1) % FIFO_ENTRIES;
    }
    int at = units[number].fifo_at;
    if (fifo[at].ready & self) {
        fifo[at].ready &= ~self;
        units[number].fifo_at = (at + 1) % FIFO_ENTRIES;
        if (rd != 0)
            core->x[rd] = fifo[at].value;
        return;
    }
    note(number, "waits for the dispatch FIFO");
    units[number].rd = rd;
    fifo[at].waiting |= self;
    units[number].clears = 1u << DISPATCH_EVENT;
    wait_for_event(core);
}

/* A load that sleeps until the event. */
void event_load(core_state *core, uint32_t address, uint32_t rd)
{
    int number = core->number;
    uint32_t offset = address & 0x3ff;
    if (number == FABRIC || (address & ~0x10000000u) - 0x00204000u >= 0x400)
        fault("an event load from 0x%08x", address);
    units[number].rd = rd;
    if (offset == AT_FIFO) {
        take_fifo(core, rd);
        return;
    }
    units[number].value = 0;
    if (offset == AT_WAIT || offset == AT_WAIT_CLEAR) {
        note(number, "waits for events 0x%08x", units[number].mask);
        units[number].clears = offset == AT_WAIT_CLEAR ? units[number].mask : 0;
        wait_for_event(core);
        return;
    }
    uint32_t which = (offset - AT_BARRIERS) / BARRIER_BYTES, part = offset % BARRIER_BYTES;
    if (offset < AT_BARRIERS || which >= BARRIERS || (part != BARRIER_WAIT && part != BARRIER_WAIT_CLEAR))
        fault("an event load from 0x%08x", address);
    if (!(barriers[which].members >> number & 1))
        fault("barrier %u is of cores 0x%x, of which this is none", which, barriers[which].members);
    note(number, "comes to barrier %u of cores 0x%x", which, barriers[which].members);
    barriers[which].status |= 1u << number;
    trace('b', number, which, 0);
    if (part == BARRIER_WAIT_CLEAR)
        units[number].clears = units[number].mask;
    check_barrier((int)which);
    wait_for_event(core);
}

static uint32_t barrier_register(core_state *core, uint32_t offset, int is_write, uint32_t value)
{
    uint32_t which = offset / BARRIER_BYTES, part = offset % BARRIER_BYTES;
    uint32_t *word = part == BARRIER_TRIGGER_MASK  ? &barriers[which].members
                     : part == BARRIER_TARGET_MASK ? &barriers[which].target
                     : part == BARRIER_STATUS      ? &barriers[which].status
                                                   : 0;
    if (which >= BARRIERS || (word == 0 && part != BARRIER_TRIGGER && part != BARRIER_SELF) || (word == 0 && !is_write))
        fault("register 0x%x of barrier %u", part, which);
    if (!is_write)
        return *word;
    if (word == 0)
        trace('b', core->number, which, 0);
    if (word != 0)
        *word = value;
    else
        barriers[which].status |= part == BARRIER_SELF ? 1u << core->number : value;
    if (barriers[which].members != 0)
        check_barrier((int)which);
    return 0;
}

uint32_t event_unit(core_state *core, uint32_t offset, int is_write, uint32_t value)
{
    int number = core->number;
    if (offset >= AT_BARRIERS)
        return barrier_register(core, offset - AT_BARRIERS, is_write, value);
    if (offset == AT_MASK && !is_write)
        return units[number].mask;
    if (offset == AT_BUFFER && !is_write)
        return units[number].status;
    if (offset == AT_MASKED && !is_write)
        return units[number].status & units[number].mask;
    if (!is_write)
        fault("a read of register 0x%x of the event unit", offset);
    if (offset == AT_MASK)
        units[number].mask = value;
    else if (offset == AT_MASK_AND)
        units[number].mask &= ~value;
    else if (offset == AT_MASK_OR)
        units[number].mask |= value;
    else if (offset == AT_CLEAR)
        units[number].status &= ~value;
    else if (offset == AT_FIFO)
        push_fifo(core, value);
    else if (offset == AT_TEAM)
        fifo_team = value;
    else if (offset >= AT_SW && offset < AT_SW + 4 * SW_EVENTS && offset % 4 == 0)
        send_event(value, (offset - AT_SW) / 4);
    else
        fault("a write of register 0x%x of the event unit", offset);
    return 0;
}
