/* Stacks, as they are found when a program is over. Each is painted by start.S, and so is the guard zone below it, which
 * must stay so. */
#ifndef TG_CHIP_STACKS_H
#define TG_CHIP_STACKS_H
#include <stdint.h>

enum { PAINT = 0x57ac57ac };
extern uint32_t _guard_bytes[];

/* How deep a stack was used so far, of how many bytes, and whether the guard zone below it is as it was. */
typedef struct {
    uint32_t used, bytes;
    int is_intact;
} stack_use;

/* Of the stack that begins at `top`, downwards; `bytes` are with its guard zone. */
static inline stack_use use_of_stack(const uint32_t *top, uint32_t bytes)
{
    stack_use stack = {0, bytes, 0};
    const uint32_t *bottom = top - bytes / 4;
    while (stack.used < stack.bytes && bottom[stack.used / 4] == PAINT)
        stack.used += 4;
    stack.is_intact = stack.used >= (uint32_t)(uintptr_t)_guard_bytes;
    stack.used = stack.bytes - stack.used;
    stack.bytes -= (uint32_t)(uintptr_t)_guard_bytes;
    return stack;
}

#endif
