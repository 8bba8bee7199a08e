#include "tg_tile.h"

/* Kept apart: a conductor has little room for its instructions, and the way through a nest of one tile is to be short. */
#if defined(__GNUC__)
#define APART __attribute__((noinline))
#else
#define APART
#endif

#ifdef TG_BLOCKS
#define FIRST_OF(tiles) ((tiles)->first_tile)
#else
#define FIRST_OF(tiles) 0
#endif

enum { NONE = -1, CALL_WORDS = sizeof(tg_call) / sizeof(tg_word) };

static tg_nest *nest_of(const tg_tiles *t) { return (tg_nest *)(void *)t->words; }
static tg_operand *operands_of(tg_nest *nest) { return (tg_operand *)(void *)(nest + 1); }
static tg_loop *loops_of(tg_nest *nest) { return (tg_loop *)(void *)(operands_of(nest) + nest->operand_count); }
static const tg_word *homes_of(const tg_call *call) { return (const tg_word *)(const void *)(call + 1); }

static unsigned char *home_of(const tg_tiles *t, uint32_t home)
{
    return home & TG_IN_STATE ? t->state + (home & ~TG_IN_STATE) : t->arena + home;
}

static void settle(int *request)
{
    if (*request != NONE)
        tg_dma_wait(*request);
    *request = NONE;
}

/* Adds rows, cut into pieces that the engine takes. */
static void add_pieces(int request, unsigned char *scratch, unsigned char *far, uint32_t row_bytes, uint32_t rows,
                       uint32_t stride)
{
    uint32_t most = TG_DMA_LONGEST / row_bytes, piece;
    if (most == 0) {
        for (; rows > 0; rows--, far += stride - row_bytes)
            for (uint32_t left = row_bytes; left > 0; left -= piece, scratch += piece, far += piece) {
                piece = left < TG_DMA_LONGEST ? left : TG_DMA_LONGEST & ~7u;
                tg_dma_add(request, scratch, far, piece, 1, 0);
            }
        return;
    }
    for (; rows > 0; rows -= piece, scratch += piece * row_bytes, far += piece * stride) {
        piece = rows < most ? rows : most;
        tg_dma_add(request, scratch, far, row_bytes, piece, stride);
    }
}

/* A box of more levels than the engine has, or one that may be too long for it. */
static void add_levels(int request, const tg_operand *operand, unsigned char *scratch, unsigned char *far,
                       const tg_word *levels, uint32_t depth)
{
    uint32_t inner = operand->row_bytes * operand->rows;
    if (depth == 0) {
        if (inner <= TG_DMA_LONGEST)
            tg_dma_add(request, scratch, far, operand->row_bytes, operand->rows, operand->stride);
        else
            add_pieces(request, scratch, far, operand->row_bytes, operand->rows, operand->stride);
        return;
    }
    for (uint32_t i = 1; i < depth; i++)
        inner *= levels[2 * i - 2];
    for (uint32_t i = 0; i < levels[2 * depth - 2]; i++)
        add_levels(request, operand, scratch + i * inner, far + i * levels[2 * depth - 1], levels, depth - 1);
}

static APART int add_large_box(const tg_word *words, const tg_operand *operand, unsigned char *scratch,
                               unsigned char *far, int request)
{
    if (operand->row_bytes == 0 || operand->rows == 0)
        return request;
    if (request == NONE)
        request = tg_dma_open(operand->access == TG_READ);
    add_levels(request, operand, scratch, far, words + operand->levels + 1, words[operand->levels]);
    return request;
}

#ifdef TG_PIPES
#include "tg_pipe.h"
#define IS_LEFT(home) (((home)&TG_IN_SCRATCH) && !is_piped(home))
#else
#define IS_LEFT(home) ((home)&TG_IN_SCRATCH)
#endif

/* Adds boxes of operands, given as bits (from the first one on), to a request, which is opened for the first. What they are for says whether
 * slots change: the next tile's operands go into the other one, results leave it behind. */
enum { FIRST_TILE, NEXT_TILE, RESULTS };
static APART int add_boxes(tg_tiles *t, const tg_call *call, tg_word *words, uint32_t mask, int what, int request)
{
    uint32_t first = mask >> TG_FIRST_SHIFT;
    tg_operand *operand = operands_of((tg_nest *)(void *)words) + first;
    const tg_word *home = homes_of(call) + first;
    unsigned char *slots = t->scratch + call->slots;
    for (mask &= (1u << TG_FIRST_SHIFT) - 1; mask; mask >>= 1, operand++, home++) {
        if (!(mask & 1) || (what != RESULTS && IS_LEFT(*home)))
            continue;
        if (what == NEXT_TILE)
            operand->scratch = operand->turn - operand->scratch;
        unsigned char *scratch = slots + operand->scratch, *far = home_of(t, *home) + operand->far;
#ifdef TG_PIPES
        if (is_piped(*home)) {
            if (!t->pipes[*home & ~TG_IN_PIPE].near)
                request = add_piped(t, words, operand, *home, scratch, what == RESULTS, request);
            if (what == RESULTS)
                operand->scratch = operand->turn - operand->scratch;
            continue;
        }
#endif
        if (operand->levels == 0) {
            if (request == NONE)
                request = tg_dma_open(what != RESULTS);
            tg_dma_add(request, scratch, far, operand->row_bytes, operand->rows, operand->stride);
        } else {
            request = add_large_box(words, operand, scratch, far, request);
        }
        if (what == RESULTS)
            operand->scratch = operand->turn - operand->scratch;
    }
    return request;
}

/* Requests operands of a nest's first tile. */
static void load_first(tg_tiles *t, const tg_word *at, tg_word *words, int is_early, int *request)
{
    const tg_call *call = (const tg_call *)(const void *)at;
    uint32_t mask = is_early ? call->early : call->late;
    if (mask)
        *request = add_boxes(t, call, words, mask, FIRST_TILE, *request);
}

/* Which request is for a nest that has come together with others, the how manieth behind the first. */
static inline int *ahead_for(tg_tiles *t, const tg_call *call, int number)
{
    if (!(call->flags & TG_MORE))
        number = TG_AHEAD_LAST;
    else if (number > TG_AHEAD_OTHERS)
        number = TG_AHEAD_OTHERS;
    return &t->ahead[number];
}

/* The same of nests that have come together with one, which computes before them. */
static APART void load_further(tg_tiles *t, const tg_word *at, int is_early)
{
    int number = 0;
    for (const tg_call *call = (const tg_call *)(const void *)at; call->flags & TG_MORE;) {
        tg_word *words = (tg_word *)(uintptr_t)(at + call->next_table);
        at += call->next_words;
        call = (const tg_call *)(const void *)at;
        load_first(t, at, words, is_early, ahead_for(t, call, number++));
    }
}

static void move_dims(tg_word *words, const tg_loop *loop, tg_dim *dim, int count)
{
    for (; count > 0; count--, dim++) {
        int32_t start = loop->start, size = loop->size;
        if (dim->divisor) {
            int32_t reach = dim->coefficient * (size - 1);
            int32_t low = dim->coefficient * start + dim->low + (reach < 0 ? reach : 0);
            int32_t high = dim->coefficient * start + dim->high + (reach > 0 ? reach : 0);
            if (dim->divisor > 1) { /* exact quotients between the ends: up from below, down from above */
                low = low > 0 ? (low + dim->divisor - 1) / dim->divisor : 0;
                high = high < 0 ? -1 : high / dim->divisor;
            }
            start = low > 0 ? low : 0;
            size = (high < dim->extent ? high + 1 : dim->extent) - start;
            if (size < 0)
                size = 0;
        }
        ((tg_operand *)(void *)(words + dim->operand))->far += (uint32_t)((start - dim->start) * dim->far_stride);
        dim->start = start;
        if (dim->shape) {
            dim->size = size;
            words[dim->shape] = (uint32_t)(dim->factor * size);
        }
    }
}

/* The next tile along a simple loop. */
static inline void step(tg_word *words, const tg_loop *loop, tg_dim *dim, tg_operand *operand)
{
    operand->far += (uint32_t)dim->far_step;
    dim->start = loop->start;
    if (dim->shape) {
        dim->size = loop->size;
        words[dim->shape] = (uint32_t)(dim->factor * loop->size);
    }
}

/* What moves for the next tile: loops, innermost first, and the operands that they move. */
typedef struct {
    int loops;
    uint32_t reads, results;
} moved_t;

/* Boxes of what is read move along. */
static moved_t advance(tg_nest *nest, tg_word *words)
{
    moved_t moved = {0, 0, 0};
    for (tg_loop *loop = loops_of(nest);; loop++) {
        loop->start += loop->tile;
        int32_t left = loop->extent - loop->start;
        if (left <= 0) {
            loop->start = 0;
            left = loop->tile;
        }
        loop->size = left < loop->tile ? left : loop->tile;
        moved.loops++;
        moved.reads |= loop->reads;
        moved.results |= loop->results;
        move_dims(words, loop, (tg_dim *)(void *)(words + loop->dims), loop->read_count);
        if (loop->start > 0)
            return moved;
    }
}

static int are_at_end(tg_nest *nest, uint32_t mask, int is_first)
{
    for (const tg_loop *loop = loops_of(nest); mask; loop++, mask >>= 1)
        if ((mask & 1) && (is_first ? loop->start != 0 : loop->start + loop->size != loop->extent))
            return 0;
    return 1;
}

static void fill_fields(tg_nest *nest, tg_word *words, const tg_loop *loop)
{
    const tg_field *field = (const tg_field *)(const void *)(words + loop->fields);
    tg_word *args = words + nest->args;
    int32_t before = 0, value = 0;
    for (int i = loop->field_count; i > 0; i--, field++) {
        int32_t of = (int32_t)words[field->of], by = field->by;
        switch (field->kind) {
        case TG_COPY:
            before = 0, value = of;
            break;
        case TG_ORIGIN: {
            const tg_dim *dim = (const tg_dim *)(const void *)(words + field->of);
            before = 0, value = dim->coefficient * loop->start + by - dim->divisor * dim->start;
            break;
        }
        case TG_SET:
            before = 0, value = by;
            break;
        case TG_SCALE:
            before = 0, value = by * of;
            break;
        case TG_ADD:
            before = (int32_t)args[field->word], value = by * of;
            break;
        case TG_TIMES:
            value *= of;
            break;
        default:
            before = 0, value = are_at_end(nest, (uint32_t)by, field->kind == TG_FIRST);
            break;
        }
        args[field->word] = (uint32_t)(before + value);
    }
}

/* Arguments for the next tile are made beside those that cores are reading: at first a copy of them, then what loops
 * change, with what they changed a tile ago. */
static void turn_args(tg_tiles *t, tg_nest *nest, int loops)
{
    const tg_word *from = t->words + nest->args;
    nest->args = nest->args_turn - nest->args;
    if (t->steps == 1) {
        tg_word *to = t->words + nest->args;
        for (int i = nest->arg_count; i > 0; i--)
            *to++ = *from++;
    }
    tg_loop *loop = loops_of(nest);
    for (int i = 0; i < loops; i++, loop++)
        if (loop->field_count)
            fill_fields(nest, t->words, loop);
}

/* So are addresses. */
static void set_addresses(const tg_tiles *t, tg_nest *nest, const tg_call *call, void **at)
{
    const tg_operand *operand = operands_of(nest);
    const tg_word *home = homes_of(call);
    unsigned char *slots = t->scratch + call->slots;
    for (int i = nest->operand_count; i > 0; i--, operand++, home++)
        if (!IS_LEFT(*home))
            *at++ = slots + operand->scratch;
        else
            *at++ = *home == TG_ABSENT ? 0 : t->scratch + (*home & ~TG_IN_SCRATCH) + operand->far;
}

/* The next step of a nest, along so many loops. What it makes ready follows from these and from those of the step
 * before, which are not in what was made ready then. */
static int turn_step(tg_tiles *t, int loops)
{
    int both = loops > t->moved_loops ? loops : t->moved_loops;
    t->moved_loops = loops;
    t->steps++;
    t->turn ^= 1;
    return both;
}

/* Notes a result that leaves as soon as its tile is computed, and takes the other slot for the next one. */
static inline void keep_result(tg_tiles *t, tg_operand *operand, unsigned char *slots, uint32_t home)
{
    t->leaving[t->leaving_count++] = (tg_leaving){slots + operand->scratch, home_of(t, home) + operand->far,
                                                  operand->row_bytes, operand->rows, operand->stride};
    operand->scratch = operand->turn - operand->scratch;
}

static void keep_results(tg_tiles *t, tg_nest *nest, const tg_call *call, uint32_t mask)
{
    tg_operand *operand = operands_of(nest);
    const tg_word *home = homes_of(call);
    for (; mask; mask >>= 1, operand++, home++)
        if (mask & 1)
            keep_result(t, operand, t->scratch + call->slots, *home);
}

static void store_kept(tg_tiles *t)
{
    const tg_leaving *one = t->leaving;
    if (t->leaving_count == 0)
        return;
    t->storing = tg_dma_open(0);
    for (; t->leaving_count > 0; t->leaving_count--, one++)
        tg_dma_add(t->storing, one->scratch, one->far, one->row_bytes, one->rows, one->stride);
}

/* Addresses, boxes of results and arguments for the next tile. */
static void turn(tg_tiles *t, tg_nest *nest, const tg_call *call, int loops)
{
    tg_loop *loop = loops_of(nest);
    for (int i = 0; i < loops; i++, loop++)
        if (loop->write_count)
            move_dims(t->words, loop, (tg_dim *)(void *)(t->words + loop->dims) + loop->read_count, loop->write_count);
    int both = turn_step(t, loops);
    set_addresses(t, nest, call, t->at[t->turn]);
    if (nest->arg_count)
        turn_args(t, nest, both);
}

static void add_words(int request, tg_word *to, const tg_word *from, uint32_t count)
{
    unsigned char *far = (unsigned char *)(uintptr_t)from;
    if (count * 4 <= TG_DMA_LONGEST)
        tg_dma_add(request, to, far, count * 4, 1, 0);
    else
        add_pieces(request, (unsigned char *)to, far, count * 4, 1, 0);
}

static void fetch(tg_tiles *t, const tg_call *call)
{
    tg_word *to = (tg_word *)(void *)(t->scratch + call->next_scratch);
    t->fetching = tg_dma_open(1);
    add_words(t->fetching, to, t->program + t->position, call->next_words);
    if (call->next_table_words)
        add_words(t->fetching, to + call->next_words, t->program + call->next_table, call->next_table_words);
    t->position += call->next_words;
}

/* The next call and its table: waits for them. */
static tg_word *fetched(tg_tiles *t, const tg_call *call)
{
    tg_word *next = (tg_word *)(void *)(t->scratch + call->next_scratch);
    settle(&t->fetching);
    tg_table(next, (call->next_words + call->next_table_words) * 4);
    return next;
}

/* Where the table is of a call that has come: behind it, or behind all that were fetched with it. */
static tg_word *table_at(const tg_tiles *t, const tg_call *call, tg_word *next)
{
    return next + (call->next_table_words ? call->next_words : call->next_table - (t->position - call->next_words));
}

/* Makes ready the next tile where only the innermost loop moves on, and simply: the general way in `prepare_next`, in
 * one go. */
static APART void prepare_simply(tg_tiles *t, const tg_call *call, tg_nest *nest, tg_loop *loop)
{
    tg_word *words = t->words;
    const tg_word *homes = homes_of(call);
    unsigned char *slots = t->scratch + call->slots;
    tg_dim *dim = (tg_dim *)(void *)(words + loop->dims), *results = dim + loop->read_count;
    int both = turn_step(t, 1);
    void **at = t->at[t->turn];
    int32_t left = loop->extent - loop->start;
    loop->size = left < loop->tile ? left : loop->tile;
    for (; dim < results; dim++) {
        tg_operand *operand = (tg_operand *)(void *)(words + dim->operand);
        step(words, loop, dim, operand);
        if (homes[dim->index] & TG_IN_SCRATCH) {
            at[dim->index] = t->scratch + (homes[dim->index] & ~TG_IN_SCRATCH) + operand->far;
            continue;
        }
        operand->scratch = operand->turn - operand->scratch;
        if (t->loading == NONE)
            t->loading = tg_dma_open(1);
        at[dim->index] = slots + operand->scratch;
        tg_dma_add(t->loading, slots + operand->scratch, home_of(t, homes[dim->index]) + operand->far,
                   operand->row_bytes, operand->rows, operand->stride);
    }
    for (int i = loop->write_count; i > 0; i--, dim++) {
        tg_operand *operand = (tg_operand *)(void *)(words + dim->operand);
        keep_result(t, operand, slots, homes[dim->index]);
        at[dim->index] = slots + operand->scratch;
        step(words, loop, dim, operand);
    }
    if (both > 1 || t->steps == 1)
        set_addresses(t, nest, call, at);
    if (nest->arg_count)
        turn_args(t, nest, both);
}

/* The next moves between L2 and L3. */
static void make_moves(tg_tiles *t, uint32_t count)
{
    const tg_word *move = t->move;
    for (; count > 0; count--) {
        int *request = &t->m->l3_requests[move[0] >> TG_MOVE_SHIFT];
        if (move[0] & TG_MOVE_WAIT) {
            tg_l3_wait(*request);
            move++;
        } else if (move[0] & TG_MOVE_ROWS) {
            *request = tg_l3_rows(t->arena + move[1], move[2], move[3], move[4], move[5], (int)(move[0] & TG_MOVE_IN));
            move += TG_ROWS_WORDS;
        } else {
            *request = tg_l3_start(t->arena + move[1], move[2], move[3], (int)(move[0] & TG_MOVE_IN));
            move += TG_MOVE_WORDS;
        }
    }
    t->move = move;
}

/* While a tile computes, the results before it leave and the next tile comes. */
static APART moved_t prepare_next(tg_tiles *t, const tg_call *call, tg_nest *nest)
{
    tg_loop *innermost = loops_of(nest);
    moved_t moved = {0, 0, 0};
    if (nest->is_double)
        store_kept(t);
    if (innermost->is_simple && innermost->start + innermost->tile < innermost->extent) {
        innermost->start += innermost->tile;
        prepare_simply(t, call, nest, innermost);
        return moved;
    }
    moved = advance(nest, t->words);
    if (nest->is_double)
        t->loading = add_boxes(t, call, t->words, moved.reads, NEXT_TILE, NONE);
    if (!nest->is_large) {
        keep_results(t, nest, call, moved.results);
        turn(t, nest, call, moved.loops);
    }
    return moved;
}

/* Where results may need several commands, they leave behind their tile; where slots are single, all does. */
static APART void finish_step(tg_tiles *t, const tg_call *call, tg_nest *nest, moved_t moved)
{
    settle(&t->storing);
    if (nest->is_large) {
        t->storing = add_boxes(t, call, t->words, moved.results, RESULTS, NONE);
        turn(t, nest, call, moved.loops);
    }
    if (nest->is_double)
        return;
    store_kept(t);
    settle(&t->storing);
    t->loading = add_boxes(t, call, t->words, moved.reads, NEXT_TILE, NONE);
}

#ifdef TG_BLOCKS
static int32_t count_of(const tg_loop *loop) { return (loop->extent + loop->tile - 1) / loop->tile; }

/* Moves a table that is as the first tile needs it on to another one. */
static void seek(tg_word *words, tg_nest *nest, int tile)
{
    tg_loop *loop = loops_of(nest);
    for (int i = nest->loop_count; i > 0; i--, loop++) {
        int32_t count = count_of(loop);
        loop->start = tile % count * loop->tile;
        loop->size = loop->extent - loop->start < loop->tile ? loop->extent - loop->start : loop->tile;
        move_dims(words, loop, (tg_dim *)(void *)(words + loop->dims), loop->read_count + loop->write_count);
        tile /= count;
    }
    loop = loops_of(nest);
    for (int i = nest->loop_count; i > 0; i--, loop++)
        if (loop->field_count)
            fill_fields(nest, words, loop);
}

/* A table that has come becomes that of the tiles that a block takes. */
static void take_tiles(tg_word *words, int first, int stop)
{
    tg_nest *nest = (tg_nest *)(void *)words;
    nest->tiles = stop;
    if (first > 0)
        seek(words, nest, first);
}
#endif

/* While the last tile computes, the next nest comes. */
static tg_word *prepare_nest(tg_tiles *t, const tg_call *call)
{
    store_kept(t);
    if (t->fetching == NONE)
        return 0;
    tg_word *next = fetched(t, call), *words = table_at(t, call, next);
    if (call->flags & TG_SETTLE)
        settle(&t->storing);
#ifdef TG_CARRIES
    if (t->next_stop > t->next_first)
        take_tiles(words, t->next_first, t->next_stop);
#endif
    load_first(t, next, words, 1, &t->loading);
    load_further(t, next, 1);
    t->turn ^= 1;
    set_addresses(t, (tg_nest *)(void *)words, (const tg_call *)(const void *)next, t->at[t->turn]);
    return next;
}

#ifdef TG_EPILOGUES
/* The kernel of a nest. What goes on with its tiles, from now on, is noted. */
static tg_kernel_call *kernel_of(tg_tiles *t, const tg_nest *nest)
{
    int32_t others = nest->kernel >> TG_THEN_SHIFT;
    for (int i = 0; i < TG_EPILOGUES; i++, others >>= TG_THEN_SHIFT)
        t->then[i] = others % TG_KERNELS ? t->kernels[others % TG_KERNELS - 1] : 0;
    return t->kernels[nest->kernel % TG_KERNELS];
}

/* A tile is done when all that goes on with it is. */
static void finish_tile(const tg_tiles *t, tg_kernel_call *kernel, const tg_job *job)
{
    tg_finish_cores(kernel, job);
    for (int i = 0; i < TG_EPILOGUES && t->then[i]; i++) {
        tg_start_cores(t->then[i], job);
        tg_finish_cores(t->then[i], job);
    }
}
#else
static inline tg_kernel_call *kernel_of(tg_tiles *t, const tg_nest *nest) { return t->kernels[nest->kernel]; }

static inline void finish_tile(const tg_tiles *t, tg_kernel_call *kernel, const tg_job *job)
{
    (void)t;
    tg_finish_cores(kernel, job);
}
#endif

/* Each tile begins on the other cores, and this one joins them when it has conducted what comes next. Where a tile
 * writes, what was there has left, unless results leave right behind their tiles (`is_large`). The first tile has
 * begun. */
static tg_word *run_tiles(tg_tiles *t, const tg_call *call)
{
    tg_nest *nest = nest_of(t);
    tg_kernel_call *kernel = t->kernel;
    tg_job job = t->job;
    tg_word *next = 0;
    if (call->next_words && !(call->flags & TG_NEXT_LATE))
        fetch(t, call);
    t->steps = t->moved_loops = 0;
    while (job.tile < nest->tiles - 1) {
        moved_t moved = {0, 0, 0};
        if (nest->is_double != TG_AHEAD || job.tile == 0)
            moved = prepare_next(t, call, nest);
        finish_tile(t, kernel, &job);
        if (nest->is_large || !nest->is_double)
            finish_step(t, call, nest, moved);
        else
            settle(&t->storing);
        job.tile++;
        job.at = t->at[t->turn];
        job.args = t->words + nest->args;
        int coming = t->loading;
        t->loading = NONE;
        if (nest->is_double == TG_AHEAD && job.tile < nest->tiles - 1)
            (void)prepare_next(t, call, nest);
        settle(&coming);
        tg_start_cores(kernel, &job);
    }
    next = prepare_nest(t, call);
    t->job = job;
    t->is_running = (call->flags & TG_AT_ONCE) != 0;
    t->before = call;
    t->before_words = t->words;
    if (t->is_running)
        return next;
    finish_tile(t, kernel, &job);
    settle(&t->storing);
    t->before = 0;
    t->storing = add_boxes(t, call, t->words, call->results, RESULTS, NONE);
    return next;
}

static tg_job first_job(tg_tiles *t, const tg_call *call, const char *who)
{
    uint32_t results = (call->results & ((1u << TG_FIRST_SHIFT) - 1)) << (call->results >> TG_FIRST_SHIFT);
    tg_job job = {who, FIRST_OF(t), t->at[t->turn], t->words + nest_of(t)->args, t->program + t->table, results};
    return job;
}

/* A nest's first tile. One that begins at once does so as soon as the nest before it is done: until then that is still
 * running, and all else was made ready meanwhile. Its last results leave then. */
static void begin_nest(tg_tiles *t, const tg_call *call, const char *who)
{
    tg_job job = first_job(t, call, who);
    if (t->is_running) {
        finish_tile(t, t->kernel, &t->job);
        if ((t->before->flags & (TG_MORE | TG_SETTLE)) != TG_MORE)
            settle(&t->storing);
        tg_enter(who);
    }
    settle(&t->loading);
    t->kernel = kernel_of(t, nest_of(t));
    tg_start_cores(t->kernel, &job);
    t->job = job;
    if (t->is_running && t->before->results)
        t->storing = add_boxes(t, t->before, t->before_words, t->before->results, RESULTS, t->storing);
    if ((call->flags & (TG_LATE | TG_MORE)) == (TG_LATE | TG_MORE)) {
        settle(&t->storing);
        load_further(t, t->call, 0);
    }
}

/* To the next of the nests that have come together, while this one computes. */
static void go_on(tg_tiles *t, const tg_call *call)
{
    t->is_running = 1;
    t->before = call;
    t->before_words = t->words;
    t->words = t->call + call->next_table;
    t->call += call->next_words;
    t->table = t->current + call->next_table;
    t->current += call->next_words;
    call = (const tg_call *)(const void *)t->call;
    int *ahead = ahead_for(t, call, t->further++);
    t->loading = *ahead;
    *ahead = NONE;
    if (!(call->flags & TG_MORE))
        t->further = 0;
    t->turn ^= 1;
    set_addresses(t, nest_of(t), call, t->at[t->turn]);
    tg_table(t->call, (uint32_t)sizeof(tg_call));
}

#ifdef TG_BLOCKS
/* ---- Launches over blocks. */

typedef struct {
    const tg_tiles *t; /* of the entry; only read */
    const tg_member *members;
    int count;
#ifdef TG_CARRIES
    tg_carried *carried; /* each block's own */
#endif
} launch_t;

/* The tiles that a block takes: units of so many tiles as the inner loops have, from its share of them. */
static void take_share(tg_nest *nest, uint32_t flags, uint32_t block, uint32_t blocks, int *first, int *stop)
{
    const tg_loop *loop = loops_of(nest);
    uint32_t tiles = 1, units;
    for (uint32_t inner = flags >> TG_INNER_SHIFT & TG_MOST_INNER; inner > 0; inner--, loop++)
        tiles *= (uint32_t)count_of(loop);
    units = (uint32_t)nest->tiles / tiles;
    *first = (int)(block * units / blocks * tiles);
    *stop = (int)((block + 1) * units / blocks * tiles);
}

#ifdef TG_PIPES
/* The next tile of a lane. */
static moved_t advance_lane(const tg_tiles *t, tg_nest *nest, tg_word *words)
{
    moved_t moved = {0, 0, 0};
    for (int i = 0; i < t->lanes; i++) {
        moved_t own = advance(nest, words);
        moved.loops = own.loops > moved.loops ? own.loops : moved.loops;
        moved.reads |= own.reads;
        moved.results |= own.results;
    }
    return moved;
}

/* A nest of those that pipes join. Results leave right behind their tiles, and whoever is to know of a transfer knows as
 * soon as it is done. What passes through L1 is awaited before a tile, and told behind it. */
static void run_piped(tg_tiles *t, const tg_call *call, const char *who)
{
    tg_nest *nest = nest_of(t);
    tg_kernel_call *kernel = kernel_of(t, nest);
    tg_job job = first_job(t, call, who);
    for (;; job.tile += t->lanes) {
        moved_t moved = {0, ~0u, call->results};
        int is_last = job.tile + t->lanes >= nest->tiles;
        settle(&t->loading);
        tell(t, t->piped, 0, 0);
        await_near(t);
        job.at = t->at[t->turn];
        job.args = t->words + nest->args;
        tg_start_cores(kernel, &job);
        if (!is_last)
            moved = advance_lane(t, nest, t->words);
        if (nest->is_double && !is_last)
            t->loading = add_boxes(t, call, t->words, moved.reads, NEXT_TILE, NONE);
        settle(&t->storing);
        tell(t, t->piped, 1, 0);
        finish_tile(t, kernel, &job);
        tell_near(t, moved.reads, is_last ? ~0u : moved.results);
        t->storing = add_boxes(t, call, t->words, moved.results, RESULTS, NONE);
        if (is_last)
            break;
        turn(t, nest, call, moved.loops);
        if (nest->is_double)
            continue;
        settle(&t->storing);
        tell(t, t->piped, 1, 0);
        t->loading = add_boxes(t, call, t->words, moved.reads, NEXT_TILE, NONE);
    }
    settle(&t->storing);
    tell(t, t->piped, 1, 0);
}
#endif

static int width_of(const tg_tiles *t, uint32_t flags)
{
    int limit = (int)(flags >> TG_LIMIT_SHIFT & TG_MOST_WIDTH);
#if TG_BLOCKS_DIVISOR > 0
    int divisor = (int)(flags >> TG_DIVISOR_SHIFT & TG_MOST_WIDTH);
    if (divisor > 0 && t->m->blocks / divisor < limit)
        limit = t->m->blocks / divisor;
#else
    (void)t;
#endif
    return limit * (int)(1 + (flags >> TG_LANES_SHIFT));
}

#ifdef TG_CARRIES
/* The call before the next launch behind one, or none; `position` becomes that launch's. The entry's conductor runs what
 * lies between: nests that come together are one behind the other there. */
static const tg_call *before_launch(const tg_tiles *t, const tg_call *call, uint32_t *position)
{
    while (call->next_words && !(call->flags & TG_NEXT_LAUNCH)) {
        const tg_word *at = t->program + *position;
        *position += call->next_words;
        for (call = (const tg_call *)(const void *)at; call->flags & TG_MORE; call = (const tg_call *)(const void *)at)
            at += call->next_words;
    }
    return call->next_words ? call : 0;
}

/* What a block brings of the next launch, as if that came next, and the tiles that it takes there. Nothing where that
 * has no room beside what comes before, or where blocks of either take turns. Returns whether it does so beside its last
 * tile, or else when results of that leave. */
static int find_next(tg_tiles *t, tg_call *own, uint32_t block, uint32_t blocks)
{
    uint32_t position = t->position, width = 0;
    const tg_call *before = before_launch(t, own, &position);
    const tg_call *next = (const tg_call *)(const void *)(t->program + position);
    if (before && (next->flags & TG_CARRIED) && blocks <= TG_CLUSTERS)
        width = (uint32_t)width_of(t, next->flags);
    if (block < width && width <= TG_CLUSTERS)
        take_share((tg_nest *)(uintptr_t)(t->program + before->next_table), next->flags, block, width, &t->next_first,
                   &t->next_stop);
    if (t->next_first >= t->next_stop) {
        own->next_words = 0;
        return 0;
    }
    t->position = position;
    own->next_words = before->next_words;
    own->next_table = before->next_table;
    own->next_table_words = before->next_table_words;
    own->next_scratch = before->next_scratch;
    own->flags |= TG_NEXT_LATE;
    return (next->flags & TG_BESIDE) != 0;
}

/* What the block has brought already, if it has. */
static int has_come(tg_tiles *t, const tg_member *member, const tg_carried *carried)
{
    if (carried->position != t->current)
        return 0;
    t->position += member->launch.next_words;
    t->call = (tg_word *)(void *)(t->scratch + member->launch.next_scratch);
    t->loading = carried->loading;
    tg_table(t->call, (member->launch.next_words + member->launch.next_table_words) * 4);
    return 1;
}
#endif

/* A block has a scratchpad to itself, brings the call and its table there, and leaves nothing behind but what it has
 * brought of the nest that is launched next: while its last tile computes, it asks for what that one reads and this one
 * does not write. Members of a launch are a block each to a chip, one behind the other. */
static void run_block(void *context, int worker, int workers, unsigned char *scratch)
{
    const launch_t *launch = (const launch_t *)context;
    const tg_tiles *entry = launch->t;
    const tg_member *member = &launch->members[worker % launch->count];
    const uint32_t block = (uint32_t)(worker / launch->count), blocks = (uint32_t)(workers / launch->count);
    tg_tiles tiles = {.loading = NONE, .storing = NONE, .fetching = NONE}; /* a single nest needs none of the rest */
    tg_tiles *t = &tiles;
    int first, stop;
    t->m = entry->m;
    t->scratch = scratch;
    t->state = entry->state;
    t->arena = entry->arena;
    t->program = entry->program;
    t->kernels = entry->kernels;
    t->position = t->current = member->current;
    t->table = member->table;
    const tg_call *call = (const tg_call *)(const void *)(t->program + t->current);
    take_share((tg_nest *)(uintptr_t)(t->program + t->table), call->flags, block, blocks, &first, &stop);
#ifdef TG_PIPES
    t->pipes = entry->pipes;
    t->block = (int)block;
    t->member = worker % launch->count;
    t->lane = member->lane;
    t->lanes = member->lanes;
    first += t->lane;
#endif
    if (first >= stop)
        return;
#ifdef TG_CARRIES
    tg_carried *carried = &launch->carried[block % TG_CLUSTERS];
    int is_there = has_come(t, member, carried);
#else
    enum { is_there = 0 };
#endif
    if (!is_there) {
        fetch(t, &member->launch);
        t->call = fetched(t, &member->launch);
    }
    t->words = t->call + member->launch.next_words;
    tg_nest *nest = nest_of(t);
    tg_call *own = (tg_call *)(void *)t->call;
    t->first_tile = first;
    if (!is_there)
        take_tiles(t->words, first, stop);
    set_addresses(t, nest, own, t->at[t->turn]);
#ifdef TG_PIPES
    find_piped(t, nest, homes_of(own));
#endif
#ifdef TG_CARRIES
    carried->position = TG_NO_CALL;
    int is_beside = find_next(t, own, block, blocks), fetching = NONE;
    if (own->next_words) {
        carried->position = t->position;
        fetch(t, own);
    }
    if (!is_beside) { /* it is not for the last tile */
        fetching = t->fetching;
        t->fetching = NONE;
    }
#else
    own->next_words = 0;
#endif
    if (!is_there)
        load_first(t, t->call, t->words, 1, &t->loading);
    load_first(t, t->call, t->words, 0, &t->loading);
#ifdef TG_PIPES
    if (launch->count > 1) {
        run_piped(t, own, member->who);
        return;
    }
#endif
    begin_nest(t, own, member->who);
    (void)run_tiles(t, own);
#ifdef TG_CARRIES
    if (fetching != NONE) {
        t->fetching = fetching;
        (void)prepare_nest(t, own);
    }
    carried->loading = t->loading;
#endif
    settle(&t->storing);
}

/* The nest behind this one is launched: its call and table stay where they are until then. */
static void expect_launch(tg_tiles *t, const tg_call *call)
{
    t->is_launch = 1;
    t->launch = *call;
    t->position += call->next_words;
    t->current = t->position - call->next_words;
    t->table = call->next_table;
    t->call = t->words = 0;
}

static void run_launch(tg_tiles *t, const char *who)
{
    const tg_call *call = (const tg_call *)(const void *)(t->program + t->current);
    tg_member own = {who, t->current, t->table, t->launch, 0, 1};
    launch_t launch = {.t = t, .members = &own, .count = 1};
    if (call->moves)
        make_moves(t, call->moves);
    tg_enter(who);
#ifdef TG_CARRIES
    launch.carried = t->carried;
#endif
#ifdef TG_PIPES
    int lanes = (int)(1 + (call->flags >> TG_LANES_SHIFT)), is_alone = !t->member_count && !(call->flags & TG_JOINS);
    for (own.lanes = is_alone ? 1 : lanes; own.lane < own.lanes; own.lane++)
        t->members[t->member_count++] = own;
    if (call->flags & TG_JOINS) {
        expect_launch(t, call);
        return;
    }
    launch.members = t->members;
    launch.count = t->member_count;
    t->member_count = 0;
    tg_launch_joined(who, run_block, &launch, launch.count * width_of(t, call->flags) / (is_alone ? 1 : lanes),
                     launch.count);
#else
    tg_launch(who, run_block, &launch, width_of(t, call->flags));
#endif
    tg_barrier();
    t->is_launch = 0;
    if (call->flags & TG_NEXT_LAUNCH) {
        expect_launch(t, call);
        return;
    }
    uint32_t words = call->next_words;
    t->table = call->next_table;
    t->current = TG_NO_CALL;
    if (!words)
        return;
    t->current = t->position;
    fetch(t, call);
    t->call = fetched(t, call);
    t->words = table_at(t, call, t->call);
    set_addresses(t, nest_of(t), (const tg_call *)(const void *)t->call, t->at[t->turn]);
}
#endif

static void run_nest(tg_tiles *t, const char *who)
{
    const tg_call *call = (const tg_call *)(const void *)t->call;
    if (!t->is_running) {
        if (call->moves)
            make_moves(t, call->moves);
        tg_enter(who);
        if (call->flags & TG_DRAIN)
            settle(&t->storing);
        if (call->flags & TG_LATE)
            load_first(t, t->call, t->words, 0, &t->loading);
    }
    begin_nest(t, call, who);
    if (call->flags & TG_MORE) {
        go_on(t, call);
        return;
    }
    tg_word *next = run_tiles(t, call);
    if (!(call->flags & TG_LEAVE))
        settle(&t->storing);
#ifdef TG_BLOCKS
    if (call->flags & TG_NEXT_LAUNCH) {
        tg_call kept = *call;
        tg_table(0, 0);
        expect_launch(t, &kept);
        return;
    }
#endif
    tg_call kept; /* of what comes next, that is */
    uint32_t words = kept.next_words = call->next_words;
    kept.next_table = call->next_table;
    kept.next_table_words = call->next_table_words;
    kept.next_scratch = call->next_scratch;
    if (!next && words) { /* the next may come to lie where this one is */
        tg_table(0, 0);
        fetch(t, &kept);
        next = fetched(t, &kept);
        set_addresses(t, (tg_nest *)(void *)table_at(t, &kept, next), (const tg_call *)(const void *)next,
                      t->at[t->turn]);
    }
    t->current = words ? t->position - words : TG_NO_CALL;
    t->table = kept.next_table;
    t->call = next;
    t->words = words ? table_at(t, &kept, next) : 0;
}

/* Whether it is this call's turn. Once it was not, nothing runs any more. */
static int is_next(tg_tiles *t, const tg_call *call)
{
    const void *current = t->program + t->current;
    if (t->current == TG_NO_CALL || current != (const void *)call)
        t->status = TG_OUT_OF_ORDER;
    return t->status == TG_OK;
}

/* The entry's first call and its table, which were on their way while the caller had inputs to check and to copy. */
static APART void arrive(tg_tiles *t)
{
    settle(&t->fetching);
    tg_table(t->call, t->arriving);
    set_addresses(t, nest_of(t), (const tg_call *)(const void *)t->call, t->at[t->turn]);
}

void tg_run_nests(tg_tiles *t, const tg_call *first, int count, const char *who)
{
    if (!is_next(t, first))
        return;
    if (t->fetching != NONE)
        arrive(t);
    for (; count > 0 && t->current != TG_NO_CALL; count--) {
#ifdef TG_BLOCKS
        if (t->is_launch) {
            run_launch(t, who);
            continue;
        }
#endif
        run_nest(t, who);
    }
}

void tg_run_whole(tg_tiles *t, const tg_call *first, int count, const char *who)
{
    if (!is_next(t, first))
        return;
    for (; count > 0 && t->current != TG_NO_CALL; count--) {
        const tg_call *call = (const tg_call *)(const void *)(t->program + t->current);
        const tg_word *words = t->program + t->table;
        const tg_nest *nest = (const tg_nest *)(const void *)words;
        const tg_operand *operand = (const tg_operand *)(const void *)(nest + 1);
        for (int i = 0; i < nest->operand_count; i++, operand++)
            t->at[0][i] = homes_of(call)[i] == TG_ABSENT ? 0 : home_of(t, homes_of(call)[i]) + operand->far;
        tg_job job = {who, 0, t->at[0], words + nest->args, words, 0};
        make_moves(t, call->moves);
        tg_enter(who);
        t->kernel = kernel_of(t, nest);
        tg_start_cores(t->kernel, &job);
        finish_tile(t, t->kernel, &job);
        t->current = call->next_words ? t->current + CALL_WORDS + (uint32_t)nest->operand_count : TG_NO_CALL;
        t->table = call->next_table;
    }
}

void tg_start(tg_tiles *t, tg_model *m, const tg_program *program, const tg_entry *entry)
{
    tg_call first;
    const tg_word *words = (const tg_word *)program->words;
    t->m = m;
    t->status = TG_OK; /* what a nest sets for itself is left as it is: a controller clears slowly */
    t->loading = t->storing = t->fetching = NONE;
    for (int i = 0; i < TG_AHEAD_COUNT; i++)
        t->ahead[i] = NONE;
    t->is_running = t->turn = t->leaving_count = t->further = 0;
#ifdef TG_BLOCKS
    t->is_launch = t->first_tile = 0;
#endif
#ifdef TG_CARRIES
    t->next_first = t->next_stop = 0;
    for (int i = 0; i < TG_CLUSTERS; i++)
        t->carried[i].position = TG_NO_CALL;
#endif
#ifdef TG_PIPES
    t->block = t->member_count = t->pipe_count = t->member = t->lane = 0;
    t->lanes = 1;
#endif
    t->scratch = m->scratch;
    t->state = m->state;
    t->arena = m->arena;
    t->program = words;
    t->kernels = program->kernels;
#ifdef TG_PIPES
    t->pipes = program->pipes;
#endif
    t->position = t->current = entry->position;
    t->table = entry->table;
    t->move = words + entry->moves;
    tg_begin(entry->name, words, program->bytes);
    first.next_words = entry->call_words;
    first.next_table = entry->table;
    first.next_table_words = entry->table_words;
    first.next_scratch = entry->scratch;
#ifdef TG_BLOCKS
    if (entry->call_words && ((const tg_call *)(const void *)(words + entry->position))->flags >> TG_LIMIT_SHIFT) {
        expect_launch(t, &first);
        return;
    }
#endif
    t->arriving = (entry->call_words + entry->table_words) * 4;
    if (entry->call_words) {
        fetch(t, &first);
        t->call = (tg_word *)(void *)(t->scratch + entry->scratch);
        t->words = table_at(t, &first, t->call);
    }
}

tg_status tg_stop(tg_tiles *t, const tg_entry *entry)
{
    if (t->current != TG_NO_CALL)
        t->status = TG_OUT_OF_ORDER;
    if (t->status == TG_OK)
        make_moves(t, entry->last_moves);
    settle(&t->loading);
    for (int i = 0; i < TG_AHEAD_COUNT; i++)
        settle(&t->ahead[i]);
    settle(&t->fetching);
    settle(&t->storing);
    tg_end(entry->name);
    return t->status;
}
