/* Files, console and exit over semihosting (Arm's specification; RISC-V took it over). */
#include "tg_bare.h"

enum {
    OPEN = 0x01,
    WRITE0 = 0x04,
    WRITE = 0x05,
    READ = 0x06,
    FILE_LENGTH = 0x0C,
    EXIT_EXTENDED = 0x20,
    APPLICATION_EXIT = 0x20026
};

int tg_open(const char *path, int mode)
{
    uint32_t length = 0;
    while (path[length] != '\0')
        length++;
    const uintptr_t block[3] = {(uintptr_t)path, (uintptr_t)mode, length};
    return tg_semihost(OPEN, block);
}

int32_t tg_length(int handle)
{
    const uintptr_t block[1] = {(uintptr_t)handle};
    return tg_semihost(FILE_LENGTH, block);
}

int tg_read(int handle, void *data, uint32_t bytes)
{
    unsigned char *at = data;
    while (bytes > 0) { /* a pipe gives what it has; the answer is how much is missing */
        const uintptr_t block[3] = {(uintptr_t)handle, (uintptr_t)at, bytes};
        uint32_t missing = (uint32_t)tg_semihost(READ, block);
        if (missing >= bytes)
            return 0;
        at += bytes - missing;
        bytes = missing;
    }
    return 1;
}

int tg_write(int handle, const void *data, uint32_t bytes)
{
    const unsigned char *at = data;
    while (bytes > 0) {
        const uintptr_t block[3] = {(uintptr_t)handle, (uintptr_t)at, bytes};
        uint32_t missing = (uint32_t)tg_semihost(WRITE, block);
        if (missing >= bytes)
            return 0;
        at += bytes - missing;
        bytes = missing;
    }
    return 1;
}

void tg_say(const char *text) { tg_semihost(WRITE0, text); }

void tg_say_hex(uint32_t value)
{
    char text[11] = "0x";
    for (int digit = 0; digit < 8; digit++)
        text[2 + digit] = "0123456789abcdef"[value >> (28 - 4 * digit) & 15u];
    text[10] = '\0';
    tg_say(text);
}

void tg_exit(int status)
{
    const uintptr_t block[2] = {APPLICATION_EXIT, (uintptr_t)status};
    for (;;)
        tg_semihost(EXIT_EXTENDED, block);
}
