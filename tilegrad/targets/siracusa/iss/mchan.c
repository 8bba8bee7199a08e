/* Cluster DMA (mchan): L2 <-> L1. A core writes the words of a command one after the other. Commands wait in its queue,
 * then in one of two global queues, and are cut into bursts: eight of each direction are on their way at once. Two ports
 * write what came from L2 into L1, two read what goes there, a word each in a cycle. */
#include <string.h>
#include "iss.h"

enum { COUNTERS = 16, CORE_QUEUE = 2, GLOBAL_QUEUE = 8, BURSTS = 8, BURST_BYTES = 256, LONGEST = 131071, WORDS = 5 };
enum { COMMANDS = CLUSTER_CORES * (CORE_QUEUE + 1) + 2 * GLOBAL_QUEUE + 2 * BURSTS + 4, PORTS = 4, L2_LATENCY = 14 };
enum { INWARD = 17, INCREMENT = 18, TWO_DIMENSIONS = 19, EVENT = 20, DMA_EVENT = 8, AT_COMMAND = 0, AT_STATUS = 4 };

typedef struct {
    int is_used, inward, has_event, counter, core;
    uint32_t l1, l2, line_bytes, line_left, line_start, stride; /* where the next burst is */
    uint32_t left, unfinished;                                  /* bytes: to be cut into bursts; to arrive */
} command;

typedef struct {
    command *of;
    uint32_t l1, l2, bytes, done;
    int64_t ready_at;
    uint8_t data[BURST_BYTES];
} burst;

typedef struct {
    int entries[BURSTS * 2], first, count;
} queue;

static command commands[COMMANDS];
static struct {
    uint32_t words[WORDS], blocked_value;
    int word_count, counter, is_blocked;
    int waiting[CORE_QUEUE], count; /* commands, oldest first */
} channels[CLUSTER_CORES];
static int waiting[2];   /* commands in all channels' queues, by direction: 1 is inward */
static queue global[2];
static command *cut[2]; /* that bursts are taken from */
static burst bursts[2][BURSTS];
static int burst_is_used[2][BURSTS], burst_count[2];
static queue arriving, arrived, leaving; /* inward: from L2, then on their way into L1; outward: on their way into L2 */
static int gathering = -1;               /* outward: the burst that L1 is read for */
static uint32_t pending_bytes[COUNTERS], taken;
static int64_t port_ready[PORTS];
static int first_channel;

static void check(void);

static void push(queue *to, int entry)
{
    to->entries[(to->first + to->count++) % (BURSTS * 2)] = entry;
}

static int pop(queue *from)
{
    int entry = from->entries[from->first];
    from->first = (from->first + 1) % (BURSTS * 2);
    from->count--;
    return entry;
}

int mchan_is_idle(void)
{
    for (int i = 0; i < COUNTERS; i++)
        if (pending_bytes[i] != 0)
            return 0;
    return 1;
}

/* ---- Commands, from the words that a core writes to the global queue. */

static void take_command(core_state *core)
{
    uint32_t *words = channels[core->number].words, head = words[0], bytes = head & LONGEST;
    int at = 0, counter = channels[core->number].counter;
    while (at < COMMANDS && commands[at].is_used)
        at++;
    if (at == COMMANDS)
        fault("more DMA commands than queues hold");
    command next = {1, (int)(head >> INWARD & 1), (int)(head >> EVENT & 1), counter, core->number, words[1], words[2],
                    bytes, bytes, words[2], bytes, bytes, bytes};
    if (head >> TWO_DIMENSIONS & 1) {
        if (words[3] == 0 || bytes % words[3] != 0)
            fault("a DMA command of %u bytes in rows of %u", bytes, words[3]);
        next.line_bytes = next.line_left = words[3];
        next.stride = words[4];
    }
    if (bytes == 0 || !(head >> INCREMENT & 1) || head >> 21)
        fault("the DMA command 0x%08x", head);
    if (counter < 0 || !(taken >> counter & 1))
        fault("a DMA command without a counter");
    note(core->number, "starts a transfer of %u bytes, L2 0x%08x %s L1 0x%08x, counter %d", bytes, next.l2,
         next.inward ? "to" : "from", next.l1, counter);
    scratchpad(next.l1, bytes, "a DMA transfer");
    for (uint32_t row = 0; row < bytes / next.line_bytes; row++) {
        uint8_t *far = shared_memory(next.l2 + row * next.stride, next.line_bytes, "a DMA transfer");
        if (is_adverse && !next.inward)
            spoil(far, next.line_bytes);
    }
    if (is_adverse && next.inward)
        spoil(scratchpad(next.l1, bytes, "a DMA transfer"), bytes);
    trace('d', core->number, bytes, (uint32_t)next.inward);
    commands[at] = next;
    pending_bytes[counter] += bytes;
    waiting[next.inward]++;
    channels[core->number].waiting[channels[core->number].count++] = at;
    check();
}

static void write_word(core_state *core, uint32_t value)
{
    int number = core->number;
    channels[number].words[channels[number].word_count++] = value;
    if (channels[number].word_count == (channels[number].words[0] >> TWO_DIMENSIONS & 1 ? 5 : 3)) {
        channels[number].word_count = 0;
        take_command(core);
    }
}

/* One command of a channel moves on, and a core that waited for room in its queue writes its word. */
static int move_from(int channel, int inward)
{
    int k = 0;
    while (k < channels[channel].count && commands[channels[channel].waiting[k]].inward != inward)
        k++;
    if (k == channels[channel].count)
        return 0;
    push(&global[inward], channels[channel].waiting[k]);
    channels[channel].count--;
    waiting[inward]--;
    for (; k < channels[channel].count; k++)
        channels[channel].waiting[k] = channels[channel].waiting[k + 1];
    if (channels[channel].is_blocked) {
        core_state *core = &cores[channel], *interrupted = current;
        channels[channel].is_blocked = 0;
        current = core;
        write_word(core, channels[channel].blocked_value);
        current = interrupted;
        resume(core, 1, BY_queue);
    }
    return 1;
}

static void move_commands(int unused)
{
    (void)unused;
    int inward = waiting[1] > 0 && global[1].count < GLOBAL_QUEUE;
    if (inward || (waiting[0] > 0 && global[0].count < GLOBAL_QUEUE)) {
        for (int i = 0; i < CLUSTER_CORES; i++)
            if (move_from((first_channel + i) % CLUSTER_CORES, inward)) {
                first_channel = (first_channel + 1) % CLUSTER_CORES;
                break;
            }
    }
    check();
}

/* ---- Bursts. */

static int next_burst(int inward)
{
    command *from = cut[inward];
    int at = 0;
    while (burst_is_used[inward][at])
        at++;
    burst *next = &bursts[inward][at];
    next->of = from;
    next->l1 = from->l1;
    next->l2 = from->l2;
    next->bytes = from->line_left < BURST_BYTES ? from->line_left : BURST_BYTES;
    next->done = 0;
    burst_is_used[inward][at] = 1;
    burst_count[inward]++;
    from->l1 += next->bytes;
    from->l2 += next->bytes;
    from->left -= next->bytes;
    from->line_left -= next->bytes;
    if (from->line_left == 0) {
        from->line_left = from->line_bytes;
        from->l2 = from->line_start += from->stride;
    }
    if (from->left == 0)
        cut[inward] = 0;
    return at;
}

static void finish(int inward, int at, uint32_t bytes)
{
    command *of = bursts[inward][at].of;
    pending_bytes[of->counter] -= bytes;
    of->unfinished -= bytes;
    if (pending_bytes[of->counter] == 0) {
        note(-1, "counter %d of the DMA engine is done", of->counter);
        if (of->has_event) /* the chip may send it to every core */
            send_event(is_adverse ? (1u << CLUSTER_CORES) - 1 : 1u << of->core, DMA_EVENT);
    }
    if (of->unfinished == 0) {
        trace('D', of->core, (uint32_t)of->inward, 0);
        of->is_used = 0;
    }
}

static void release(int inward, int at)
{
    burst_is_used[inward][at] = 0;
    burst_count[inward]--;
}

static void arrive(int unused)
{
    (void)unused;
    while (arriving.count > 0 && bursts[1][arriving.entries[arriving.first]].ready_at <= now)
        push(&arrived, pop(&arriving));
    while (leaving.count > 0 && bursts[0][leaving.entries[leaving.first]].ready_at <= now) {
        int at = pop(&leaving);
        finish(0, at, bursts[0][at].bytes);
        release(0, at);
    }
    check();
}

static void take_cut(int inward)
{
    if (cut[inward] == 0 && global[inward].count > 0)
        cut[inward] = &commands[pop(&global[inward])];
}

/* Asks L2 for the next burst. Answers come in the order of the questions. */
static void ask(int unused)
{
    (void)unused;
    take_cut(1);
    if (cut[1] != 0 && burst_count[1] < BURSTS) {
        int at = next_burst(1);
        burst *next = &bursts[1][at];
        int64_t delay = shared_delay(next->l2, next->bytes, L2_LATENCY);
        memcpy(next->data, shared_memory(next->l2, next->bytes, "a DMA transfer"), next->bytes);
        next->ready_at = now + delay;
        push(&arriving, at);
        schedule(arrive, 0, delay);
    }
    check();
}

static void gather(int unused)
{
    (void)unused;
    take_cut(0);
    if (cut[0] != 0 && burst_count[0] < BURSTS && gathering < 0)
        gathering = next_burst(0);
    check();
}

static void send(int at)
{
    burst *next = &bursts[0][at];
    int64_t delay = shared_delay(next->l2, next->bytes, L2_LATENCY);
    memcpy(shared_memory(next->l2, next->bytes, "a DMA transfer"), next->data, next->bytes);
    next->ready_at = now + delay;
    push(&leaving, at);
    schedule(arrive, 0, delay);
}

static void use_port(int port)
{
    int inward = port < PORTS / 2;
    if (port_ready[port] > now || (inward ? arrived.count == 0 : gathering < 0))
        return;
    int at = inward ? arrived.entries[arrived.first] : gathering;
    burst *of = &bursts[inward][at];
    uint32_t address = of->l1 + of->done, bytes = 4 - (address & 3);
    if (bytes > of->bytes - of->done)
        bytes = of->bytes - of->done;
    port_ready[port] = now + bank_delay(address) + 1;
    uint8_t *near = scratchpad(address, bytes, "a DMA transfer");
    memcpy(inward ? near : of->data + of->done, inward ? of->data + of->done : near, bytes);
    of->done += bytes;
    if (inward)
        finish(1, at, bytes);
    if (of->done < of->bytes)
        return;
    if (inward) {
        pop(&arrived);
        release(1, at);
    } else {
        gathering = -1;
        send(at);
    }
}

static void use_ports(int unused)
{
    (void)unused;
    for (int port = 0; port < PORTS; port++)
        use_port(port);
    check();
}

static void check(void)
{
    if ((waiting[1] > 0 && global[1].count < GLOBAL_QUEUE) ||
        (waiting[0] > 0 && global[0].count < GLOBAL_QUEUE))
        if (!is_scheduled(move_commands))
            schedule(move_commands, 0, 1);
    if (cut[1] == 0 ? global[1].count > 0 : burst_count[1] < BURSTS)
        if (!is_scheduled(ask))
            schedule(ask, 0, 1);
    if (cut[0] == 0 ? global[0].count > 0 : burst_count[0] < BURSTS && gathering < 0)
        if (!is_scheduled(gather))
            schedule(gather, 0, 1);
    if ((arrived.count > 0 || gathering >= 0) && !is_scheduled(use_ports)) {
        int64_t first = port_ready[0];
        for (int port = 1; port < PORTS; port++)
            if (port_ready[port] < first)
                first = port_ready[port];
        schedule(use_ports, 0, first > now ? first - now : 1);
    }
}

/* ---- Registers. */

static uint32_t take_counter(core_state *core)
{
    for (int i = 0; i < COUNTERS; i++)
        if (!(taken >> i & 1)) {
            taken |= 1u << i;
            channels[core->number].counter = i;
            return (uint32_t)i;
        }
    fault("every counter of the DMA engine is taken: the core would wait for ever");
}

static uint32_t busy_counters(void)
{
    uint32_t busy = 0;
    for (int i = 0; i < COUNTERS; i++)
        busy |= (uint32_t)(pending_bytes[i] != 0) << i;
    return busy;
}

uint32_t mchan(core_state *core, uint32_t offset, int is_write, uint32_t value)
{
    if (offset == AT_COMMAND && !is_write)
        return take_counter(core);
    if (offset == AT_COMMAND) {
        if (channels[core->number].count < CORE_QUEUE) {
            write_word(core, value);
        } else {
            note(core->number, "waits for room in its DMA queue");
            channels[core->number].is_blocked = 1;
            channels[core->number].blocked_value = value;
            wait_for(core, IS_BLOCKED);
        }
        return 0;
    }
    if (offset != AT_STATUS)
        fault("register 0x%x of the DMA engine", offset);
    if (!is_write)
        return busy_counters() | taken << 16;
    if (value & ~taken || value & busy_counters())
        fault("counters 0x%x are freed, of which 0x%x are taken and 0x%x busy", value, taken, busy_counters());
    taken &= ~value;
    return 0;
}
