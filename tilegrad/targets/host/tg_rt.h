/* Runtime of the host: one core, one memory. A kernel call is a plain call: core 0 of 1. */
#ifndef TG_RT_H
#define TG_RT_H

#define TG_RUN(kernel, args, ...) kernel(__VA_ARGS__, (args), 0, 1)

#endif
