/* What the firmware needs of a board. Each file of boards/ has one. */
#ifndef BOARD_H
#define BOARD_H

void board_start(void);       /* before anything else */
void board_put(char character); /* on the console */
void board_stop(int status) __attribute__((noreturn));

int firmware(void); /* called by the board; its result is the status */

#endif
