/* A Cortex-M7 on the board mps2-an500: vectors, floating-point unit, memory, serial port. */
#include <stdint.h>
#include <string.h>
#include "board.h"

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define CPACR REGISTER(0xE000ED88u)
#define UART_DATA REGISTER(0x40004000u)
#define UART_STATE REGISTER(0x40004004u)
#define UART_CONTROL REGISTER(0x40004008u)
#define UART_DIVIDER REGISTER(0x40004010u)

extern unsigned char data_start[], data_stop[], data_in_flash[], zero_start[], zero_stop[];
extern uint32_t stack_top[];

void reset(void) __attribute__((noreturn));
static void fault(void) { board_stop(3); }

typedef void (*vector)(void);
__attribute__((section(".vectors"), used)) static const vector vectors[16] = {
    (vector)(uintptr_t)stack_top, reset, fault, fault, fault, fault, fault, fault,
    fault, fault, fault, fault, fault, fault, fault, fault,
};

void reset(void)
{
    CPACR |= 0xFu << 20;
    __asm__ volatile("dsb\n\tisb" ::: "memory");
    memcpy(data_start, data_in_flash, (size_t)(data_stop - data_start));
    memset(zero_start, 0, (size_t)(zero_stop - zero_start));
    board_start();
    board_stop(firmware());
}

void board_start(void)
{
    UART_DIVIDER = 16;
    UART_CONTROL = 1; /* transmit */
}

void board_put(char character)
{
    while (UART_STATE & 1u) /* full */
        ;
    UART_DATA = (uint32_t)character;
}

/* A real board would sleep here; an emulator is told to end. */
void board_stop(int status)
{
    const uint32_t block[2] = {0x20026, (uint32_t)status};
    register uint32_t operation __asm__("r0") = 0x20;
    register const void *argument __asm__("r1") = block;
    for (;;)
        __asm__ volatile("bkpt 0xab" : "+r"(operation) : "r"(argument) : "memory");
}
