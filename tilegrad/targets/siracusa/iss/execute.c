/* One instruction of a core: what it computes, and how long it takes. `time` is the cycle in which an operand would be
 * read, which is later than the cycle of the instruction by all that it had to wait for so far. An FPU is taken
 * then; a bank of memory in the cycle of the instruction itself. */
#include <math.h>
#include <string.h>
#include "iss.h"

enum { FPUS = 4, DIVIDE = 14, TAKEN_BRANCH = 2, JUMP = 1, MULTIPLY = 2, MULTIPLY_HIGH = 5, L2_LATENCY = 14 };

static int64_t fpu_free[FPUS], divider_free;

/* ---- Floating point: the host's, which is IEEE's; a result that is no number is RISC-V's. */

static float real(uint32_t word)
{
    float value;
    memcpy(&value, &word, 4);
    return value;
}

static uint32_t raw(float value)
{
    uint32_t word;
    memcpy(&word, &value, 4);
    return word;
}

static uint32_t result(float value) { return value != value ? 0x7fc00000u : raw(value); }

static uint32_t to_integer(float value, int is_unsigned, int32_t rounding)
{
    if (rounding != 1)
        value = rintf(value);
    if (is_unsigned)
        return isnan(value) || value >= 4294967296.0f ? 0xffffffffu : value <= -1.0f ? 0 : (uint32_t)value;
    return isnan(value) || value >= 2147483648.0f ? 0x7fffffffu
           : value < -2147483648.0f               ? 0x80000000u
                                                  : (uint32_t)(int32_t)value;
}

static uint32_t minimum_or_maximum(uint32_t a, uint32_t b, int is_maximum)
{
    float x = real(a), y = real(b);
    if (isnan(x))
        return isnan(y) ? 0x7fc00000u : b;
    if (isnan(y))
        return a;
    if (x == y)
        return (a >> 31 != 0) != is_maximum ? a : b;
    return (x < y) != is_maximum ? a : b;
}

static uint32_t class_of(uint32_t word)
{
    uint32_t exponent = word >> 23 & 255, fraction = word & 0x7fffff, is_negative = word >> 31;
    if (exponent == 255)
        return fraction == 0 ? (is_negative ? 1 : 1u << 7) : fraction >> 22 ? 1u << 9 : 1u << 8;
    uint32_t kind = exponent != 0 ? 1 : fraction != 0 ? 2 : 3;
    return is_negative ? 1u << kind : 1u << (7 - kind);
}

static double half(uint32_t word)
{
    uint32_t exponent = word >> 10 & 31, fraction = word & 1023;
    double value = exponent == 31   ? (fraction ? (double)NAN : (double)INFINITY)
                   : exponent == 0 ? ldexp((double)fraction, -24)
                                   : ldexp((double)(1024 + fraction), (int)exponent - 25);
    return word >> 15 & 1 ? -value : value;
}

static uint32_t to_half(double value)
{
    if (isnan(value))
        return 0x7e00;
    uint32_t sign = signbit(value) ? 0x8000u : 0;
    double size = fabs(value);
    if (size >= 65520.0)
        return sign | 0x7c00;
    int exponent;
    frexp(size, &exponent);
    int unit = exponent < -13 ? -24 : exponent - 11;
    uint32_t count = (uint32_t)rint(ldexp(size, -unit));
    return sign | (unit == -24 ? count : (uint32_t)(unit + 24) * 1024 + count);
}

/* Rounded once: what is lost of the sum decides ties. */
static uint32_t half_multiply_add(uint32_t a, uint32_t b, uint32_t c)
{
    double product = half(a) * half(b), addend = half(c), sum = product + addend;
    double part = sum - product, lost = (product - (sum - part)) + (addend - part);
    if (isfinite(sum) && lost != 0) {
        uint64_t word;
        memcpy(&word, &sum, 8);
        if (!(word & 1)) {
            sum = nextafter(sum, (lost > 0) ? (double)INFINITY : -(double)INFINITY);
        }
    }
    return to_half(sum);
}

/* ---- Time. */

#define WAIT(core, time, until, reason) \
    do { \
        if ((until) > (time)) { \
            (core)->lost[reason] += (uint64_t)((until) - (time)); \
            (time) = (until); \
        } \
    } while (0)

static int64_t use_fpu(core_state *core, int64_t time)
{
    int64_t *free = &fpu_free[core->number % FPUS], wait = *free - time;
    if (wait <= 0) {
        *free = time + 1;
        return time;
    }
    *free += 1;
    core->lost[BY_fpu] += (uint64_t)wait;
    return time + wait;
}

static int64_t use_divider(core_state *core, int64_t time)
{
    int64_t wait = divider_free - time;
    if (wait <= 0) {
        wait = 0;
        divider_free = time;
    }
    divider_free += DIVIDE;
    core->lost[BY_divide] += (uint64_t)(wait + DIVIDE - 1);
    return time + wait + DIVIDE - 1;
}

/* ---- Memory: how many cycles an access takes beyond its own. */

static inline uint8_t *data_at(core_state *core, uint32_t address, uint32_t bytes, int64_t *delay)
{
    if (address & (bytes - 1))
        fault("an unaligned access of %u bytes at 0x%08x", bytes, address);
    if (address - L1_BASE < L1_BYTES && core->number != FABRIC) {
        *delay = bank_delay(address);
        return &l1[address - L1_BASE];
    }
    uint8_t *at = memory_at(address, bytes);
    if (at != 0 && core->number != FABRIC)
        *delay = shared_delay(address, bytes, L2_LATENCY);
    return at;
}

static inline uint32_t load(core_state *core, uint32_t address, uint32_t bytes, int64_t *delay)
{
    uint32_t value = 0;
    const uint8_t *at = data_at(core, address, bytes, delay);
    if (at != 0)
        memcpy(&value, at, bytes);
    else if (bytes == 4)
        value = access_register(core, address, 0, 0, delay);
    else
        fault("a read of %u bytes of register 0x%08x", bytes, address);
    return value;
}

static inline void store(core_state *core, uint32_t address, uint32_t value, uint32_t bytes, int64_t *delay)
{
    uint8_t *at = data_at(core, address, bytes, delay);
    if (at != 0)
        memcpy(at, &value, bytes);
    else if (bytes == 4)
        access_register(core, address, 1, value, delay);
    else
        fault("a write of %u bytes of register 0x%08x", bytes, address);
}

static uint32_t divide(enum operation op, uint32_t a, uint32_t b)
{
    int32_t x = (int32_t)a, y = (int32_t)b;
    int is_overflow = a == 0x80000000u && y == -1;
    switch (op) {
    case OP_DIV: return b == 0 ? 0xffffffffu : is_overflow ? a : (uint32_t)(x / y);
    case OP_DIVU: return b == 0 ? 0xffffffffu : a / b;
    case OP_REM: return b == 0 ? a : is_overflow ? 0 : (uint32_t)(x % y);
    default: return b == 0 ? a : a % b;
    }
}

static int64_t division_time(enum operation op, uint32_t divisor)
{
    int is_signed = op == OP_DIV || op == OP_REM;
    if (divisor == 0)
        return is_signed ? 1 : 34;
    if (is_signed && (int32_t)divisor < 0)
        return __builtin_clz(~divisor + 1) + 2;
    return __builtin_clz(divisor) + 3;
}

static uint32_t control_register(const core_state *core, const instruction *i)
{
    uint32_t number = (uint32_t)i->immediate & 0xfff;
    int is_read = (i->rs3 & 3) != 1 && i->rs1 == 0;
    if (number >= 1 && number <= 3) /* flags and rounding of floating point: never looked at, and to nearest */
        return 0;
    if (is_read && number == 0xf14)
        return core->number == FABRIC ? 31u << 5 : (uint32_t)core->number;
    if (is_read && (number == 0xb00 || number == 0xc00))
        return (uint32_t)core->next;
    if (is_read && (number == 0xb02 || number == 0xc02))
        return (uint32_t)core->instructions;
    fault("control register 0x%x", number);
}

/* ---- Waiting and going on. */

void wait_for(core_state *core, enum state state)
{
    core->state = state;
    core->slept_at = now;
    core->next = NEVER;
}

void resume(core_state *core, int64_t delay, enum reason reason)
{
    core->state = IS_RUNNING;
    core->next = now + 1 + delay;
    core->lost[reason] += (uint64_t)(core->next - core->slept_at - 1);
    if (core->is_listed)
        return;
    for (int i = running_count++; i > 0; i--)
        running[i] = running[i - 1];
    running[0] = core->number;
    core->is_listed = 1;
}

/* ---- The instruction. */

static int64_t fetch(core_state *core, enum operation op, int64_t cycle)
{
    uint32_t first = core->pc & ~(uint32_t)(LINE_BYTES - 1), delay = 0;
    int is_split = (core->pc & (LINE_BYTES - 1)) > LINE_BYTES - 4; /* also a short one: its fetch is of four bytes */
    if (core->number == FABRIC) {
        if (op == OP_FLW || op == OP_FSW || (op >= OP_FMADD && op <= OP_VFDOTPEX_S_H))
            fault("floating point on the fabric controller, which has none");
        return 0;
    }
    if (core->line != first)
        delay += (uint32_t)fetch_delay(core->number, first / LINE_BYTES, cycle);
    core->line = first;
    if (is_split) {
        core->line = first + LINE_BYTES;
        delay += (uint32_t)fetch_delay(core->number, core->line / LINE_BYTES, cycle);
    }
    core->lost[BY_fetch] += delay;
    return delay;
}

static uint32_t after(core_state *core, uint32_t next)
{
    for (int i = 0; i < 2; i++)
        if (core->loop_count[i] > 0 && core->pc == core->loop_end[i]) {
            if (--core->loop_count[i] > 0)
                return core->loop_start[i];
        }
    return next;
}

#define X(n) x[i->n]
#define USE(n) WAIT(core, time, core->ready_x[i->n], BY_use)
#define USE_F(n) WAIT(core, time, core->ready_f[i->n], BY_use)
#define SET(value) \
    do { \
        x[i->rd] = (value); \
    } while (0)
#define BRANCH(condition) \
    USE(rs1); \
    USE(rs2); \
    if (condition) { \
        next = pc + (uint32_t)i->immediate; \
        core->lost[BY_branch] += TAKEN_BRANCH; \
        time += TAKEN_BRANCH; \
    } \
    break
#define LOADED(bytes, address, type) \
    { \
        int64_t delay = 0; \
        USE(rs1); \
        uint32_t value = (uint32_t)(type)load(core, (address), (bytes), &delay); \
        x[i->rd] = value; \
        if (i->rd != 0) \
            core->ready_x[i->rd] = time + delay + 2; \
        core->lost[BY_memory] += (uint64_t)delay; \
        time += delay; \
    } \
    break
#define STORED(bytes, address, value) \
    { \
        int64_t delay = 0; \
        USE(rs1); \
        USE(rs2); \
        store(core, (address), (value), (bytes), &delay); \
        core->lost[BY_memory] += (uint64_t)delay; \
        time += delay; \
    } \
    break
#define WITH_REGISTER(value) \
    USE(rs1); \
    USE(rs2); \
    SET(value); \
    break
#define WITH_IMMEDIATE(value) \
    USE(rs1); \
    SET(value); \
    break
#define SLOW(value, latency) \
    USE(rs1); \
    USE(rs2); \
    SET(value); \
    core->ready_x[i->rd] = i->rd != 0 ? time + (latency) + 1 : 0; \
    core->lost[BY_integer] += (latency) - 1; \
    time += (latency) - 1; \
    break
#define FLOAT_2(value) \
    time = use_fpu(core, time); \
    USE_F(rs1); \
    USE_F(rs2); \
    f[i->rd] = (value); \
    break
#define FLOAT_3(a, b, c) \
    time = use_fpu(core, time); \
    USE_F(rs1); \
    USE_F(rs2); \
    USE_F(rs3); \
    f[i->rd] = result(fmaf((a), (b), (c))); \
    break
#define COMPARED(condition) \
    time = use_fpu(core, time); \
    USE_F(rs1); \
    USE_F(rs2); \
    SET(condition); \
    break
#define A real(f[i->rs1])
#define B real(f[i->rs2])
#define C real(f[i->rs3])

static int is_fetched(const core_state *core, uint32_t pc)
{
    return core->line == (pc & ~(uint32_t)(LINE_BYTES - 1)) && (pc & (LINE_BYTES - 1)) <= LINE_BYTES - 4;
}

void execute(core_state *core)
{
    const int64_t cycle = core->next;
    const uint32_t pc = core->pc;
    uint32_t *const x = core->x, *const f = core->f;
    current = core;
    const instruction *i = instruction_at(pc);
    int64_t time = cycle;
    if (!is_fetched(core, pc))
        time += fetch(core, (enum operation)i->op, cycle);
    uint32_t next = pc + i->size;
    core->instructions++;
again:
    switch ((enum operation)i->op) {
    case OP_LUI: SET((uint32_t)i->immediate); break;
    case OP_AUIPC: SET(pc + (uint32_t)i->immediate); break;
    case OP_JAL:
        SET(next);
        next = pc + (uint32_t)i->immediate;
        core->lost[BY_branch] += JUMP;
        time += JUMP;
        break;
    case OP_JALR: {
        USE(rs1);
        uint32_t target = (X(rs1) + (uint32_t)i->immediate) & ~1u;
        SET(next);
        next = target;
        core->lost[BY_branch] += JUMP;
        time += JUMP;
        break;
    }
    case OP_BEQ: BRANCH(X(rs1) == X(rs2));
    case OP_BNE: BRANCH(X(rs1) != X(rs2));
    case OP_BLT: BRANCH((int32_t)X(rs1) < (int32_t)X(rs2));
    case OP_BGE: BRANCH((int32_t)X(rs1) >= (int32_t)X(rs2));
    case OP_BLTU: BRANCH(X(rs1) < X(rs2));
    case OP_BGEU: BRANCH(X(rs1) >= X(rs2));
    case OP_LB: LOADED(1, X(rs1) + (uint32_t)i->immediate, int8_t);
    case OP_LH: LOADED(2, X(rs1) + (uint32_t)i->immediate, int16_t);
    case OP_LW: LOADED(4, X(rs1) + (uint32_t)i->immediate, uint32_t);
    case OP_LBU: LOADED(1, X(rs1) + (uint32_t)i->immediate, uint32_t);
    case OP_LHU: LOADED(2, X(rs1) + (uint32_t)i->immediate, uint32_t);
    case OP_SB: STORED(1, X(rs1) + (uint32_t)i->immediate, X(rs2));
    case OP_SH: STORED(2, X(rs1) + (uint32_t)i->immediate, X(rs2));
    case OP_SW: STORED(4, X(rs1) + (uint32_t)i->immediate, X(rs2));
    case OP_P_LB:
    case OP_P_LH:
    case OP_P_LW:
    case OP_P_LBU:
    case OP_P_LHU: {
        uint32_t address = X(rs1), bytes = i->op == OP_P_LW ? 4 : i->op == OP_P_LH || i->op == OP_P_LHU ? 2 : 1;
        int64_t delay = 0;
        USE(rs1);
        x[i->rs1] += (uint32_t)i->immediate;
        uint32_t value = load(core, address, bytes, &delay);
        SET(i->op == OP_P_LB ? (uint32_t)(int8_t)value : i->op == OP_P_LH ? (uint32_t)(int16_t)value : value);
        if (i->rd != 0)
            core->ready_x[i->rd] = time + delay + 2;
        core->lost[BY_memory] += (uint64_t)delay;
        time += delay;
        break;
    }
    case OP_P_SB:
    case OP_P_SH:
    case OP_P_SW: {
        uint32_t address = X(rs1), value = X(rs2);
        USE(rs1);
        x[i->rs1] += (uint32_t)i->immediate;
        STORED(i->op == OP_P_SB ? 1u : i->op == OP_P_SH ? 2u : 4u, address, value);
    }
    case OP_FLW: {
        int64_t delay = 0;
        USE(rs1);
        f[i->rd] = load(core, X(rs1) + (uint32_t)i->immediate, 4, &delay);
        USE_F(rd);
        core->ready_f[i->rd] = time + delay + 2;
        core->lost[BY_memory] += (uint64_t)delay;
        time += delay;
        break;
    }
    case OP_FSW: {
        int64_t delay = 0;
        USE(rs1);
        USE_F(rs2);
        store(core, X(rs1) + (uint32_t)i->immediate, f[i->rs2], 4, &delay);
        core->lost[BY_memory] += (uint64_t)delay;
        time += delay;
        break;
    }
    case OP_ELW:
        USE(rs1);
        event_load(core, X(rs1) + (uint32_t)i->immediate, i->rd);
        break;
    case OP_ADDI: WITH_IMMEDIATE(X(rs1) + (uint32_t)i->immediate);
    case OP_SLTI: WITH_IMMEDIATE((int32_t)X(rs1) < i->immediate);
    case OP_SLTIU: WITH_IMMEDIATE(X(rs1) < (uint32_t)i->immediate);
    case OP_XORI: WITH_IMMEDIATE(X(rs1) ^ (uint32_t)i->immediate);
    case OP_ORI: WITH_IMMEDIATE(X(rs1) | (uint32_t)i->immediate);
    case OP_ANDI: WITH_IMMEDIATE(X(rs1) & (uint32_t)i->immediate);
    case OP_SLLI: WITH_IMMEDIATE(X(rs1) << i->immediate);
    case OP_SRLI: WITH_IMMEDIATE(X(rs1) >> i->immediate);
    case OP_SRAI: WITH_IMMEDIATE((uint32_t)((int32_t)X(rs1) >> i->immediate));
    case OP_ADD: WITH_REGISTER(X(rs1) + X(rs2));
    case OP_SUB: WITH_REGISTER(X(rs1) - X(rs2));
    case OP_SLL: WITH_REGISTER(X(rs1) << (X(rs2) & 31));
    case OP_SLT: WITH_REGISTER((int32_t)X(rs1) < (int32_t)X(rs2));
    case OP_SLTU: WITH_REGISTER(X(rs1) < X(rs2));
    case OP_XOR: WITH_REGISTER(X(rs1) ^ X(rs2));
    case OP_SRL: WITH_REGISTER(X(rs1) >> (X(rs2) & 31));
    case OP_SRA: WITH_REGISTER((uint32_t)((int32_t)X(rs1) >> (X(rs2) & 31)));
    case OP_OR: WITH_REGISTER(X(rs1) | X(rs2));
    case OP_AND: WITH_REGISTER(X(rs1) & X(rs2));
    case OP_MUL: SLOW(X(rs1) * X(rs2), MULTIPLY);
    case OP_MULH: SLOW((uint32_t)((int64_t)(int32_t)X(rs1) * (int32_t)X(rs2) >> 32), MULTIPLY_HIGH);
    case OP_MULHSU: SLOW((uint32_t)((int64_t)(int32_t)X(rs1) * (int64_t)X(rs2) >> 32), MULTIPLY_HIGH);
    case OP_MULHU: SLOW((uint32_t)((uint64_t)X(rs1) * X(rs2) >> 32), MULTIPLY_HIGH);
    case OP_DIV:
    case OP_DIVU:
    case OP_REM:
    case OP_REMU: {
        USE(rs1);
        USE(rs2);
        int64_t cycles = division_time((enum operation)i->op, X(rs2)) - 1;
        SET(divide((enum operation)i->op, X(rs1), X(rs2)));
        core->lost[BY_integer] += (uint64_t)cycles;
        time += cycles;
        break;
    }
    case OP_FMADD: FLOAT_3(A, B, C);
    case OP_FMSUB: FLOAT_3(A, B, -C);
    case OP_FNMSUB: FLOAT_3(-A, B, C);
    case OP_FNMADD: FLOAT_3(-A, B, -C);
    case OP_FADD: FLOAT_2(result(A + B));
    case OP_FSUB: FLOAT_2(result(A - B));
    case OP_FMUL: FLOAT_2(result(A * B));
    case OP_FDIV:
    case OP_FSQRT:
        time = use_divider(core, time);
        USE_F(rs1);
        if (i->op == OP_FDIV)
            USE_F(rs2);
        f[i->rd] = result(i->op == OP_FDIV ? A / B : sqrtf(A));
        break;
    case OP_FSGNJ: FLOAT_2((f[i->rs1] & 0x7fffffffu) | (f[i->rs2] & 0x80000000u));
    case OP_FSGNJN: FLOAT_2((f[i->rs1] & 0x7fffffffu) | (~f[i->rs2] & 0x80000000u));
    case OP_FSGNJX: FLOAT_2(f[i->rs1] ^ (f[i->rs2] & 0x80000000u));
    case OP_FMIN: FLOAT_2(minimum_or_maximum(f[i->rs1], f[i->rs2], 0));
    case OP_FMAX: FLOAT_2(minimum_or_maximum(f[i->rs1], f[i->rs2], 1));
    case OP_FEQ: COMPARED(A == B);
    case OP_FLT: COMPARED(A < B);
    case OP_FLE: COMPARED(A <= B);
    case OP_FCVT_W:
    case OP_FCVT_WU:
        time = use_fpu(core, time);
        USE_F(rs1);
        SET(to_integer(A, i->op == OP_FCVT_WU, i->immediate));
        break;
    case OP_FCVT_S_W:
    case OP_FCVT_S_WU:
        time = use_fpu(core, time);
        USE(rs1);
        f[i->rd] = raw(i->op == OP_FCVT_S_WU ? (float)X(rs1) : (float)(int32_t)X(rs1));
        break;
    case OP_FMV_X:
        USE_F(rs1);
        SET(f[i->rs1]);
        break;
    case OP_FMV_W:
        USE(rs1);
        f[i->rd] = X(rs1);
        break;
    case OP_FCLASS:
        time = use_fpu(core, time);
        USE_F(rs1);
        SET(class_of(f[i->rs1]));
        break;
    case OP_VFMAC_H:
        time = use_fpu(core, time);
        USE_F(rs1);
        USE_F(rs2);
        USE_F(rd);
        f[i->rd] = half_multiply_add(f[i->rs1] & 0xffff, f[i->rs2] & 0xffff, f[i->rd] & 0xffff) |
                   half_multiply_add(f[i->rs1] >> 16, f[i->rs2] >> 16, f[i->rd] >> 16) << 16;
        break;
    case OP_VFDOTPEX_S_H: {
        time = use_fpu(core, time);
        USE_F(rs1);
        USE_F(rs2);
        USE_F(rd);
        float low = (float)half(f[i->rs1] & 0xffff) * (float)half(f[i->rs2] & 0xffff);
        float both = fmaf((float)half(f[i->rs1] >> 16), (float)half(f[i->rs2] >> 16), low);
        f[i->rd] = result(real(f[i->rd]) + both);
        break;
    }
    case OP_CSR: SET(control_register(core, i)); break;
    case OP_FENCE: break;
    case OP_LP_STARTI: core->loop_start[i->rd & 1] = pc + ((uint32_t)i->immediate & 0xfff) * 2; break;
    case OP_LP_ENDI: core->loop_end[i->rd & 1] = pc + ((uint32_t)i->immediate & 0xfff) * 2; break;
    case OP_LP_COUNT:
        USE(rs1);
        core->loop_count[i->rd & 1] = X(rs1);
        break;
    case OP_LP_COUNTI: core->loop_count[i->rd & 1] = (uint32_t)i->immediate & 0xfff; break;
    case OP_LP_SETUP:
        USE(rs1);
        core->loop_start[i->rd & 1] = pc + 4;
        core->loop_end[i->rd & 1] = pc + ((uint32_t)i->immediate & 0xfff) * 2;
        core->loop_count[i->rd & 1] = X(rs1);
        break;
    case OP_LP_SETUPI:
        core->loop_start[i->rd & 1] = pc + 4;
        core->loop_end[i->rd & 1] = pc + i->rs1 * 2u;
        core->loop_count[i->rd & 1] = (uint32_t)i->immediate & 0xfff;
        break;
    case OP_HOOK:
        mark(core);
        i = hooked_at(pc);
        goto again;
    default: {
        uint32_t word = 0;
        const uint8_t *at = memory_at(pc, 2);
        if (at != 0)
            memcpy(&word, at, i->size);
        fault("the illegal instruction 0x%0*x", 2 * i->size, word);
    }
    }
    x[0] = 0;
    core->pc = core->loop_count[0] | core->loop_count[1] ? after(core, next) : next;
    if (core->state == IS_RUNNING)
        core->next = time + 1;
}
