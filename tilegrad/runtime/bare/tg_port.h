/* What the harness (main.c) needs of a machine without files or an operating system. Included by it.
 *
 * Requests and replies go through the standard streams of whoever serves the semihosting requests. The initial state is
 * read from its file straight into place, so it needs neither flash nor a second copy in RAM. The linker script says
 * which banks hold the two large memories. */
#include "tg_bare.h"
#include "tg_rt.h"

static unsigned char state[TG_STATE_BYTES] __attribute__((aligned(TG_ALIGNMENT), section(".tg_state")));
static unsigned char arena[TG_ARENA_BYTES] __attribute__((aligned(TG_ALIGNMENT), section(".tg_arena")));
static tg_model model;
static int requests, replies;

static void die(const char *what)
{
    tg_say("harness: ");
    tg_say(what);
    tg_say("\n");
    tg_exit(2);
}

/* Ends quietly when the other side has gone. */
static void receive(void *data, uint32_t bytes)
{
    if (!tg_read(requests, data, bytes))
        tg_exit(0);
}

static void send(const void *data, uint32_t bytes)
{
    if (!tg_write(replies, data, bytes))
        die("cannot write the reply");
}

static void flush(void) {}

static tg_model *instance(const char *path)
{
    unsigned char header[TG_HEADER_BYTES];
    int file = tg_open(path, TG_FOR_READING);
    requests = tg_open("/dev/stdin", TG_FOR_READING);
    replies = tg_open("/dev/stdout", TG_FOR_WRITING);
    if (file < 0 || requests < 0 || replies < 0)
        die("cannot open the file of the initial state, or there is nobody to talk to");
    int32_t bytes = tg_length(file);
    if (bytes >= TG_HEADER_BYTES && !tg_read(file, header, TG_HEADER_BYTES))
        die("cannot read the initial state");
    if (bytes == TG_WEIGHTS_BYTES && !tg_read(file, state, TG_IMAGE_BYTES))
        die("cannot read the initial state");
    tg_status status = tg_init_in_place(&model, state, arena, header, bytes < 0 ? 0 : (size_t)bytes);
    if (status != TG_OK)
        die(refusal(status));
    return &model;
}

/* Nothing here tells the time. Instructions are counted from outside, between these two. */
static void count(uint64_t now[3]) { now[0] = now[1] = now[2] = 0; }

__attribute__((noinline)) void tg_count_begin(void) { __asm__ volatile("" ::: "memory"); }
__attribute__((noinline)) void tg_count_end(void) { __asm__ volatile("" ::: "memory"); }

static int run_counted(tg_model *m, uint32_t command)
{
    tg_count_begin();
    int status = run(m, command);
    tg_count_end();
    return status;
}

#if defined(TG_CORES) && TG_CORES > 1
static uint32_t shared_command;

static int run_on_all_cores(tg_model *m, uint32_t command)
{
    shared_command = command;
    tg_barrier();
    int status = run_counted(m, command);
    tg_barrier(); /* the others still copied the outputs */
    return status;
}

void tg_other_core(void)
{
    tg_barrier();
    run_counted(&model, shared_command);
    tg_barrier();
}
#else
static int run_on_all_cores(tg_model *m, uint32_t command) { return run_counted(m, command); }
#endif
