/* What the harness (main.c) needs on the accelerator. Included by it. Bytes come and go through the window; the initial
 * state comes first, its size before it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "tg_window.h"

#ifdef __kvx__
/* The window's address in DDR is agreed upon when both programs are built. */
static tg_window *open_window(void) { return (tg_window *)(uintptr_t)TG_WINDOW_ADDRESS; }
#else
/* On a machine without the card the window is a file: the tests run both programs here. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
static tg_window *open_window(void)
{
    const char *path = getenv("TG_WINDOW");
    int file = path == NULL ? -1 : open(path, O_RDWR);
    void *window = mmap(NULL, sizeof(tg_window), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || window == MAP_FAILED)
        exit(2);
    close(file);
    return window;
}
#endif

static tg_window *window;

static void die(const char *what)
{
    fprintf(stderr, "accelerator: %s\n", what);
    exit(2);
}

static void receive(void *data, uint32_t bytes)
{
    unsigned char *next = data;
    while (bytes > 0) {
        uint32_t count = tg_ring_get(&window->to_accelerator, next, bytes);
        next += count;
        bytes -= count;
    }
}

static void send(const void *data, uint32_t bytes)
{
    const unsigned char *next = data;
    while (bytes > 0) {
        uint32_t count = tg_ring_put(&window->to_host, next, bytes);
        next += count;
        bytes -= count;
    }
}

static void flush(void) {}

static tg_model *instance(const char *path)
{
    static unsigned char image[TG_WEIGHTS_BYTES];
    tg_model *m = NULL;
    uint32_t bytes;
    (void)path;
    window = open_window();
    do
        TG_INVALIDATE();
    while (window->ready != TG_WINDOW_READY);
    receive(&bytes, sizeof bytes);
    receive(image, bytes < sizeof image ? bytes : sizeof image); /* of one that is too long the rest is not looked at */
    tg_status status = tg_static_instance(&m, image, bytes);
    if (status != TG_OK)
        die(refusal(status));
    return m;
}

static int run_on_all_cores(tg_model *m, uint32_t command) { return run(m, command); }

/* Nanoseconds of a clock that only goes on; cycles and instructions nobody tells. */
static void count(uint64_t now[3])
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    now[0] = (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
    now[1] = now[2] = 0;
}
