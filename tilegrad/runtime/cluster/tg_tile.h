/* Loop nests in tiles, as constant tables, and the functions that run them.
 *
 * One object of words, in L2, describes a program: a table for each kind of nest (loops, operands, the kernel's argument
 * words) and, for each entry, a row of calls: which table, where its operands live, where it works in scratchpad. A
 * call and its table are brought into scratchpad together, while the nest before runs, and are changed there from tile
 * to tile; everything that does not change is in them as the first tile needs it. Small nests come together with the
 * one behind them, each call with its own table behind it, side by side. */
#ifndef TG_TILE_H
#define TG_TILE_H
#include "model.h"
#include "tg_cluster.h"

/* A word of scratchpad, which holds records and arguments of any type; of the program, which is made of records. All
 * members of records are int32_t or uint32_t, either of which C lets be read and written as the other, and what lies
 * there as one record is looked at as no other: a plain uint32_t would do. But turn_args copies arguments as words, and
 * kernels read some of these as floats: that is what may_alias is for, or a compiler that does not look past a call. */
#if defined(__GNUC__)
typedef uint32_t __attribute__((may_alias)) tg_word;
#else
typedef uint32_t tg_word;
#endif

#if defined(__cplusplus)
#define TG_STATIC_ASSERT(condition, what) static_assert(condition, #what)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define TG_STATIC_ASSERT(condition, what) _Static_assert(condition, #what)
#else
#define TG_STATIC_ASSERT(condition, what) typedef char tg_assert_##what[(condition) ? 1 : -1]
#endif

enum { TG_MAX_OPERANDS = 14, TG_MAX_RESULTS = 4, TG_AHEAD = 2 };

/* A table: this, then operands, loops, dimensions, fields, argument words and levels. Places in it are numbers of
 * words from its start. */
typedef struct {
    int32_t kernel; /* which of the program's, and which others go on with each tile (THEN) */
    int32_t operand_count, loop_count;
    int32_t args;
    int32_t tiles;
    int32_t is_double; /* the next tile's transfers are under way while a tile computes; TG_AHEAD: where the engine has
                        * more to do than cores, the one behind it is requested before that next tile begins */
    int32_t is_large;  /* results may need several commands, and leave right behind their tile */
    int32_t args_turn; /* the place of the arguments, plus that of the next tile's: behind the table */
    int32_t arg_count; /* 0 where none change */
} tg_nest;

#ifdef TG_EPILOGUES
/* A kernel, and one that goes on with each tile of it; another that goes on with what these two are. */
enum { TG_THEN_SHIFT = 10, TG_KERNELS = 1024 }; /* as many as the shift leaves room for */
#define THEN(kernel, epilogue) ((kernel) + (((epilogue) + 1) << TG_THEN_SHIFT))
#define AND_THEN(both, epilogue) ((both) + (((epilogue) + 1) << 2 * TG_THEN_SHIFT))
/* An epilogue as the runtime calls it: its arguments are behind those of the kernel before it, `words` from their start. */
#define TG_EPILOGUE_CALL(name, kernel, words, ...)                                                                     \
    static void call_##name(void *const *at, const void *args, int core_id, int core_count)                            \
    {                                                                                                                  \
        tg_##kernel(__VA_ARGS__, (const void *)((const tg_word *)args + (words)), core_id, core_count);                \
    }
#endif

/* An operand: the box of it that the tile touches, as a transfer. */
typedef struct {
    int32_t access;                   /* TG_READ or TG_WRITE */
    uint32_t scratch;                 /* byte offset of its slot */
    uint32_t turn;                    /* that, plus the offset of the other slot */
    uint32_t far;                     /* byte offset of the box in the tensor */
    uint32_t row_bytes, rows, stride; /* rows are dense in scratchpad and `stride` bytes apart in L2 */
    int32_t levels; /* 0, or where there is: how many levels beyond rows, (count, stride) of each, innermost first */
} tg_operand;

/* A tiled axis: tiles of `tile` out of `extent`, the last one maybe smaller. Loops are listed innermost first. */
typedef struct {
    int32_t extent, tile, start, size;
    uint32_t reads, results;               /* operands that it moves, as bits */
    int32_t dims, read_count, write_count; /* dimensions that it moves: of what is read, then of results */
    int32_t fields, field_count;
    int32_t is_simple; /* one plain dimension of each operand, moved by rows: what most tiles of most nests are */
} tg_loop;

/* One dimension of an operand that a loop moves: positions (coefficient * axis + inner part) / divisor, clipped to the
 * extent, where the inner part, of axes that are not tiled, lies between `low` and `high`. Divisor 0: just the axis. */
typedef struct {
    int32_t operand, index; /* its place, and which one it is */
    int32_t far_stride;     /* bytes per position */
    int32_t far_step;       /* bytes per tile */
    int32_t shape;          /* place of the word that is `factor` times the size, or 0 where no size ever changes */
    int32_t factor;
    int32_t coefficient, low, high, divisor, extent;
    int32_t start, size;
} tg_dim;

/* An argument word that changes: a copy of another word; a position `by` less the divisor times the box's start; `by`
 * as it is; a word times `by`, alone or added to what is there; that times another word; or whether the reduction loops
 * (mask `by`) are at their first or last tile. */
enum { TG_COPY, TG_ORIGIN, TG_SET, TG_SCALE, TG_ADD, TG_TIMES, TG_FIRST, TG_LAST };
typedef struct {
    int32_t word, kind, of, by; /* `word` from the arguments' place */
} tg_field;

/* A call; behind it, a home for each operand. With what comes after it in the entry, if anything does (`next_words`, of the call, is not 0). Operands as bits:
 * those requested while the nest before computes its last tile, the others that are read, and results. Bits are counted
 * from the first operand that has one, whose number stands above them. */
enum { TG_FIRST_SHIFT = 16 };
#define BITS(first, bits) ((uint32_t)(first) << TG_FIRST_SHIFT | (bits))
typedef struct {
    uint32_t next_words, next_table, next_table_words;
    uint32_t next_scratch; /* where the next call and its table go */
    uint32_t slots;        /* where this nest's slots begin */
    uint32_t early, late, results;
    uint32_t flags;
    uint32_t moves; /* between L2 and L3 before it, in the entry's list */
} tg_call;

/* A move between L2 and L3: a word (number of the request * 8, plus TG_MOVE_IN or TG_MOVE_WAIT), and where it starts one
 * (not TG_MOVE_WAIT) offset into the arena, offset into L3 and bytes. With TG_MOVE_ROWS these are bytes of a row, and
 * behind them stand how many rows, dense in L2, and their distance in L3. */
enum { TG_MOVE_IN = 1, TG_MOVE_WAIT = 2, TG_MOVE_ROWS = 4, TG_MOVE_WORDS = 4, TG_ROWS_WORDS = 6, TG_MOVE_SHIFT = 3 };
#define BRING(request, arena, l3, bytes) 8 * (request) + TG_MOVE_IN, (arena), (l3), (bytes)
#define PUT_AWAY(request, arena, l3, bytes) 8 * (request), (arena), (l3), (bytes)
#define BRING_ROWS(request, arena, l3, bytes, rows, stride)                                                            \
    8 * (request) + TG_MOVE_IN + TG_MOVE_ROWS, (arena), (l3), (bytes), (rows), (stride)
#define PUT_AWAY_ROWS(request, arena, l3, bytes, rows, stride)                                                         \
    8 * (request) + TG_MOVE_ROWS, (arena), (l3), (bytes), (rows), (stride)
#define AWAIT(request) 8 * (request) + TG_MOVE_WAIT

enum {
    TG_DRAIN = 1,        /* what the nest before stored must have arrived before this one asks for anything */
    TG_LEAVE = 2,        /* the last results may be on their way when the nest ends */
    TG_NEXT_LATE = 4,    /* the next call and its table have no room beside this nest */
    TG_AT_ONCE = 8,      /* the next nest begins when this one ends: its last results leave when that one has begun */
    TG_SETTLE = 16,      /* what is on its way out is waited for before the next nest's operands are requested, or,
                            where that has come together with this one, when this one ends */
    TG_NEXT_LAUNCH = 32, /* the next nest is launched over blocks, which bring its call and table themselves */
    TG_MORE = 64,        /* the next nest has come together with this one: it is so many words behind it */
    TG_JOINS = 64,       /* of a launch, where none comes so: one with the next, to which a pipe leads */
    TG_LATE = 128,       /* operands are requested when its turn comes; of nests that came with it behind that */
};

/* A nest that is launched over blocks has more in its flags: how many loops, the innermost ones, stay with one block,
 * and over how many blocks: `limit`, or n / `divisor` of the number that tg_set_blocks sets, `limit` at most. */
enum { TG_INNER_SHIFT = 8, TG_DIVISOR_SHIFT = 12, TG_LIMIT_SHIFT = 20, TG_MOST_INNER = 15, TG_MOST_WIDTH = 255 };
#define OVER(inner, limit, divisor)                                                                                    \
    ((uint32_t)(inner) << TG_INNER_SHIFT | (uint32_t)(divisor) << TG_DIVISOR_SHIFT |                                   \
     (uint32_t)(limit) << TG_LIMIT_SHIFT)
#define BLOCKS(inner) OVER(inner, TG_BLOCKS, TG_BLOCKS_DIVISOR)

#ifdef TG_CARRIES
/* Blocks bring it and its early operands before those of the launch before meet, beside their last tile or behind it. */
enum { TG_CARRIED = 1, TG_BESIDE = 2 };
#endif

/* Where several lanes of a block take parts of a nest, each of them is a block to it. */
enum { TG_LANES_SHIFT = 28 };
#define LANES(count) ((uint32_t)((count)-1) << TG_LANES_SHIFT)

/* Where an operand lives in L2: an offset into the arena or the state. One that the nest before has just made is read
 * where it was made, an offset into scratchpad. An absent optional has no place. */
#define TG_IN_STATE 0x80000000u
#define TG_IN_SCRATCH 0x40000000u
#define TG_ABSENT 0xffffffffu
/* One that passes through a pipe lives there: its number. */
#define TG_IN_PIPE 0xc0000000u
#define PIPE(number) (TG_IN_PIPE + (number))

/* What a program consists of; `bytes` of its words. */
typedef struct {
    tg_kernel_call *const *kernels;
    const void *words;
    uint32_t bytes;
#ifdef TG_PIPES
    const tg_pipe *pipes;
#endif
} tg_program;

/* Where an entry begins: its first call (or none) and that one's table, in words, and where they go in scratchpad. An
 * entry that computes where its operands live has no words there (`call_words` is 0). */
#define TG_NO_CALL 0xffffffffu
typedef struct {
    const char *name;
    uint32_t position, call_words, table, table_words, scratch;
    uint32_t moves, last_moves; /* the list of moves, and how many come behind the last nest */
} tg_entry;

/* A result that leaves when its tile is computed. */
typedef struct {
    unsigned char *scratch, *far;
    uint32_t row_bytes, rows, stride;
} tg_leaving;

#ifdef TG_PIPES
/* An operand that passes through a pipe: how many boxes were moved, and how many of these the other side knows of. */
typedef struct {
    const tg_pipe *pipe;
    int is_result, operand; /* which one it is */
    uint32_t moved, told;
} tg_piped;
enum { TG_MOST_MEMBERS = 8 };
#endif

#ifdef TG_BLOCKS
/* A nest that is launched: its call, its table, and where blocks bring both. */
typedef struct {
    const char *who;
    uint32_t current, table;
    tg_call launch;
    int lane, lanes; /* of those that take the nest's tiles in turn */
} tg_member;
#endif

#ifdef TG_CARRIES
/* What a block has brought, before the barrier, of the nest that is launched next: its call and table, moved on to the
 * block's first tile, and the request for operands of that one. */
typedef struct {
    uint32_t position; /* of that call, or TG_NO_CALL */
    int loading;
} tg_carried;
#endif

/* Requests for nests that have come together: one for each of the first that are behind another, one for those that
 * follow, and one for the last. */
enum { TG_AHEAD_OTHERS = 2, TG_AHEAD_LAST, TG_AHEAD_COUNT };

/* An entry while it runs: on the conducting core's stack. */
typedef struct {
    tg_model *m;
    unsigned char *scratch, *state, *arena;
    const tg_word *program;
    tg_kernel_call *const *kernels;
    tg_status status;      /* TG_OUT_OF_ORDER once a nest was not run in its turn; then no other is */
    uint32_t position;     /* of the call that is fetched next */
    uint32_t current;      /* of the call whose turn it is, or TG_NO_CALL behind the last */
    uint32_t table;        /* of the current nest */
    uint32_t arriving;     /* bytes of the entry's first call and table, until they have come */
    const tg_word *move;   /* the next one */
    tg_word *call, *words; /* of the current nest, in scratchpad */
    const tg_call *before; /* of the nest before, where it is still running */
    tg_word *before_words;
    int loading, storing, fetching; /* requests under way */
    int ahead[TG_AHEAD_COUNT];      /* those for nests that have come together with the current one */
    int further;                    /* how many of these have had their turn */
    int is_running;                 /* the nest before: its last tile is not over when the current one's turn comes */
    tg_kernel_call *kernel;         /* its kernel, and what that works on */
    tg_job job;
#ifdef TG_EPILOGUES
    tg_kernel_call *then[TG_EPILOGUES]; /* what goes on with its tiles, as far as there is any */
#endif
    int steps, moved_loops; /* of the current nest: how many, and how many loops moved in the last one */
    int turn, leaving_count;
    void *at[2][TG_MAX_OPERANDS]; /* addresses for a tile (`turn`), and for the one that is being made ready */
    tg_leaving leaving[TG_MAX_RESULTS];
#ifdef TG_BLOCKS
    int is_launch; /* the current nest is launched over blocks; then this says what they bring, and where to */
    tg_call launch;
    int first_tile; /* of a block: the first one that it takes */
#endif
#ifdef TG_CARRIES
    int next_first, next_stop; /* of a block: what it takes of the nest that is launched next, to bring it ahead */
    tg_carried carried[TG_CLUSTERS];
#endif
#ifdef TG_PIPES
    const tg_pipe *pipes;
    int block, member, lane, lanes; /* whose slices it uses, which of the block's members it is, and of the nest's */
    int member_count, pipe_count;
    tg_member members[TG_MOST_MEMBERS]; /* that wait for the last of those they are launched with */
    tg_piped piped[TG_MOST_MEMBERS];
#endif
} tg_tiles;

void tg_start(tg_tiles *t, tg_model *m, const tg_program *program, const tg_entry *entry);
/* Runs nests, from the one whose call is `first` in the program; `who` is named in messages. */
void tg_run_nests(tg_tiles *t, const tg_call *first, int count, const char *who);
/* The same on operands where they live in L2, each nest as one call. */
void tg_run_whole(tg_tiles *t, const tg_call *first, int count, const char *who);
/* TG_OK, or TG_OUT_OF_ORDER where not every nest ran in its turn: then nothing that the entry was to write is valid. */
tg_status tg_stop(tg_tiles *t, const tg_entry *entry);

/* ---- What generated code is written with. Its constants are one object, `words`, of type `words_t`. */

/* A call with its homes. */
#define TG_CALL(count)                                                                                                 \
    struct {                                                                                                           \
        tg_call call;                                                                                                  \
        uint32_t homes[count];                                                                                         \
    }

/* A kernel as the runtime calls it, from an array of addresses. */
#define TG_KERNEL_CALL(name, ...)                                                                                      \
    static void call_##name(void *const *at, const void *args, int core_id, int core_count)                            \
    {                                                                                                                  \
        tg_##name(__VA_ARGS__, args, core_id, core_count);                                                             \
    }

/* Where a part of the words is, and how long; where a part of a table is in it. */
#define PLACE(part) ((uint32_t)(offsetof(words_t, part) / sizeof(tg_word)))
#define WORDS(part) ((uint32_t)(sizeof(((words_t *)0)->part) / sizeof(tg_word)))
#define AT(table, part) ((int32_t)(PLACE(table.part) - PLACE(table)))

/* Where an operand lives: in the state, or in scratchpad; a plain number is in the arena. */
#define S(tensor) (TG_IN_STATE + S_##tensor)
#define L1(offset) (TG_IN_SCRATCH + (offset))

/* A nest whose arguments are the same for all tiles; one with arguments that change, made for each tile behind its table. */
#define NEST(table, name, operands, loops, ...)                                                                        \
    {                                                                                                                  \
        .kernel = K_##name, .operand_count = (operands), .loop_count = (loops), .args = AT(table, args),               \
        .args_turn = 2 * AT(table, args), __VA_ARGS__                                                                  \
    }
#define NEST_CHANGING(table, name, operands, loops, ...)                                                               \
    {                                                                                                                  \
        .kernel = K_##name, .operand_count = (operands), .loop_count = (loops), .args = AT(table, args),               \
        .args_turn = AT(table, args) + (int32_t)WORDS(table), .arg_count = (int32_t)WORDS(table.args), __VA_ARGS__     \
    }

/* A dimension that is just an axis, of operand number `of`; its size is written into the table where it changes. */
#define DIM(of, stride, step, tile) SIZED(of, stride, step, 0, 0, tile)
#define SIZED(of, stride, step, place, by, tile)                                                                       \
    {                                                                                                                  \
        .operand = (int32_t)((sizeof(tg_nest) + (of) * sizeof(tg_operand)) / sizeof(tg_word)), .index = (of),          \
        .far_stride = (stride), .far_step = (step), .shape = (place), .factor = (by), .coefficient = 1, .size = (tile) \
    }

/* The call that comes after this one, its table, and where in scratchpad they go. */
#define NEXT(name, table, offset)                                                                                      \
    .next_words = WORDS(name), .next_table = PLACE(table), .next_table_words = WORDS(table), .next_scratch = (offset)

/* Those that come together: from the first call, behind which is its table, to the last one's table. */
#define SPAN(name, last_table) (PLACE(last_table) + WORDS(last_table) - PLACE(name))
#define NEXT_TOGETHER(name, table, last_table, offset)                                                                 \
    .next_words = SPAN(name, last_table), .next_table = PLACE(table), .next_scratch = (offset)
#define MORE(name, following, table)                                                                                   \
    .next_words = PLACE(following) - PLACE(name), .next_table = PLACE(table) - PLACE(name)

#define RUN(name, count) tg_run_nests(t, &words.name.call, (count), __func__)
#define RUN_FROM(first, count) tg_run_nests(t, (first), (count), __func__)
#define RUN_WHOLE(name, count) tg_run_whole(t, &words.name.call, (count), __func__)
#define RUN_WHOLE_FROM(first, count) tg_run_whole(t, (first), (count), __func__)

#endif
