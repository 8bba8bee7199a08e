/* This machine: for trying the firmware at a desk. */
#include <stdio.h>
#include <stdlib.h>
#include "board.h"

void board_start(void) { }
void board_put(char character)
{
    putchar(character);
    if (character == '\n')
        fflush(stdout);
}
void board_stop(int status) { exit(status); }

int main(void)
{
    board_start();
    board_stop(firmware());
}
