/* Microbenchmarks of the cluster: every case is a function in assembly that returns the cycles it took. It is called by
 * the cores of its mask, at once, while the others wait at the barrier: three times to warm up, then so often that the
 * replacement of the instruction caches has been in many states. */
#include <stdint.h>

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
enum { CORES = 9, WARM = 3, COUNTED = 24 };

typedef uint32_t microbenchmark(uint32_t core, uint32_t call);
extern struct {
    microbenchmark *run;
    uint32_t cores;
} const cases[];
extern const uint32_t case_count;
uint32_t results[384][COUNTED][CORES];
volatile uint32_t is_over, is_ready;
void cluster_main(uint32_t core);

static void barrier(void)
{
    uint32_t value;
    __asm__ volatile(".insn i 0x03, 6, %0, %1, 0" : "=r"(value) : "r"(0x0020421c) : "memory");
}

void cluster_main(uint32_t core)
{
    REGISTER(0x00204000) = 1u << 16;
    if (core == 0) {
        REGISTER(0x00204200) = (1u << CORES) - 1;
        REGISTER(0x0020420c) = (1u << CORES) - 1;
        is_ready = 1;
    }
    while (!is_ready) {
    }
    for (uint32_t i = 0; i < case_count; i++)
        for (uint32_t call = 0; call < WARM + COUNTED; call++) {
            barrier();
            if (!(cases[i].cores >> core & 1))
                continue;
            uint32_t cycles = cases[i].run(core, call < WARM ? call : WARM);
            if (call >= WARM)
                results[i][call - WARM][core] = cycles;
        }
    barrier();
    is_over = 1;
    for (;;)
        barrier();
}
