/* What a program without an operating system is made of: a start, a way to the machine that watches it, an end.
 *
 * The way is semihosting: a debugger or an emulator serves requests such as "read 4096 bytes into this buffer". One
 * request moves a whole buffer, so a transfer costs a few instructions however long it is. */
#ifndef TG_BARE_H
#define TG_BARE_H
#include <stdint.h>

enum { TG_FOR_READING = 1, TG_FOR_WRITING = 5, TG_FOR_APPENDING = 9 }; /* binary, as semihosting numbers them */

int tg_open(const char *path, int mode);                    /* a handle, or -1 */
int32_t tg_length(int handle);                              /* bytes of a file, or -1 */
int tg_read(int handle, void *data, uint32_t bytes);        /* 1, or 0 where the file ended before */
int tg_write(int handle, const void *data, uint32_t bytes); /* 1, or 0 where it could not be written */
void tg_say(const char *text);                              /* on the console */
void tg_say_hex(uint32_t value);
void tg_exit(int status) __attribute__((noreturn));

/* One request: the chip's own instruction, in start_*.c. */
int32_t tg_semihost(int32_t operation, const void *block);

/* Initial values to where variables are, zeros to the others: before any of them is used. */
void tg_prepare_memory(void);

/* Called by the start once memory is as C wants it, on core 0 and without arguments; its result is the exit status. */
int main(int argc, char **argv);

/* Called again and again on each further core, where there are any. */
void tg_other_core(void);

#endif
