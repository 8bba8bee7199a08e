/* The harness: runs the model as a process that is driven over stdin and stdout.
 *
 * A request is two little-endian 32-bit words, command and payload length, then the payload. A reply is two words,
 * status and payload length, then the payload. Everything else a program prints goes to stderr.
 *
 *   1 infer    payload: the inputs            reply: the outputs
 *   2 step     payload: the inputs, targets   reply: the loss
 *   3 update
 *   4 get      payload: tensor indices        reply: their bytes, one tensor after another
 *   5 put      payload: tensor index, bytes
 *   6 measure  payload: entry (1..3), calls   reply: nanoseconds, cycles and instructions of all calls, 64 bits each
 *   7 quit
 *   8 place    payload: entry, where in its inputs, bytes
 *   9 fetch    payload: entry, where, size    reply: so much of the outputs it made last
 *  10 blocks   payload: their number (tg_set_blocks, where a program has it)
 *
 * Commands 1 and 2 without a payload run on the inputs given last, as 6 does. 256 added to 1..3 leaves the outputs
 * here: the reply has none. 512 added to any command lets its reply wait for the next one. 1024 added to 4 and 5 takes
 * the bytes of tensors through the window, a file that both sides have mapped (TG_WINDOW has its descriptor and size):
 * the payload is where in it and tensor indices alone, and the bytes are there, one tensor after another.
 */
#define _POSIX_C_SOURCE 200112L /* clock_gettime, mmap */
#include <stdint.h>
#include "model.h"
#include "ports.h"

enum { INFER = 1, STEP, UPDATE, GET, PUT, MEASURE, QUIT, PLACE, FETCH, BLOCKS };
enum { KEEP_OUTPUTS = 256, REPLY_LATER = 512, THROUGH_WINDOW = 1024 };
enum { OK = 0 };

static unsigned char inputs[TG_PORT_INPUT_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
static unsigned char outputs[TG_PORT_OUTPUT_BYTES] __attribute__((aligned(TG_ALIGNMENT)));

static int run(tg_model *m, uint32_t command);
static const char *refusal(tg_status status);

#ifdef TG_BARE
#include "tg_port.h" /* the same functions for a machine without files */
#else
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#if defined(__unix__) || defined(__APPLE__)
#include <string.h>
#include <sys/mman.h>
#define TG_HAS_WINDOW
#endif

static void die(const char *what)
{
    fprintf(stderr, "harness: %s\n", what);
    exit(2);
}

/* Ends quietly when the other side has gone. */
static void receive(void *data, size_t bytes)
{
    if (fread(data, 1, bytes, stdin) != bytes)
        exit(feof(stdin) ? 0 : 2);
}

static void send(const void *data, size_t bytes)
{
    if (fwrite(data, 1, bytes, stdout) != bytes)
        die("cannot write the reply");
}

static void flush(void)
{
    if (fflush(stdout) != 0)
        die("cannot write the reply");
}

/* The model with the initial state that a file holds. */
static tg_model *instance(const char *path)
{
    static unsigned char image[TG_WEIGHTS_BYTES + 1]; /* one more: a file that is too long is refused, too */
    tg_model *m = NULL;
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        die("cannot open the file of the initial state");
    size_t bytes = fread(image, 1, sizeof image, file);
    fclose(file);
    tg_status status = tg_static_instance(&m, image, bytes);
    if (status != TG_OK)
        die(refusal(status));
    return m;
}

static int run_on_all_cores(tg_model *m, uint32_t command) { return run(m, command); }

#ifdef TG_HAS_WINDOW
/* The window from `at` on. It is mapped when it is first needed. */
static unsigned char *window(size_t at, size_t bytes)
{
    static unsigned char *mapped = NULL;
    static size_t size = 0;
    const char *told = getenv("TG_WINDOW");
    int file;
    if (mapped == NULL && told != NULL && sscanf(told, "%d %zu", &file, &size) == 2)
        mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped == NULL || mapped == MAP_FAILED || at > size || bytes > size - at)
        die("there is no window, or none that is large enough");
    return mapped + at;
}
#endif

/* Nanoseconds, cycles and instructions so far; 0 for what cannot be told. */
static void count(uint64_t now[3])
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    now[0] = (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
    now[1] = now[2] = 0;
}
#endif

/* Why the initial state was not taken. */
static const char *refusal(tg_status status)
{
    switch (status) {
    case TG_OTHER_MODEL:
        return "the initial state is of another model, or of another plan for this one";
    case TG_OTHER_VERSION:
        return "the initial state is in another version of the format";
    case TG_BAD_SIZE:
        return "the initial state is too short or too long";
    case TG_BAD_IMAGE:
        return "the initial state is no image, or its bytes have changed";
    default:
        return "the memory of the instance cannot be used";
    }
}

static void begin_reply(uint32_t status, uint32_t bytes)
{
    uint32_t head[2] = {status, bytes};
    send(head, sizeof head);
}

static void reply(uint32_t status, const void *data, uint32_t bytes)
{
    begin_reply(status, bytes);
    send(data, bytes);
}

static int run(tg_model *m, uint32_t command)
{
    switch (command) {
    case INFER:
        return tg_port_infer(m, inputs, outputs);
    case STEP:
        return tg_port_step(m, inputs, outputs);
    default:
        return tg_port_update(m, inputs, outputs);
    }
}

static void measure(tg_model *m, uint32_t command, uint32_t calls)
{
    uint64_t before[3], after[3];
    int status = OK;
    count(before);
    for (uint32_t i = 0; i < calls && status == OK; i++)
        status = run_on_all_cores(m, command);
    count(after);
    for (int i = 0; i < 3; i++)
        after[i] -= before[i];
    reply((uint32_t)status, after, sizeof after);
}

#ifdef TG_L3_BYTES
static unsigned char tensor[TG_LARGEST_TENSOR + 1];

static void give_tensor(tg_model *m, int index)
{
    if (tg_read_tensor(m, index, tensor, tg_tensors[index].bytes) != TG_OK)
        die("a tensor was not given");
    send(tensor, tg_tensors[index].bytes);
}

static void take_tensor(tg_model *m, int index)
{
    receive(tensor, tg_tensors[index].bytes);
    if (tg_write_tensor(m, index, tensor, tg_tensors[index].bytes) != TG_OK)
        die("a tensor was not taken");
}
#else /* one memory: straight from where the tensor lives, and to there */
static void give_tensor(tg_model *m, int index)
{
    const unsigned char *from = m->state;
#ifdef TG_FLASH_BYTES
    if (tg_tensors[index].in_flash)
        from = (const unsigned char *)tg_flash;
#endif
    send(from + tg_tensors[index].offset, tg_tensors[index].bytes);
}

static void take_tensor(tg_model *m, int index)
{
#ifdef TG_FLASH_BYTES
    if (tg_tensors[index].in_flash)
        die("a tensor in flash cannot be written");
#endif
    receive(m->state + tg_tensors[index].offset, tg_tensors[index].bytes);
}
#endif

/* Tensors whose indices are the payload: into the reply, or through the window. */
static void move_tensors(tg_model *m, uint32_t command, uint32_t payload_bytes)
{
    static uint32_t indices[TG_TENSOR_COUNT + 1];
    const uint32_t head = command & THROUGH_WINDOW && payload_bytes >= 4 ? 4 : 0;
    uint32_t at = 0, bytes = 0, count = (payload_bytes - head) / 4;
    receive(&at, head);
    payload_bytes -= head;
    if (payload_bytes % 4 != 0 || count > TG_TENSOR_COUNT)
        die("malformed request");
    receive(indices, payload_bytes);
    for (uint32_t i = 0; i < count; i++) {
        if (indices[i] >= TG_TENSOR_COUNT)
            die("no such tensor");
        bytes += tg_tensors[indices[i]].bytes;
    }
#ifdef TG_HAS_WINDOW
    if (command & THROUGH_WINDOW) {
        unsigned char *to = window(at, bytes);
        tg_status status = TG_OK;
        for (uint32_t i = 0; i < count && status == TG_OK; to += tg_tensors[indices[i++]].bytes)
            status = (command & 255) == GET ? tg_read_tensor(m, (int)indices[i], to, tg_tensors[indices[i]].bytes)
                                            : tg_write_tensor(m, (int)indices[i], to, tg_tensors[indices[i]].bytes);
        if (status != TG_OK)
            die("a tensor was not taken or not given");
        bytes = count = 0;
    }
#else
    (void)at;
#endif
    begin_reply(OK, bytes);
    for (uint32_t i = 0; i < count; i++)
        give_tensor(m, (int)indices[i]);
}

static void serve(tg_model *m)
{
    static const uint32_t input_bytes[] = {0, TG_PORT_INFER_IN, TG_PORT_STEP_IN, 0};
    static const uint32_t output_bytes[] = {0, TG_PORT_INFER_OUT, TG_PORT_STEP_OUT, 0};
    for (;;) {
        uint32_t head[2], word[3];
        receive(head, sizeof head);
        uint32_t command = head[0] & 255, bytes = head[1];
        if (command >= INFER && command <= UPDATE && (bytes == 0 || bytes == input_bytes[command])) {
            receive(inputs, bytes);
            int status = run_on_all_cores(m, command);
            reply((uint32_t)status, outputs, head[0] & KEEP_OUTPUTS ? 0 : output_bytes[command]);
        } else if (command == GET || (head[0] & THROUGH_WINDOW)) {
            move_tensors(m, head[0], bytes);
        } else if (command == PUT && bytes >= 4) {
            receive(word, 4);
            if (word[0] >= TG_TENSOR_COUNT || bytes - 4 != tg_tensors[word[0]].bytes)
                die("no such tensor, or not its size");
            take_tensor(m, (int)word[0]);
            reply(OK, outputs, 0);
        } else if (command == MEASURE && bytes == 8) {
            receive(word, 8);
            measure(m, word[0], word[1]);
        } else if (command == PLACE && bytes >= 8) {
            receive(word, 8);
            if (word[0] > UPDATE || word[1] > input_bytes[word[0]] || bytes - 8 > input_bytes[word[0]] - word[1])
                die("no such entry, or not the size of its inputs");
            receive(inputs + word[1], bytes - 8);
            reply(OK, outputs, 0);
        } else if (command == FETCH && bytes == 12) {
            receive(word, 12);
            if (word[0] > UPDATE || word[1] > output_bytes[word[0]] || word[2] > output_bytes[word[0]] - word[1])
                die("no such entry, or not the size of its outputs");
            reply(OK, outputs + word[1], word[2]);
#ifdef TG_MOST_BLOCKS
        } else if (command == BLOCKS && bytes == 4) {
            receive(word, 4);
            reply((uint32_t)tg_set_blocks(m, (int)word[0]), outputs, 0);
#endif
        } else if (command == QUIT) {
            return;
        } else {
            die("malformed request");
        }
        if (!(head[0] & REPLY_LATER))
            flush();
    }
}

int main(int argc, char **argv)
{
    serve(instance(argc > 1 ? argv[1] : "weights.bin"));
    return 0;
}
