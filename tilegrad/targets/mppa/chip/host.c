/* The host's part: starts the accelerator's program and passes bytes between it and our own stdin and stdout.
 *
 *   host WINDOW OFFSET WEIGHTS COMMAND...
 *
 * WINDOW is a file that maps memory which the accelerator sees too: that of a simulator, or a PCIe resource of the card,
 * from OFFSET on. WEIGHTS is sent first, behind its size. COMMAND is what starts the accelerator; when it ends, so do we. */
#define _POSIX_C_SOURCE 200112L
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "tg_window.h"

static tg_window *window;
static pid_t accelerator;

static void die(const char *what)
{
    fprintf(stderr, "host: %s: %s\n", what, strerror(errno));
    if (accelerator > 0)
        kill(accelerator, SIGKILL);
    exit(2);
}

static void open_window(const char *path, off_t offset)
{
    int file = open(path, O_RDWR);
    if (file < 0)
        die(path);
    void *mapped = mmap(NULL, sizeof *window, PROT_READ | PROT_WRITE, MAP_SHARED, file, offset);
    if (mapped == MAP_FAILED)
        die("cannot map the window");
    close(file);
    window = mapped;
    window->ready = 0;
    window->to_accelerator.written = window->to_accelerator.read = 0;
    window->to_host.written = window->to_host.read = 0;
    TG_FENCE();
    window->ready = TG_WINDOW_READY;
}

static void start(char **command)
{
    int nothing = open("/dev/null", O_RDWR);
    accelerator = fork();
    if (accelerator < 0)
        die("cannot start the accelerator");
    if (accelerator > 0)
        return;
    dup2(nothing, 0);
    dup2(2, 1); /* what it prints is no reply */
    execvp(command[0], command);
    fprintf(stderr, "host: %s: %s\n", command[0], strerror(errno));
    _exit(127);
}

static void rest(void)
{
    struct timespec moment = {0, 50000};
    nanosleep(&moment, NULL);
}

static int write_replies(void)
{
    static unsigned char piece[65536];
    uint32_t count = tg_ring_get(&window->to_host, piece, sizeof piece);
    for (uint32_t done = 0; done < count;) {
        ssize_t written = write(1, piece + done, count - done);
        if (written < 0)
            die("stdout");
        done += (uint32_t)written;
    }
    return count > 0;
}

/* Ends with the accelerator's status, once it has ended. */
static void check_accelerator(void)
{
    int status;
    if (waitpid(accelerator, &status, WNOHANG) != accelerator)
        return;
    while (write_replies()) {
    }
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static void pass_on(const unsigned char *data, uint32_t bytes)
{
    while (bytes > 0) {
        uint32_t count = tg_ring_put(&window->to_accelerator, data, bytes);
        data += count;
        bytes -= count;
        if (count == 0) {
            check_accelerator();
            rest();
        }
    }
}

static void send_weights(const char *path)
{
    static unsigned char piece[65536];
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0)
        die(path);
    uint32_t bytes = (uint32_t)ftell(file);
    rewind(file);
    pass_on((const unsigned char *)&bytes, sizeof bytes);
    for (size_t count; (count = fread(piece, 1, sizeof piece, file)) > 0;)
        pass_on(piece, (uint32_t)count);
    fclose(file);
}

int main(int argc, char **argv)
{
    static unsigned char piece[65536];
    if (argc < 5) {
        fprintf(stderr, "host WINDOW OFFSET WEIGHTS COMMAND...\n");
        return 2;
    }
    open_window(argv[1], (off_t)strtoll(argv[2], NULL, 0));
    start(argv + 4);
    send_weights(argv[3]);
    fcntl(0, F_SETFL, fcntl(0, F_GETFL) | O_NONBLOCK);
    for (int is_open = 1;;) {
        ssize_t count = is_open ? read(0, piece, sizeof piece) : -1;
        if (count == 0) { /* whoever asked has gone */
            kill(accelerator, SIGTERM);
            is_open = 0;
        }
        if (count > 0)
            pass_on(piece, (uint32_t)count);
        if (!write_replies() && count <= 0) {
            check_accelerator();
            rest();
        }
    }
}
