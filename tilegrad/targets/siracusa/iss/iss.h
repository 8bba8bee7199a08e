/* Siracusa, instruction by instruction and with its cycles: nine cluster cores and the fabric controller, shared FPUs,
 * instruction caches, banked memories, cluster DMA, HyperRAM and event unit. docs/iss.md says which figure is from where.
 *
 * Time. `now` counts cycles of the cluster's clock; the fabric controller and the shared memory L2 have a slower clock.
 * In a cycle first the cores run, one after the other in the order of `running`, then what was scheduled for the cycle.
 * A core executes an instruction at once and then stands still for the cycles that it took, so what two cores share is
 * given to them in the order of the cycles in which they asked for it. */
#ifndef SIRACUSA_ISS_H
#define SIRACUSA_ISS_H
#include <stdint.h>

enum { WORKERS = 8, CONTROLLER = 8, CLUSTER_CORES = 9, FABRIC = 9, CORES = 10, FAULT_STATUS = 99 };
#define NEVER INT64_MAX

/* ---- Decoded instructions. */
#define OPERATIONS(X) \
    X(UNKNOWN) X(ILLEGAL) X(HOOK) X(LUI) X(AUIPC) X(JAL) X(JALR) X(BEQ) X(BNE) X(BLT) X(BGE) X(BLTU) X(BGEU) \
    X(LB) X(LH) X(LW) X(LBU) X(LHU) X(SB) X(SH) X(SW) X(FLW) X(FSW) X(ELW) \
    X(ADDI) X(SLTI) X(SLTIU) X(XORI) X(ORI) X(ANDI) X(SLLI) X(SRLI) X(SRAI) \
    X(ADD) X(SUB) X(SLL) X(SLT) X(SLTU) X(XOR) X(SRL) X(SRA) X(OR) X(AND) \
    X(MUL) X(MULH) X(MULHSU) X(MULHU) X(DIV) X(DIVU) X(REM) X(REMU) \
    X(FMADD) X(FMSUB) X(FNMSUB) X(FNMADD) X(FADD) X(FSUB) X(FMUL) X(FDIV) X(FSQRT) X(FSGNJ) X(FSGNJN) X(FSGNJX) \
    X(FMIN) X(FMAX) X(FEQ) X(FLT) X(FLE) X(FCVT_W) X(FCVT_WU) X(FCVT_S_W) X(FCVT_S_WU) X(FMV_X) X(FMV_W) X(FCLASS) \
    X(VFMAC_H) X(VFDOTPEX_S_H) X(CSR) X(FENCE) \
    X(LP_STARTI) X(LP_ENDI) X(LP_COUNT) X(LP_COUNTI) X(LP_SETUP) X(LP_SETUPI) \
    X(P_LB) X(P_LH) X(P_LW) X(P_LBU) X(P_LHU) X(P_SB) X(P_SH) X(P_SW)
enum operation {
#define NAME(name) OP_##name,
    OPERATIONS(NAME)
#undef NAME
};

typedef struct {
    uint8_t op, rd, rs1, rs2, rs3, size;
    int32_t immediate;
} instruction;

instruction decode(uint32_t word);

/* ---- Caches of instructions: lines of 16 bytes; see cache.c. */
enum { LINE_BYTES = 16, CACHE_WAYS = 4, MOST_SETS = 32 };
typedef struct {
    uint32_t sets, tags[MOST_SETS][CACHE_WAYS];
    int64_t filled[MOST_SETS][CACHE_WAYS], free_at;
    uint8_t random;
} cache;

void reset_caches(void);
int64_t fetch_delay(int core, uint32_t line, int64_t cycle);

/* ---- Cores. Where cycles go that no instruction uses. */
#define REASONS(X) X(fetch) X(use) X(memory) X(fpu) X(divide) X(branch) X(integer) X(queue) X(sleep)
enum reason {
#define NAME(name) BY_##name,
    REASONS(NAME)
#undef NAME
    REASON_COUNT
};

enum state { IS_OFF, IS_RUNNING, IS_ASLEEP, IS_BLOCKED };

typedef struct {
    uint32_t pc, x[32], f[32];
    int64_t next; /* the cycle of its next instruction, by its own clock */
    int64_t ready_x[32], ready_f[32];
    uint32_t line;           /* that the next instructions come from */
    uint32_t loop_start[2], loop_end[2], loop_count[2];
    int number, is_listed;
    enum state state;
    int64_t slept_at;
    cache l0;
    uint64_t instructions, lost[REASON_COUNT];
} core_state;

extern core_state cores[CORES];
extern core_state *current; /* that executes: whom a fault is blamed on */
extern int64_t now;
extern int running[CLUSTER_CORES], running_count; /* in the order of their turns */

void execute(core_state *core);
/* Lets a core that waits go on with what it waited for, after `delay` more cycles. */
void resume(core_state *core, int64_t delay, enum reason reason);
void wait_for(core_state *core, enum state state);

/* ---- Memory and registers. */
enum { L1_BASE = 0x10000000, L1_BYTES = 0x40000, L1_BANKS = 16, SHARED_BASE = 0x1c010000, SHARED_BYTES = 0x1f0000 };
extern uint8_t l1[L1_BYTES], shared[SHARED_BYTES];
extern int64_t l1_free[L1_BANKS]; /* when a bank is free again */
extern instruction shared_code[SHARED_BYTES / 2];

uint8_t *memory_at(uint32_t address, uint32_t bytes); /* none: no memory */
uint8_t *shared_memory(uint32_t address, uint32_t bytes, const char *what);
uint8_t *scratchpad(uint32_t address, uint32_t bytes, const char *what);
const instruction *find_instruction(uint32_t address);
void hook_at(uint32_t address); /* marks an instruction: who comes there is profiled */
const instruction *hooked_at(uint32_t address);
int64_t shared_delay(uint32_t address, uint32_t bytes, int64_t latency);  /* of bytes of L2, by a cluster core */
int64_t fabric_cycle(int64_t cycle); /* of the slower clock, in a cycle of the cluster's */
int64_t cluster_cycle(int64_t cycle); /* the first one of the cluster's in which that cycle of the slower clock is */
void load_image(const char *path);
/* A register of the chip. What it takes beyond one cycle is added to `delay`; a core may have to wait for it. */
uint32_t access_register(core_state *core, uint32_t address, int is_write, uint32_t value, int64_t *delay);
void set_noise(uint32_t seed);
uint32_t noise(void);
void spoil(uint8_t *bytes, uint32_t count);
extern int is_adverse; /* whether what is undefined is made as bad as it can be */

/* What cores do in nearly every cycle. */
static inline const instruction *instruction_at(uint32_t address)
{
    uint32_t at = address - SHARED_BASE;
    if (at < SHARED_BYTES && shared_code[at / 2].op != OP_UNKNOWN)
        return &shared_code[at / 2];
    return find_instruction(address);
}

/* Of a word of L1, now: a bank serves one in a cycle. */
static inline int64_t bank_delay(uint32_t address)
{
    int64_t *free = &l1_free[address / 4 % L1_BANKS], delay = *free > now ? *free - now : 0;
    *free = now + delay + 1;
    return delay;
}

/* ---- What happens at a cycle, in the order in which it was scheduled. */
typedef void event_handler(int argument);
void schedule(event_handler *handler, int argument, int64_t delay);
int is_scheduled(event_handler *handler);
int64_t next_event(void);
void run_events(void);

/* ---- Event unit: 0x00204000 for a cluster core. */
uint32_t event_unit(core_state *core, uint32_t offset, int is_write, uint32_t value);
void event_load(core_state *core, uint32_t address, uint32_t rd);
void send_event(uint32_t targets, uint32_t event);

/* ---- Cluster DMA (mchan) and HyperRAM (uDMA). */
uint32_t mchan(core_state *core, uint32_t offset, int is_write, uint32_t value);
int mchan_is_idle(void);
uint32_t hyper(uint32_t offset, int is_write, uint32_t value);
int hyper_is_idle(void);
uint8_t *hyper_memory(uint32_t address, uint32_t bytes); /* where an image is loaded into L3, or none */

/* ---- What is said: the console on stdout; a fault on stderr, with the latest events; the profile and the trace in files. */
void fault(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void note(int core, const char *format, ...) __attribute__((format(printf, 2, 3)));
void console(uint32_t character);
extern const char *console_until; /* the run ends behind a line that begins like this */
void leave(int status) __attribute__((noreturn));
void add_symbol(uint32_t address, const char *name);
void sort_symbols(void);
uint32_t address_of(const char *name); /* 0: there is none */
void open_profile(const char *path);
void open_trace(const char *path);
void mark(core_state *core); /* who comes to an instruction that was hooked */
extern int is_traced;
void trace(char kind, int core, uint32_t a, uint32_t b); /* a line of the trace; see report.c */

#endif
