/* Runs one entry on a painted stack and prints how many bytes of it were written. Takes the place of main.c. */
#define _XOPEN_SOURCE 700
#include <stdint.h>
#include <stdio.h>
#include <ucontext.h>
#include "model.h"
#include "ports.h"

enum { STACK_BYTES = 1 << 20, PAINT = 0xA5 };

static unsigned char stack[STACK_BYTES] __attribute__((aligned(64)));
static unsigned char in[TG_PORT_INPUT_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
static unsigned char out[TG_PORT_OUTPUT_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
static unsigned char image[TG_WEIGHTS_BYTES] __attribute__((aligned(TG_ALIGNMENT)));
static ucontext_t here, there;
static tg_model *m;
static volatile int which;

static void enter(void)
{
    if (which == 0)
        tg_port_infer(m, in, out);
    else if (which == 1)
        tg_port_step(m, in, out);
    else
        tg_port_update(m, in, out);
}

int main(int count, char **arguments)
{
    FILE *file = count > 1 ? fopen(arguments[1], "rb") : NULL;
    if (file == NULL || fread(image, 1, sizeof image, file) != sizeof image)
        return 1;
    if (tg_static_instance(&m, image, sizeof image) != TG_OK)
        return 1;
    for (which = 0; which < 3; which++) {
        for (int i = 0; i < STACK_BYTES; i++)
            stack[i] = PAINT;
        getcontext(&there);
        there.uc_stack.ss_sp = stack;
        there.uc_stack.ss_size = STACK_BYTES;
        there.uc_link = &here;
        makecontext(&there, enter, 0);
        swapcontext(&here, &there);
        int clean = 0;
        while (clean < STACK_BYTES && stack[clean] == PAINT)
            clean++;
        printf("%d\n", STACK_BYTES - clean);
    }
    return 0;
}
