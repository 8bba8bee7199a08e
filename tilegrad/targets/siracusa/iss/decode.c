/* Instruction words to operations: RV32IMFC, Zicsr, and of Xpulp hardware loops, accesses that increment their address,
 * event loads and two packed half-precision multiply-adds. A compressed instruction is written out in full first. */
#include "iss.h"

static uint32_t bits(uint32_t word, int high, int low) { return word >> low & ((2u << (high - low)) - 1); }
static int32_t extended(uint32_t value, int width) { return (int32_t)(value << (32 - width)) >> (32 - width); }

static int32_t immediate_s(uint32_t i) { return extended(bits(i, 31, 25) << 5 | bits(i, 11, 7), 12); }

static int32_t immediate_b(uint32_t i)
{
    return extended(bits(i, 31, 31) << 12 | bits(i, 7, 7) << 11 | bits(i, 30, 25) << 5 | bits(i, 11, 8) << 1, 13);
}

static int32_t immediate_j(uint32_t i)
{
    return extended(bits(i, 31, 31) << 20 | bits(i, 19, 12) << 12 | bits(i, 20, 20) << 11 | bits(i, 30, 21) << 1, 21);
}

static uint8_t pick(const uint8_t *table, uint32_t at) { return table[at]; }

static uint8_t arithmetic_immediate(uint32_t i)
{
    static const uint8_t table[] = {OP_ADDI, OP_SLLI, OP_SLTI, OP_SLTIU, OP_XORI, OP_SRLI, OP_ORI, OP_ANDI};
    uint8_t op = pick(table, bits(i, 14, 12));
    if (op == OP_SLLI || op == OP_SRLI) {
        if (op == OP_SRLI && i >> 25 == 32)
            return OP_SRAI;
        return i >> 25 == 0 ? op : (uint8_t)OP_ILLEGAL;
    }
    return op;
}

static uint8_t arithmetic_registers(uint32_t i)
{
    static const uint8_t plain[] = {OP_ADD, OP_SLL, OP_SLT, OP_SLTU, OP_XOR, OP_SRL, OP_OR, OP_AND};
    static const uint8_t multiply[] = {OP_MUL, OP_MULH, OP_MULHSU, OP_MULHU, OP_DIV, OP_DIVU, OP_REM, OP_REMU};
    uint32_t three = bits(i, 14, 12);
    switch (i >> 25) {
    case 0: return pick(plain, three);
    case 1: return pick(multiply, three);
    case 32: return three == 0 ? OP_SUB : three == 5 ? OP_SRA : OP_ILLEGAL;
    case 0x48: return three == 2 ? OP_VFMAC_H : OP_ILLEGAL;
    case 0x4b: return three == 0 ? OP_VFDOTPEX_S_H : OP_ILLEGAL;
    default: return OP_ILLEGAL;
    }
}

/* Rounding is to nearest, ties to even; to an integer also towards zero, which is all that compilers ask for. */
static uint8_t floating(uint32_t i)
{
    uint32_t three = bits(i, 14, 12), rs2 = bits(i, 24, 20);
    int is_nearest = three == 0 || three == 7;
    if (bits(i, 26, 25) != 0)
        return OP_ILLEGAL;
    switch (i >> 27) {
    case 0: return is_nearest ? OP_FADD : OP_ILLEGAL;
    case 1: return is_nearest ? OP_FSUB : OP_ILLEGAL;
    case 2: return is_nearest ? OP_FMUL : OP_ILLEGAL;
    case 3: return is_nearest ? OP_FDIV : OP_ILLEGAL;
    case 11: return is_nearest && rs2 == 0 ? OP_FSQRT : OP_ILLEGAL;
    case 4: return three == 0 ? OP_FSGNJ : three == 1 ? OP_FSGNJN : three == 2 ? OP_FSGNJX : OP_ILLEGAL;
    case 5: return three == 0 ? OP_FMIN : three == 1 ? OP_FMAX : OP_ILLEGAL;
    case 20: return three == 2 ? OP_FEQ : three == 1 ? OP_FLT : three == 0 ? OP_FLE : OP_ILLEGAL;
    case 24: return rs2 > 1 || !(is_nearest || three == 1) ? OP_ILLEGAL : rs2 == 1 ? OP_FCVT_WU : OP_FCVT_W;
    case 26: return rs2 > 1 || !is_nearest ? OP_ILLEGAL : rs2 == 1 ? OP_FCVT_S_WU : OP_FCVT_S_W;
    case 28: return rs2 != 0 || three > 1 ? OP_ILLEGAL : three == 1 ? OP_FCLASS : OP_FMV_X;
    case 30: return rs2 != 0 || three != 0 ? OP_ILLEGAL : OP_FMV_W;
    default: return OP_ILLEGAL;
    }
}

static uint8_t multiply_add(uint32_t i)
{
    static const uint8_t table[] = {OP_FMADD, OP_FMSUB, OP_FNMSUB, OP_FNMADD};
    uint32_t three = bits(i, 14, 12);
    return bits(i, 26, 25) != 0 || (three != 0 && three != 7) ? OP_ILLEGAL : pick(table, bits(i, 3, 2));
}

static instruction decode_word(uint32_t i)
{
    static const uint8_t loads[] = {OP_LB, OP_LH, OP_LW, OP_ILLEGAL, OP_LBU, OP_LHU, OP_ELW, OP_ILLEGAL};
    static const uint8_t stores[] = {OP_SB, OP_SH, OP_SW, OP_ILLEGAL, OP_ILLEGAL, OP_ILLEGAL, OP_ILLEGAL, OP_ILLEGAL};
    static const uint8_t post_loads[] = {OP_P_LB, OP_P_LH, OP_P_LW, OP_ILLEGAL, OP_P_LBU, OP_P_LHU, OP_ILLEGAL, OP_ILLEGAL};
    static const uint8_t post_stores[] = {OP_P_SB, OP_P_SH, OP_P_SW, OP_ILLEGAL,
                                          OP_ILLEGAL, OP_ILLEGAL, OP_ILLEGAL, OP_ILLEGAL};
    static const uint8_t branches[] = {OP_BEQ, OP_BNE, OP_ILLEGAL, OP_ILLEGAL, OP_BLT, OP_BGE, OP_BLTU, OP_BGEU};
    static const uint8_t loops[] = {OP_LP_STARTI, OP_LP_ENDI, OP_LP_COUNT, OP_LP_COUNTI,
                                    OP_LP_SETUP, OP_LP_SETUPI, OP_ILLEGAL, OP_ILLEGAL};
    uint32_t three = bits(i, 14, 12);
    instruction to = {OP_ILLEGAL, (uint8_t)bits(i, 11, 7), (uint8_t)bits(i, 19, 15), (uint8_t)bits(i, 24, 20),
                      (uint8_t)bits(i, 31, 27), 4, (int32_t)i >> 20};
    switch (i & 0x7f) {
    case 0x37: to.op = OP_LUI, to.immediate = (int32_t)(i & 0xfffff000u); break;
    case 0x17: to.op = OP_AUIPC, to.immediate = (int32_t)(i & 0xfffff000u); break;
    case 0x6f: to.op = OP_JAL, to.immediate = immediate_j(i); break;
    case 0x67: to.op = three == 0 ? OP_JALR : OP_ILLEGAL; break;
    case 0x63: to.op = pick(branches, three), to.immediate = immediate_b(i); break;
    case 0x03: to.op = pick(loads, three); break;
    case 0x23: to.op = pick(stores, three), to.immediate = immediate_s(i); break;
    case 0x07: to.op = three == 2 ? OP_FLW : OP_ILLEGAL; break;
    case 0x27: to.op = three == 2 ? OP_FSW : OP_ILLEGAL, to.immediate = immediate_s(i); break;
    case 0x0b: to.op = pick(post_loads, three); break;
    case 0x2b: to.op = pick(post_stores, three), to.immediate = immediate_s(i); break;
    case 0x7b: to.op = bits(i, 11, 8) == 0 ? pick(loops, three) : (uint8_t)OP_ILLEGAL; break;
    case 0x13:
        to.op = arithmetic_immediate(i);
        if (three == 1 || three == 5)
            to.immediate = (int32_t)bits(i, 24, 20);
        break;
    case 0x33: to.op = arithmetic_registers(i); break;
    case 0x43:
    case 0x47:
    case 0x4b:
    case 0x4f: to.op = multiply_add(i); break;
    case 0x53:
        to.op = floating(i);
        to.immediate = (int32_t)three;
        break;
    case 0x0f: to.op = OP_FENCE; break;
    case 0x73: to.op = three == 0 || three == 4 ? OP_ILLEGAL : OP_CSR, to.rs3 = (uint8_t)three; break;
    default: break;
    }
    return to;
}

/* ---- Compressed instructions. */

static uint32_t type_i(uint32_t immediate, uint32_t rs1, uint32_t three, uint32_t rd, uint32_t opcode)
{
    return immediate << 20 | rs1 << 15 | three << 12 | rd << 7 | opcode;
}

static uint32_t type_s(uint32_t immediate, uint32_t rs2, uint32_t rs1, uint32_t three, uint32_t opcode)
{
    return bits(immediate, 11, 5) << 25 | rs2 << 20 | rs1 << 15 | three << 12 | bits(immediate, 4, 0) << 7 | opcode;
}

static uint32_t type_r(uint32_t seven, uint32_t rs2, uint32_t rs1, uint32_t three, uint32_t rd)
{
    return seven << 25 | rs2 << 20 | rs1 << 15 | three << 12 | rd << 7 | 0x33;
}

static uint32_t jump(uint32_t c, uint32_t rd)
{
    int32_t offset = extended(bits(c, 12, 12) << 11 | bits(c, 11, 11) << 4 | bits(c, 10, 9) << 8 | bits(c, 8, 8) << 10 |
                              bits(c, 7, 7) << 6 | bits(c, 6, 6) << 7 | bits(c, 5, 3) << 1 | bits(c, 2, 2) << 5, 12);
    uint32_t to = (uint32_t)offset;
    return bits(to, 20, 20) << 31 | bits(to, 10, 1) << 21 | bits(to, 11, 11) << 20 | bits(to, 19, 12) << 12 | rd << 7 | 0x6f;
}

static uint32_t branch(uint32_t c, uint32_t three)
{
    int32_t offset = extended(bits(c, 12, 12) << 8 | bits(c, 11, 10) << 3 | bits(c, 6, 5) << 6 | bits(c, 4, 3) << 1 |
                              bits(c, 2, 2) << 5, 9);
    uint32_t to = (uint32_t)offset;
    return bits(to, 12, 12) << 31 | bits(to, 10, 5) << 25 | (8 + bits(c, 9, 7)) << 15 | three << 12 |
           bits(to, 4, 1) << 8 | bits(to, 11, 11) << 7 | 0x63;
}

/* 0 is no instruction. */
static uint32_t quadrant_0(uint32_t c)
{
    uint32_t rd = 8 + bits(c, 4, 2), rs1 = 8 + bits(c, 9, 7);
    uint32_t word = bits(c, 12, 10) << 3 | bits(c, 6, 6) << 2 | bits(c, 5, 5) << 6;
    uint32_t stack = bits(c, 12, 11) << 4 | bits(c, 10, 7) << 6 | bits(c, 6, 6) << 2 | bits(c, 5, 5) << 3;
    switch (bits(c, 15, 13)) {
    case 0: return stack == 0 ? 0 : type_i(stack, 2, 0, rd, 0x13);
    case 2: return type_i(word, rs1, 2, rd, 0x03);
    case 3: return type_i(word, rs1, 2, rd, 0x07);
    case 6: return type_s(word, rd, rs1, 2, 0x23);
    case 7: return type_s(word, rd, rs1, 2, 0x27);
    default: return 0;
    }
}

static uint32_t quadrant_1_arithmetic(uint32_t c)
{
    static const uint32_t threes[] = {0, 4, 6, 7};
    uint32_t rd = 8 + bits(c, 9, 7), rs2 = 8 + bits(c, 4, 2), amount = bits(c, 12, 12) << 5 | bits(c, 6, 2);
    uint32_t which = bits(c, 6, 5);
    switch (bits(c, 11, 10)) {
    case 0: return amount > 31 ? 0 : type_i(amount, rd, 5, rd, 0x13);
    case 1: return amount > 31 ? 0 : type_i(amount | 0x400, rd, 5, rd, 0x13);
    case 2: return type_i((uint32_t)extended(amount, 6) & 0xfff, rd, 7, rd, 0x13);
    default: return bits(c, 12, 12) ? 0 : type_r(which == 0 ? 32 : 0, rs2, rd, threes[which], rd);
    }
}

static uint32_t quadrant_1(uint32_t c)
{
    uint32_t rd = bits(c, 11, 7), small = (uint32_t)extended(bits(c, 12, 12) << 5 | bits(c, 6, 2), 6) & 0xfff;
    switch (bits(c, 15, 13)) {
    case 0: return type_i(small, rd, 0, rd, 0x13);
    case 1: return jump(c, 1);
    case 2: return type_i(small, 0, 0, rd, 0x13);
    case 3:
        if (rd == 2) {
            uint32_t stack = bits(c, 12, 12) << 9 | bits(c, 6, 6) << 4 | bits(c, 5, 5) << 6 | bits(c, 4, 3) << 7 |
                             bits(c, 2, 2) << 5;
            return stack == 0 ? 0 : type_i((uint32_t)extended(stack, 10) & 0xfff, 2, 0, 2, 0x13);
        }
        return small == 0 ? 0 : (uint32_t)extended(bits(c, 12, 12) << 5 | bits(c, 6, 2), 6) << 12 | rd << 7 | 0x37;
    case 4: return quadrant_1_arithmetic(c);
    case 5: return jump(c, 0);
    case 6: return branch(c, 0);
    default: return branch(c, 1);
    }
}

static uint32_t quadrant_2(uint32_t c)
{
    uint32_t rd = bits(c, 11, 7), rs2 = bits(c, 6, 2);
    uint32_t load = bits(c, 12, 12) << 5 | bits(c, 6, 4) << 2 | bits(c, 3, 2) << 6;
    uint32_t store = bits(c, 12, 9) << 2 | bits(c, 8, 7) << 6;
    switch (bits(c, 15, 13)) {
    case 0: return bits(c, 12, 12) ? 0 : type_i(rs2, rd, 1, rd, 0x13);
    case 2: return rd == 0 ? 0 : type_i(load, 2, 2, rd, 0x03);
    case 3: return type_i(load, 2, 2, rd, 0x07);
    case 4:
        if (!bits(c, 12, 12))
            return rs2 != 0 ? type_r(0, rs2, 0, 0, rd) : rd == 0 ? 0 : type_i(0, rd, 0, 0, 0x67);
        return rs2 != 0 ? type_r(0, rs2, rd, 0, rd) : rd == 0 ? 0 : type_i(0, rd, 0, 1, 0x67);
    case 6: return type_s(store, rs2, 2, 2, 0x23);
    case 7: return type_s(store, rs2, 2, 2, 0x27);
    default: return 0;
    }
}

instruction decode(uint32_t word)
{
    if ((word & 3) == 3)
        return decode_word(word);
    uint32_t c = word & 0xffff;
    uint32_t full = (c & 3) == 0 ? quadrant_0(c) : (c & 3) == 1 ? quadrant_1(c) : quadrant_2(c);
    instruction to = full == 0 ? decode_word(0) : decode_word(full);
    to.size = 2;
    return to;
}
