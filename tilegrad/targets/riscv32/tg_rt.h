/* Runtime of RISC-V harts that share one memory. With one hart a kernel call is a plain call. With several, all of
 * them run the same entry: each computes its share of a kernel's outputs, and none goes on before all are done. */
#ifndef TG_RT_H
#define TG_RT_H

#ifndef TG_CORES
#define TG_CORES 1
#endif

#if TG_CORES > 1
static inline int tg_hart(void)
{
    int hart;
    __asm__("csrr %0, mhartid" : "=r"(hart));
    return hart;
}

/* Returns on each hart after all have called it; what they wrote before is then seen by all. */
void tg_barrier(void);

#define TG_RUN(kernel, args, ...) (kernel(__VA_ARGS__, (args), tg_hart(), TG_CORES), tg_barrier())
#else
#define TG_RUN(kernel, args, ...) kernel(__VA_ARGS__, (args), 0, 1)
#endif

#endif
