/* RISC-V on the board `virt`: start, memory, serial port. One hart works; others sleep. */
#include <stdint.h>
#include <string.h>
#include "board.h"

#define UART_DATA (*(volatile uint8_t *)0x10000000u)
#define UART_STATE (*(volatile uint8_t *)0x10000005u)
#define FINISHER (*(volatile uint32_t *)0x00100000u)

extern unsigned char data_start[], data_stop[], data_in_flash[], zero_start[], zero_stop[];

void start_in_c(void) __attribute__((noreturn));
void trapped(void) __attribute__((noreturn));

__asm__(".section .vectors, \"ax\"\n"
        ".globl reset\n"
        "reset:\n"
        "    csrr t0, mhartid\n"
        "    bnez t0, 2f\n"
        ".option push\n"
        ".option norelax\n"
        "    la gp, __global_pointer$\n"
        ".option pop\n"
        "    la sp, stack_top\n"
        "    la t0, 1f\n"
        "    csrw mtvec, t0\n"
        "    li t0, 0x2000\n" /* floating point on */
        "    csrs mstatus, t0\n"
        "    csrw fcsr, zero\n"
        "    j start_in_c\n"
        "    .balign 4\n"
        "1:  j trapped\n"
        "2:  wfi\n"
        "    j 2b\n"
        ".text\n");

void start_in_c(void)
{
    memcpy(data_start, data_in_flash, (size_t)(data_stop - data_start));
    memset(zero_start, 0, (size_t)(zero_stop - zero_start));
    board_start();
    board_stop(firmware());
}

void trapped(void) { board_stop(3); }

void board_start(void) { }

void board_put(char character)
{
    while ((UART_STATE & 0x20u) == 0) /* full */
        ;
    UART_DATA = (uint8_t)character;
}

/* A real board would sleep here; an emulator is told to end. */
void board_stop(int status)
{
    for (;;)
        FINISHER = status == 0 ? 0x5555u : (uint32_t)status << 16 | 0x3333u;
}
