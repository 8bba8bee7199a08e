/* Microbenchmarks of the cluster: every case is a function in assembly that returns the cycles it took. It is called
 * four times by the cores of its mask, at once; the last counts. The others wait at the barrier. */
#include <stdint.h>

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
enum { CORES = 9, CALLS = 4 };

typedef uint32_t microbenchmark(uint32_t core, uint32_t call);
extern struct {
    microbenchmark *run;
    uint32_t cores;
} const cases[];
extern const uint32_t case_count;
uint32_t results[512][CORES];
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
        for (uint32_t call = 0; call < CALLS; call++) {
            barrier();
            if (cases[i].cores >> core & 1)
                results[i][core] = cases[i].run(core, call);
        }
    barrier();
    is_over = 1;
    for (;;)
        barrier();
}
