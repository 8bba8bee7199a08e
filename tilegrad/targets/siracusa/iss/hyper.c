/* HyperRAM (L3) through the uDMA: two channels, each with a queue, one transfer at a time, in turns. What comes from L3
 * takes a cycle a byte. What goes there is read from L2 word by word, the next when the one before has come: each takes
 * five cycles of the slower clock, or as long as its bank is busy with other requests. */
#include <string.h>
#include "iss.h"

enum { CHANNELS = 2, CHANNEL_WORDS = 16, COMMON_WORDS = 10, DEPTH = 8, IS_READ = 5, IS_WRITE = 1, L3_BYTES = 8 << 20 };
enum { FIRST = 0x280, CHANNEL_BYTES = 0x80, PERIPHERAL = 4, MOST_BYTES = 1 << 20, IS_TWO_DIMENSIONAL = 10 };
enum { AT_FREE = 9, AT_BUSY = 9, AT_COMMAND = 6, AT_L3 = 7, ENABLE = 0x10 };
enum { READ_START = 41, WRITE_START = 40, L2_LATENCY = 4 }; /* the last of the slower clock */

typedef struct {
    int inward;
    uint32_t l2, l3, bytes;
} transfer;

static uint8_t l3[L3_BYTES];
static struct {
    uint32_t words[CHANNEL_WORDS];
    int latest_half, count; /* of transfers, the one under way with them */
    transfer queue[DEPTH];
} channels[CHANNELS];
static uint32_t enabled, common[COMMON_WORDS];
static int under_way = -1, latest = 0, is_painted;
static uint32_t words_sent; /* of the transfer under way, if it goes to L3 */
static int64_t word_cycle;

int hyper_is_idle(void) { return under_way < 0; }

static void start_next(void);

static void finish(int number)
{
    transfer *done = &channels[number].queue[0];
    uint8_t *near = shared_memory(done->l2, done->bytes, "a HyperRAM transfer");
    memcpy(done->inward ? near : l3 + done->l3, done->inward ? l3 + done->l3 : near, done->bytes);
    note(-1, "a transfer of HyperRAM channel %d is done", number);
    trace('H', -1, done->bytes, (uint32_t)done->inward);
    channels[number].count--;
    memmove(done, done + 1, sizeof *done * (size_t)channels[number].count);
    under_way = -1;
    start_next();
}

static void send_word(int number)
{
    const transfer *from = &channels[number].queue[0];
    if (words_sent == from->bytes / 4) {
        finish(number);
        return;
    }
    word_cycle += shared_delay(from->l2 + 4 * words_sent, 4, L2_LATENCY) + 1;
    words_sent++;
    schedule(send_word, number, cluster_cycle(word_cycle) - now);
}

static void start_next(void)
{
    for (int i = 1; i <= CHANNELS && under_way < 0; i++) {
        int number = (latest + i) % CHANNELS;
        if (channels[number].count > 0)
            under_way = latest = number;
    }
    if (under_way < 0)
        return;
    const transfer *next = &channels[under_way].queue[0];
    if (next->inward) {
        schedule(finish, under_way, READ_START + (int64_t)next->bytes);
        return;
    }
    words_sent = 0;
    word_cycle = fabric_cycle(now + WRITE_START);
    schedule(send_word, under_way, cluster_cycle(word_cycle) - now);
}

/* Writing a half's last register starts a transfer of that half. */
static void enqueue(int number, int half)
{
    static const uint32_t set_up[COMMON_WORDS] = {3, 6, 1, 0xffffffff, 0, 0, 0, 0, 0, 0};
    const uint32_t *words = channels[number].words;
    transfer next = {half == 0, words[half], words[AT_L3], words[half + 1]};
    if (words[half + 2] != ENABLE || channels[number].latest_half != half ||
        words[AT_COMMAND] != (next.inward ? IS_READ : IS_WRITE) || memcmp(common, set_up, sizeof set_up) != 0)
        fault("HyperRAM channel %d is started before it is set up", number);
    for (int i = IS_TWO_DIMENSIONAL; i < CHANNEL_WORDS; i++)
        if (words[i] != 0)
            fault("HyperRAM channel %d has two dimensions", number);
    if (next.l3 > L3_BYTES || next.bytes > L3_BYTES - next.l3 || next.bytes == 0 || next.bytes % 4 != 0 ||
        next.bytes >= MOST_BYTES)
        fault("%u bytes at %u of L3", next.bytes, next.l3);
    if (channels[number].count == DEPTH)
        fault("HyperRAM channel %d has %d transfers already", number, DEPTH);
    uint8_t *near = shared_memory(next.l2, next.bytes, "a HyperRAM transfer");
    if (is_adverse)
        spoil(next.inward ? near : l3 + next.l3, next.bytes);
    note(-1, "HyperRAM channel %d: %u bytes, L3 %u %s L2 0x%08x", number, next.bytes, next.l3,
         next.inward ? "to" : "from", next.l2);
    trace('h', current->number, next.bytes, (uint32_t)next.inward);
    channels[number].queue[channels[number].count++] = next;
    if (under_way < 0)
        start_next();
}

static uint32_t common_register(uint32_t word, int is_write, uint32_t value)
{
    if (word >= COMMON_WORDS)
        fault("HyperRAM register %u", word);
    if (is_write)
        common[word] = value;
    if (is_write || word != AT_FREE)
        return common[word];
    uint32_t free = 0;
    while (free < CHANNELS && channels[free].count > 0)
        free++;
    return free;
}

static void paint(void)
{
    if (!is_painted) {
        is_painted = 1;
        spoil(l3, sizeof l3);
    }
}

/* A loader reaches L3 at this address; cores do not. */
uint8_t *hyper_memory(uint32_t address, uint32_t bytes)
{
    const uint32_t base = 0x80000000u;
    if (address < base || address - base > L3_BYTES || bytes > L3_BYTES - (address - base))
        return 0;
    paint();
    return l3 + (address - base);
}

uint32_t hyper(uint32_t offset, int is_write, uint32_t value)
{
    paint();
    if (offset == 0) {
        if (is_write)
            enabled = value;
        return enabled;
    }
    if (offset < FIRST || !(enabled >> PERIPHERAL & 1))
        fault("the uDMA's register 0x%x", offset);
    uint32_t channel = (offset - FIRST) / CHANNEL_BYTES, word = (offset - FIRST) % CHANNEL_BYTES / 4;
    if (channel == CHANNELS)
        return common_register(word, is_write, value);
    if (channel > CHANNELS || word >= CHANNEL_WORDS)
        fault("HyperRAM channel %u, register %u", channel, word);
    if (!is_write)
        return word == AT_BUSY ? channels[channel].count > 0 : channels[channel].words[word];
    channels[channel].words[word] = value;
    if (word == 0 || word == 3)
        channels[channel].latest_half = (int)word;
    if (word == 2 || word == 5)
        enqueue((int)channel, (int)word - 2);
    return 0;
}
