/* The harness: runs the model as a process that is driven over stdin and stdout.
 *
 * A request is two little-endian 32-bit words, command and payload length, then the payload. A reply is two words,
 * status and payload length, then the payload. Everything else a program prints goes to stderr.
 *
 *   1 infer    payload: the inputs            reply: the outputs
 *   2 step     payload: the inputs, targets   reply: the loss
 *   3 update
 *   4 get      payload: tensor index          reply: its bytes
 *   5 put      payload: tensor index, bytes
 *   6 measure  payload: entry (1..3), calls   reply: CPU seconds per call as a double, on the inputs last sent
 *   7 quit
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "model.h"
#include "ports.h"

enum { INFER = 1, STEP, UPDATE, GET, PUT, MEASURE, QUIT };
enum { OK = 0, BAD_REQUEST = 100 };

#ifndef TG_L3_IMAGE_BYTES
#define TG_L3_IMAGE_BYTES 0
#endif
enum { IMAGE_BYTES = TG_IMAGE_BYTES + TG_L3_IMAGE_BYTES };

static unsigned char image[IMAGE_BYTES + 1];
static unsigned char tensor[TG_LARGEST_TENSOR + 1];
static unsigned char inputs[TG_PORT_INPUT_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
static unsigned char outputs[TG_PORT_OUTPUT_BYTES] __attribute__((aligned(TG_ALIGNMENT)));

static void die(const char *what)
{
    fprintf(stderr, "harness: %s\n", what);
    exit(2);
}

static void receive(void *data, size_t bytes)
{
    if (fread(data, 1, bytes, stdin) != bytes)
        exit(feof(stdin) ? 0 : 2);
}

static void reply(uint32_t status, const void *data, uint32_t bytes)
{
    uint32_t head[2] = {status, bytes};
    if (fwrite(head, 1, sizeof head, stdout) != sizeof head || fwrite(data, 1, bytes, stdout) != bytes)
        die("cannot write the reply");
    fflush(stdout);
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

static double seconds_per_call(tg_model *m, uint32_t command, uint32_t calls)
{
    clock_t start = clock();
    for (uint32_t i = 0; i < calls; i++)
        run(m, command);
    return (double)(clock() - start) / CLOCKS_PER_SEC / (calls ? calls : 1);
}

static void load_weights(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fread(image, 1, IMAGE_BYTES, file) != IMAGE_BYTES)
        die("cannot read weights.bin");
    fclose(file);
}

static void serve(tg_model *m)
{
    static const uint32_t input_bytes[] = {0, TG_PORT_INFER_IN, TG_PORT_STEP_IN, 0};
    static const uint32_t output_bytes[] = {0, TG_PORT_INFER_OUT, TG_PORT_STEP_OUT, 0};
    for (;;) {
        uint32_t head[2], word[2];
        receive(head, sizeof head);
        uint32_t command = head[0], bytes = head[1];
        if (command >= INFER && command <= UPDATE && bytes == input_bytes[command]) {
            receive(inputs, bytes);
            int status = run(m, command);
            reply((uint32_t)status, outputs, output_bytes[command]);
        } else if (command == GET && bytes == 4) {
            receive(word, 4);
            if (word[0] >= TG_TENSOR_COUNT)
                die("no such tensor");
            tg_read_tensor(m, (int)word[0], tensor);
            reply(OK, tensor, tg_tensors[word[0]].bytes);
        } else if (command == PUT && bytes >= 4) {
            receive(word, 4);
            if (word[0] >= TG_TENSOR_COUNT || bytes - 4 != tg_tensors[word[0]].bytes)
                die("no such tensor, or not its size");
            receive(tensor, bytes - 4);
            tg_write_tensor(m, (int)word[0], tensor);
            reply(OK, outputs, 0);
        } else if (command == MEASURE && bytes == 8) {
            receive(word, 8);
            double seconds = seconds_per_call(m, word[0], word[1]);
            reply(OK, &seconds, sizeof seconds);
        } else if (command == QUIT) {
            return;
        } else {
            die("malformed request");
        }
    }
}

int main(int argc, char **argv)
{
    load_weights(argc > 1 ? argv[1] : "weights.bin");
    serve(tg_static_instance(image));
    return 0;
}
