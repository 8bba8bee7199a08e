/* Runs kernels on RV32 under QEMU's user mode, once per core id, between the counting plugin's markers.
 *
 * Standard input is a sequence of cases: five words (kernel, operands, argument words, cores, data bytes), the operands'
 * offsets in the arena (-1 for a null pointer), the argument words, then the arena's content. */
#include <stdint.h>

enum { ARENA_BYTES = 1 << 22, MOST_OPERANDS = 16, MOST_WORDS = 128 };
enum { SYSCALL_READ = 63, SYSCALL_EXIT = 93 };
typedef void kernel_call(void *const *at, const void *args, int core_id, int core_count);
extern kernel_call *const kernel_table[];

/* Where the linker puts it is told to the plugin: accesses within are accesses to operands. */
unsigned char operand_arena[ARENA_BYTES] __attribute__((aligned(64)));

static int32_t system_call(int32_t number, int32_t a, int32_t b, int32_t c)
{
    register int32_t a0 __asm__("a0") = a, a1 __asm__("a1") = b, a2 __asm__("a2") = c, a7 __asm__("a7") = number;
    __asm__ volatile("ecall" : "+r"(a0) : "r"(a1), "r"(a2), "r"(a7) : "memory");
    return a0;
}

static int read_all(void *to, int32_t bytes)
{
    for (int32_t done = 0, got; done < bytes; done += got) {
        got = system_call(SYSCALL_READ, 0, (int32_t)(intptr_t)((char *)to + done), bytes - done);
        if (got <= 0)
            return 0;
    }
    return 1;
}

void _start(void)
{
    int32_t head[5], offsets[MOST_OPERANDS], words[MOST_WORDS];
    void *at[MOST_OPERANDS];
    while (read_all(head, sizeof head)) {
        kernel_call *call = kernel_table[head[0]];
        if (head[1] > MOST_OPERANDS || head[2] > MOST_WORDS || head[4] > ARENA_BYTES)
            system_call(SYSCALL_EXIT, 2, 0, 0);
        read_all(offsets, 4 * head[1]);
        read_all(words, 4 * head[2]);
        read_all(operand_arena, head[4]);
        for (int i = 0; i < head[1]; i++)
            at[i] = offsets[i] < 0 ? 0 : operand_arena + offsets[i];
        for (int core = 0; core < head[3]; core++) {
            /* The first run warms the instruction cache, as the tiles before do. */
            for (int run = 0; run < 2; run++) {
                if (run == 1)
                    __asm__ volatile("slti x0, x0, 1" ::: "memory");
                call(at, words, core, head[3]);
            }
            __asm__ volatile("slti x0, x0, 2" ::: "memory");
        }
    }
    system_call(SYSCALL_EXIT, 0, 0, 0);
}
