/* A loop nest in tiles, as constant tables, and the one function that runs it: it computes each tile's boxes, brings
 * operands into scratchpad, runs the kernel on all cores, and takes results back, with the next tile's transfers under
 * way while the current one computes if the nest is double buffered. */
#ifndef TG_TILE_H
#define TG_TILE_H
#include "model.h"
#include "tg_cluster.h"

enum { TG_MAX_LOOPS = 6, TG_MAX_RANK = 7, TG_MAX_OPERANDS = 10, TG_MAX_WORDS = 64 };

/* A tiled axis: tiles of `tile` out of `extent`, the last one maybe smaller. Loops are listed outermost first. */
typedef struct {
    int32_t extent, tile;
    int32_t reduction; /* outputs continue their accumulator from tile to tile */
} tg_loop;

/* One dimension of an operand. Its positions are (coefficient * axis + inner part + offset) / divisor, clipped to the
 * extent; with the inner part, of axes that are not tiled, the offset is between `low` and `high`. Without a loop (-1)
 * the positions are `low` up to but not including `high`, whatever the tile. */
typedef struct {
    int32_t loop, coefficient, low, high, offset, divisor, extent;
} tg_dim;

typedef struct {
    uint32_t scratch;    /* byte offset of its first slot in scratchpad */
    uint32_t slot_bytes; /* distance to the second slot, if it has one */
    uint8_t access, element_bytes, rank;
    uint8_t slots; /* 0: an operand of a nest that computes where its operands live */
    uint8_t loops; /* bit i: loop i moves this operand */
    const tg_dim *dims;
} tg_operand;

/* A word of the kernel's arguments that changes from tile to tile. */
enum { TG_N, TG_AT, TG_FIRST, TG_LAST, TG_BOX_N, TG_BOX_O, TG_STRIDE };
typedef struct {
    uint8_t word, kind, index, dim; /* index: of a loop (N, AT) or an operand (BOX_N, BOX_O, STRIDE) */
    int32_t coefficient;            /* of STRIDE */
} tg_field;

enum { TG_WHOLE, TG_SINGLE, TG_DOUBLE }; /* computed in L2 as a whole; in tiles; in tiles with overlapping transfers */

/* What nests of one kind have in common: all but where their operands live. */
typedef struct {
    tg_kernel_call *call;
    const void *args; /* the words that stay the same, and zeros */
    const tg_loop *loops;
    const tg_operand *operands;
    const tg_field *fields;
    uint8_t words, loop_count, operand_count, field_count;
    uint8_t mode;
} tg_nest;

/* Where an operand lives in L2: an offset into the arena or the state; an absent optional has no place. */
#define TG_IN_STATE 0x80000000u
#define TG_ABSENT 0xffffffffu

/* Runs a nest on operands at `homes`; `who` is named in messages. */
void tg_run_nest(const tg_model *m, const tg_nest *nest, const uint32_t *homes, const char *who);
#define TG_RUN_NEST(nest, ...) tg_run_nest(m, &(nest), (const uint32_t[]){__VA_ARGS__}, __func__)

#endif
