/* The fabric controller: starts the cluster, prints what it reports, compares losses and weights with what the simulator
 * gave, and exits with the verdict: 0 the same bits (or nothing to compare with), 1 other bits, 2 the run failed.
 * It has no floating point. */
#include "image.h"
#include "mailbox.h"
#include "siracusa.h"
#include "stacks.h"

enum { FABRIC = 31 }; /* what mhartid calls the fabric controller's cluster */
extern void _start(void);
extern uint32_t _fabric_stack[], _fabric_stack_bytes[];
int fabric_main(void);

static void print(const char *text)
{
    while (*text)
        console_put(*text++);
}

static void print_number(uint32_t value)
{
    char digits[10];
    int count = 0;
    do
        digits[count++] = (char)('0' + value % 10);
    while (value /= 10);
    while (count)
        console_put(digits[--count]);
}

static void print_field(const char *name, uint32_t value)
{
    print(name);
    print_number(value);
}

static void print_bits(const char *name, uint32_t value)
{
    print(name);
    print("0x");
    for (int shift = 28; shift >= 0; shift -= 4)
        console_put("0123456789abcdef"[value >> shift & 15]);
}

/* Prints bits and whether they are the expected ones; counts those that are not. */
static void print_checked(const char *name, uint32_t value, uint32_t expected, uint32_t *differing)
{
    print_bits(name, value);
    if (image_is_checked && value != expected) {
        print_bits(" expected ", expected);
        ++*differing;
    }
}

static void print_stack(uint32_t core, stack_use stack)
{
    print_field("stack ", core);
    print_field(" used ", stack.used);
    print_field(" of ", stack.bytes);
    print(stack.is_intact ? " guard intact" : " guard overwritten");
}

int fabric_main(void)
{
    uint32_t differing = 0, failures = 0, is_over = 0;
    stack_use own;
    print("tilegrad image 1\n");
    print("model " IMAGE_MODEL "\n");
    hyper_set_up();
    cluster_start(_start, ((1u << TG_CORES) - 1) | (TG_CONTROLLER ? 1u << CONTROLLER : 0));
    while (!is_over) {
        if (mailbox.read == mailbox.written) {
            for (volatile int i = 0; i < 50; i++) { /* leave L2 to the cluster */
            }
            continue;
        }
        const volatile record *next = &mailbox.records[mailbox.read % MAILBOX_RECORDS];
        switch (next->kind) {
        case RECORD_STEP:
            print_field("step ", next->number);
            print_checked(" loss ", next->value, image_losses[next->number], &differing);
            print_field(" cycles ", next->cycles);
            break;
        case RECORD_UPDATE:
            print_field("update ", next->number);
            print_field(" cycles ", next->cycles);
            break;
        case RECORD_INFER:
            print_field("infer 0 cycles ", next->cycles);
            break;
        case RECORD_WEIGHTS:
            print_checked("weights ", next->value, image_weights, &differing);
            break;
        case RECORD_STACK:
        case RECORD_OVERFLOW:
            print_stack(next->number, (stack_use){next->value, next->cycles, next->kind == RECORD_STACK});
            failures += next->kind == RECORD_OVERFLOW;
            break;
        case RECORD_FAILURE:
            print_field("failure ", next->number);
            print_field(" status ", next->value);
            failures++;
            break;
        default:
            own = use_of_stack(_fabric_stack, (uint32_t)(uintptr_t)_fabric_stack_bytes);
            failures += !own.is_intact;
            print_stack(FABRIC, own); /* what is called from here on was called before */
            print("\nverdict ");
            print(failures ? "failed" : !image_is_checked ? "unchecked" : differing ? "differs" : "same");
            is_over = 1;
            break;
        }
        console_put('\n');
        mailbox.read++;
    }
    return failures ? 2 : differing != 0;
}
