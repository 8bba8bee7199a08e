/* What the conductor runs, and what it needs of the runtime. */
#ifndef TG_CHIP_PROGRAM_H
#define TG_CHIP_PROGRAM_H
#include <stdint.h>
#include "stacks.h"

void run_program(void);

/* A piece of L2 through which values pass on their way to and from L3. */
extern unsigned char bounce[4096];

/* Where samples are made: in L2, or (`near` is null) so many bytes behind the beginning of L3. An entry is given
 * `already_in_l3` for what is there, which is not moved then. */
typedef struct {
    void *near;
    uint32_t far;
} image_place;
extern unsigned char already_in_l3[1];

/* Of a core of the cluster. */
stack_use stack_of(int core);

#endif
