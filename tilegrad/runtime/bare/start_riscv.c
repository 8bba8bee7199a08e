/* Start of a RISC-V program in machine mode, on one hart or several, and how harts wait for each other.
 *
 * Every hart gets a stack. Hart 0 prepares memory while the others wait, then all enter C. */
#include "model.h"
#include "tg_bare.h"
#include "tg_rt.h"

#define CLINT_MSIP ((volatile uint32_t *)0x02000000u) /* one word a hart: its software interrupt, pending while 1 */

__asm__(".section .text.start, \"ax\"\n"
        ".globl tg_start\n"
        "tg_start:\n"
        ".option push\n"
        ".option norelax\n"
        "    la gp, __global_pointer$\n"
        ".option pop\n"
        "    la t0, tg_trap\n"
        "    csrw mtvec, t0\n"
        "    li t0, 0x2200\n" /* floating point and vectors on: initial */
        "    csrs mstatus, t0\n"
        "    csrw fcsr, zero\n"
        "    csrwi mie, 8\n" /* a software interrupt ends wfi; none is taken */
        "    csrr a0, mhartid\n"
        "    la sp, tg_stacks_stop\n"
        "    la t0, tg_stack_size\n"
        "    mul t0, t0, a0\n"
        "    sub sp, sp, t0\n"
        "    j tg_enter\n"
        "    .balign 4\n"
        "tg_trap:\n"
        "    csrr a0, mcause\n"
        "    csrr a1, mepc\n"
        "    csrr a2, mtval\n"
        "    j tg_trapped\n"
        ".text\n");

void tg_enter(int hart) __attribute__((noreturn));
void tg_trapped(uint32_t cause, uint32_t address, uint32_t value) __attribute__((noreturn));

void tg_enter(int hart)
{
    if (hart == 0)
        tg_prepare_memory();
#if TG_CORES > 1
    tg_barrier();
    while (hart != 0)
        tg_other_core();
#endif
    tg_exit(main(0, 0));
}

void tg_trapped(uint32_t cause, uint32_t address, uint32_t value)
{
    tg_say("trap: mcause ");
    tg_say_hex(cause);
    tg_say(" mepc ");
    tg_say_hex(address);
    tg_say(" mtval ");
    tg_say_hex(value);
    tg_say("\n");
    tg_exit(3);
}

/* The instructions around ebreak say that it is a request; they must not be compressed, nor lie in two pages. */
__asm__(".section .text.tg_semihost, \"ax\"\n"
        ".globl tg_semihost\n"
        "    .balign 16\n"
        "tg_semihost:\n"
        ".option push\n"
        ".option norvc\n"
        "    slli x0, x0, 0x1f\n"
        "    ebreak\n"
        "    srai x0, x0, 7\n"
        "    ret\n"
        ".option pop\n"
        ".text\n");

#if TG_CORES > 1

static void wake(int hart)
{
    __asm__ volatile("fence rw, rw" ::: "memory");
    CLINT_MSIP[hart] = 1;
}

static void wait_to_be_woken(int hart)
{
    uint32_t pending;
    do
        __asm__ volatile("wfi\n\tcsrr %0, mip" : "=r"(pending)::"memory");
    while ((pending & 8u) == 0);
    CLINT_MSIP[hart] = 0;
    while (CLINT_MSIP[hart] != 0) /* until the write has arrived */
        ;
    __asm__ volatile("fence rw, rw" ::: "memory");
}

/* A chain, up and down: a hart tells the one below it that all from it upwards have arrived, and is woken from below.
 * Neighbours signal each other strictly in turn, so one pending bit is enough, nothing spins, and every hart executes
 * the same instructions whoever comes first: counts repeat exactly. */
void tg_barrier(void)
{
    int hart = tg_hart();
    if (hart < TG_CORES - 1)
        wait_to_be_woken(hart);
    if (hart > 0) {
        wake(hart - 1);
        wait_to_be_woken(hart);
    }
    if (hart < TG_CORES - 1)
        wake(hart + 1);
}

#endif
