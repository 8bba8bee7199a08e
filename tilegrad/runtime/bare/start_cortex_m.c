/* Start of a Cortex-M program: vectors, floating-point unit, initialised data. */
#include "tg_bare.h"

extern uint32_t tg_stacks_stop[];

void tg_start(void) __attribute__((noreturn));
void tg_fault(void) __attribute__((naked, noreturn));
void tg_faulted(const uint32_t *frame) __attribute__((noreturn));

typedef void (*vector)(void);
__attribute__((section(".vectors"), used)) static const vector vectors[16] = {
    (vector)(uintptr_t)tg_stacks_stop,
    tg_start,
    tg_fault,
    tg_fault,
    tg_fault,
    tg_fault,
    tg_fault,
    tg_fault,
    tg_fault,
    tg_fault,
    tg_fault,
    tg_fault,
    tg_fault,
    tg_fault,
    tg_fault,
    tg_fault,
};

void tg_start(void)
{
    *(volatile uint32_t *)0xE000ED88u |= 0xFu << 20; /* CPACR: the coprocessors of the floating-point unit */
    __asm__ volatile("dsb\n\tisb" ::: "memory");
    tg_prepare_memory();
    tg_exit(main(0, 0));
}

void tg_fault(void) { __asm__("mrs r0, msp\n\tb tg_faulted"); }

/* `frame` is what the core stacked: r0 to r3, r12, lr, pc, psr. */
void tg_faulted(const uint32_t *frame)
{
    tg_say("fault: pc ");
    tg_say_hex(frame[6]);
    tg_say(" CFSR ");
    tg_say_hex(*(volatile uint32_t *)0xE000ED28u);
    tg_say(" address ");
    tg_say_hex(*(volatile uint32_t *)0xE000ED38u);
    tg_say("\n");
    tg_exit(3);
}

__asm__(".section .text.tg_semihost, \"ax\"\n"
        ".globl tg_semihost\n"
        ".thumb_func\n"
        "tg_semihost:\n"
        "    bkpt 0xab\n"
        "    bx lr\n"
        ".text\n");
